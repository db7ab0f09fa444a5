"""Open loop: every request leaves when the schedule says, whatever the server does."""

from __future__ import annotations

import anyio
from anyio.abc import TaskGroup

from loadgen.collectors.records import PointLog
from loadgen.generator.point import PointRun, watch_point

LEAD_NS = 50_000_000


async def run_open_loop(run: PointRun) -> PointLog:
    """Carry out the schedule and return the generator's own counts.

    Sends are paced by absolute deadlines: a late send does not move the next one, and none is skipped. Load goes
    on through the cool-down until the last measured request has ended or the cool-down is over; what is in flight then
    is cancelled and recorded as unfinished. Cancelling the call itself (Ctrl-C) keeps what was measured.
    """
    run.measured_open = sum(planned.phase == "measured" for planned in run.schedule.requests)
    return await watch_point(run, _drive, LEAD_NS)


async def _drive(run: PointRun) -> None:
    async with anyio.create_task_group() as tasks:
        with anyio.move_on_after(None) as until_done:
            run.on_measured_done = until_done.cancel
            await _pace(run, tasks)
            await run.clock.sleep_coarse_until_ns(run.cooldown_end_ns)
        await run.clock.sleep_coarse_until_ns(run.window_end_ns)  # the window is whole even when its last part is idle
        tasks.cancel_scope.cancel()


async def _pace(run: PointRun, tasks: TaskGroup) -> None:
    for planned in run.schedule.requests:
        intended_ns = run.t0_ns + round(planned.at_s * 1e9)
        await run.clock.sleep_until_ns(intended_ns)
        if run.max_in_flight is not None and run.in_flight.value >= run.max_in_flight:
            run.shed(planned, planned.phase, intended_ns)
        else:
            tasks.start_soon(run.carry_out, planned, planned.phase, intended_ns)
