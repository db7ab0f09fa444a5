"""Open loop: sends follow the schedule, not the server."""

from __future__ import annotations

import anyio
import pytest
from support.fakes import FakeAdapter, schedule
from support.virtual_time import VirtualClock, virtual_time

from loadgen.collectors.records import PointLog, RequestRecord
from loadgen.generator.open_loop import run_open_loop
from loadgen.generator.point import MemorySink, PointRun
from loadgen.scenario.schedule import PointSchedule


def a_run(plan: PointSchedule, adapter: FakeAdapter, clock: VirtualClock, **options: object) -> PointRun:
    bodies = [b"x"] * len(plan.requests)
    return PointRun(plan, bodies, adapter, clock, MemorySink(), "test", **options)  # type: ignore[arg-type]


def measure(
    plan: PointSchedule, service_s: object, **options: object
) -> tuple[PointLog, list[RequestRecord], FakeAdapter]:
    async def main() -> tuple[PointLog, list[RequestRecord], FakeAdapter]:
        async with virtual_time() as clock:
            adapter = FakeAdapter(clock, service_s)  # type: ignore[arg-type]
            run = a_run(plan, adapter, clock, **options)
            log = await run_open_loop(run)
            assert isinstance(run.sink, MemorySink)
            return log, run.sink.records, adapter

    return anyio.run(main)


def test_every_send_leaves_on_time_while_the_server_answers_nothing() -> None:
    # Case B53: 100 arrivals while every reply is held until t = 3 s.
    plan = schedule([0.02 * i for i in range(100)], duration_s=2.0, cooldown_s=5.0)
    log, records, adapter = measure(plan, lambda n: 3.0 - 0.02 * n)
    late_s = [(sent - log.t0_ns) / 1e9 - 0.02 * i for i, sent in enumerate(adapter.sent_at_ns)]
    assert len(adapter.sent_at_ns) == 100
    assert max(late_s) < 0.020
    assert log.in_flight_max == 100
    assert [record.status for record in records] == ["ok"] * 100


def test_a_late_send_does_not_move_the_next_one() -> None:
    class StallingClock(VirtualClock):
        async def sleep_until_ns(self, deadline_ns: int) -> None:
            await super().sleep_until_ns(deadline_ns)
            if deadline_ns == self.stall_at_ns:
                self._now_ns += 250_000_000

        stall_at_ns = -1

    async def main() -> list[float]:
        clock = StallingClock()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(clock.run)
            adapter = FakeAdapter(clock, lambda n: 0.03)
            run = a_run(schedule([0.1 * i for i in range(10)], duration_s=1.0), adapter, clock)
            begin = run.begin

            def begin_and_stall(lead_ns: int) -> None:
                begin(lead_ns)
                clock.stall_at_ns = run.t0_ns + 300_000_000

            run.begin = begin_and_stall  # type: ignore[method-assign]
            log = await run_open_loop(run)
            tasks.cancel_scope.cancel()
        return [round((sent - log.t0_ns) / 1e9, 3) for sent in adapter.sent_at_ns]

    # The stall at 0.3 s delays the sends due at 0.3, 0.4 and 0.5; the one at 0.6 is on time again.
    assert anyio.run(main) == [0.0, 0.1, 0.2, 0.55, 0.55, 0.55, 0.6, 0.7, 0.8, 0.9]


def test_load_goes_on_until_the_last_measured_request_has_ended_and_no_longer() -> None:
    plan = schedule([0.5 * i for i in range(40)], duration_s=10.0, cooldown_s=10.0)
    log, records, _ = measure(plan, lambda n: 2.2)
    measured = [record for record in records if record.phase == "measured"]
    cooldown = [record for record in records if record.phase == "cooldown"]
    assert [record.status for record in measured] == ["ok"] * 20
    assert len(cooldown) == 4  # due at 10.0 to 11.5; the last measured one ends at 9.5 + 2.2
    assert {record.status for record in cooldown} == {"unfinished"}
    assert (log.closed_at_ns - log.t0_ns) / 1e9 == pytest.approx(11.7, abs=0.01)


def test_the_window_is_whole_even_when_its_last_part_is_idle() -> None:
    log, _, _ = measure(schedule([0.5, 1.0], duration_s=10.0, cooldown_s=5.0), lambda n: 0.1)
    assert log.in_flight_mean == pytest.approx(0.02, abs=1e-4)
    assert (log.closed_at_ns - log.t0_ns) / 1e9 == pytest.approx(10.0, abs=0.01)


def test_requests_in_flight_when_the_cooldown_is_over_are_censored_not_dropped() -> None:
    plan = schedule([0.5 * i for i in range(20)], duration_s=10.0, cooldown_s=3.0)
    log, records, _ = measure(plan, lambda n: 60.0 if n == 7 else 0.1)
    censored = [record for record in records if record.status == "unfinished"]
    assert [record.index for record in censored] == [7]
    assert censored[0].stream_end_at_ns is not None
    assert (censored[0].stream_end_at_ns - log.t0_ns) / 1e9 == pytest.approx(13.0, abs=0.01)
    assert log.due_measured == 20


def test_what_max_in_flight_holds_back_is_recorded_as_shed() -> None:
    plan = schedule([0.1 * i for i in range(10)], duration_s=1.0, cooldown_s=30.0)
    _, records, adapter = measure(plan, lambda n: 20.0, max_in_flight=4)
    assert len(adapter.sent_at_ns) == 4
    assert sum(record.status == "shed" for record in records) == 6


def test_an_interrupted_point_keeps_what_was_measured() -> None:
    async def main() -> tuple[list[PointLog], list[RequestRecord]]:
        async with virtual_time() as clock:
            run = a_run(schedule([0.5 * i for i in range(20)]), FakeAdapter(clock, lambda n: 0.6), clock)
            sink = run.sink
            assert isinstance(sink, MemorySink)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run_open_loop, run)
                await clock.sleep_until_ns(clock.now_ns() + 3_200_000_000)
                tasks.cancel_scope.cancel()
            return sink.logs, sink.records

    logs, records = anyio.run(main)
    assert [log.interrupted for log in logs] == [True]
    assert sum(record.status == "ok" for record in records) == 6
    assert sum(record.status == "unfinished" for record in records) == 1


def test_in_flight_mean_is_rate_times_residence() -> None:
    plan = schedule([0.1 * i for i in range(200)], warmup_s=2.0, duration_s=10.0, cooldown_s=8.0)
    log, _, _ = measure(plan, lambda n: 1.5)
    assert log.in_flight_mean == pytest.approx(15.0, abs=0.01)
    assert log.in_flight_bins[50] == pytest.approx(15.0, abs=0.01)
