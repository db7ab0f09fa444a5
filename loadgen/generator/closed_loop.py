"""Closed loop: a fixed number of users, each sending its next request when the last one has ended."""

from __future__ import annotations

from collections.abc import Iterator

import anyio

from loadgen.collectors.records import Phase, PointLog
from loadgen.generator.point import PointRun, watch_point
from loadgen.scenario.schedule import PlannedRequest

STARTED_AT_ONCE = 32


async def run_closed_loop(run: PointRun) -> PointLog:
    """Keep `schedule.concurrency` requests in flight through warm-up and window.

    A request belongs to the phase in which its user became free, so `intended` is that instant and only metrics
    from `sent` mean anything. Users stop at the window's end; what they have in flight then is waited for up to the
    cool-down.
    With fewer requests than time, the point ends when they are used up.
    """
    if not run.schedule.concurrency:
        raise ValueError("a closed-loop schedule needs a concurrency")
    return await watch_point(run, _drive, 0)


async def _drive(run: PointRun) -> None:
    queue = iter(run.schedule.requests)
    with anyio.move_on_at(anyio.current_time() + (run.cooldown_end_ns - run.clock.now_ns()) / 1e9):
        async with anyio.create_task_group() as users:
            for i in range(run.schedule.concurrency or 0):
                users.start_soon(_user, run, queue)
                if i % STARTED_AT_ONCE == STARTED_AT_ONCE - 1:
                    await anyio.sleep(0)  # thousands of first sends in one turn of the loop would be a stall of it


async def _user(run: PointRun, queue: Iterator[PlannedRequest]) -> None:
    while (now_ns := run.clock.now_ns()) < run.window_end_ns:
        planned = next(queue, None)
        if planned is None:
            return
        phase: Phase = "warmup" if now_ns < run.window_start_ns else "measured"
        run.due_measured += phase == "measured"
        run.measured_open += phase == "measured"
        await run.carry_out(planned, phase, now_ns)
