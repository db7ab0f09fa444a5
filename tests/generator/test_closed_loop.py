"""Closed loop: the number in flight is what is held fixed."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest
from support.fakes import FakeAdapter, schedule
from support.virtual_time import virtual_time

from engine_adapters.base import StreamOutcome
from loadgen.generator.clock import MonotonicClock
from loadgen.generator.closed_loop import STARTED_AT_ONCE, run_closed_loop
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


def test_thousands_of_first_sends_leave_the_event_loop_its_turns() -> None:
    turns, sent_in_turn = [0], []

    class Counting(FakeAdapter):
        async def stream(self, body: bytes, request_id: str, outcome: StreamOutcome) -> None:
            sent_in_turn.append(turns[0])
            await anyio.sleep(0.05)
            outcome.stream_end_at_ns = self.clock.now_ns()

    async def count_turns() -> None:
        while True:
            turns[0] += 1
            await anyio.sleep(0)

    async def main() -> None:
        clock = MonotonicClock()
        plan = schedule([0.0] * 1000, duration_s=60.0, mode="closed", concurrency=1000)
        run = PointRun(plan, [b"x"] * 1000, Counting(clock), clock, MemorySink(), "test")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count_turns)
            await run_closed_loop(run)
            tasks.cancel_scope.cancel()

    anyio.run(main)
    assert len(sent_in_turn) == 1000
    assert max(Counter(sent_in_turn).values()) <= 2 * STARTED_AT_ONCE
