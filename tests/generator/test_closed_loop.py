"""Closed loop: the number in flight is what is held fixed."""

from __future__ import annotations

import anyio
import pytest
from support.fakes import FakeAdapter, schedule
from support.virtual_time import virtual_time

from loadgen.generator.closed_loop import run_closed_loop
from loadgen.generator.point import MemorySink, PointRun


def test_concurrency_is_held_and_each_user_sends_when_its_last_request_ended() -> None:
    async def main() -> None:
        async with virtual_time() as clock:
            plan = schedule([0.0] * 500, warmup_s=2.0, duration_s=8.0, mode="closed", concurrency=4)
            run = PointRun(plan, [b"x"] * 500, FakeAdapter(clock, lambda n: 0.5), clock, MemorySink(), "test")
            log = await run_closed_loop(run)
            assert isinstance(run.sink, MemorySink)
            records = run.sink.records
            assert log.in_flight_max == 4
            assert log.in_flight_mean == pytest.approx(4.0)
            assert len(records) == 4 * 20  # 10 s / 0.5 s
            assert sum(record.phase == "warmup" for record in records) == 16
            assert {record.status for record in records} == {"ok"}
            assert log.due_measured == 64

    anyio.run(main)


def test_the_point_ends_when_the_requests_are_used_up() -> None:
    async def main() -> int:
        async with virtual_time() as clock:
            plan = schedule([0.0] * 10, duration_s=1000.0, mode="closed", concurrency=3)
            run = PointRun(plan, [b"x"] * 10, FakeAdapter(clock), clock, MemorySink(), "test")
            log = await run_closed_loop(run)
            assert isinstance(run.sink, MemorySink)
            # Ten requests of 0.1 s by three users: the window ends with the last of them, not at its 1,000 s.
            assert (log.window_end_ns - log.window_start_ns) / 1e9 == pytest.approx(0.4, abs=0.02)
            return len(run.sink.records)

    assert anyio.run(main) == 10
