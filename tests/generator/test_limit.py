"""The client's own limit: capacity and refill are two things, and the delay is recorded and never the server's."""

from __future__ import annotations

import anyio
import pytest
from support.fakes import FakeAdapter, schedule
from support.virtual_time import virtual_time

from loadgen.collectors.records import PointLog, RequestRecord
from loadgen.generator.limit import TokenBucket
from loadgen.generator.open_loop import run_open_loop
from loadgen.generator.point import MemorySink, PointRun

S = 1_000_000_000


def turns_s(bucket: TokenBucket, asked_s: list[float]) -> list[float]:
    return [bucket.turn_ns(round(at * S)) / S for at in asked_s]


def test_a_full_bucket_lets_its_burst_through_at_once_and_then_its_rate() -> None:
    assert turns_s(TokenBucket(10.0, 3), [100.0] * 6) == pytest.approx([100, 100, 100, 100.1, 100.2, 100.3])


def test_an_idle_bucket_fills_up_to_its_burst_and_no_further() -> None:
    bucket = TokenBucket(10.0, 2)
    turns_s(bucket, [1.0] * 5)
    assert turns_s(bucket, [500.0] * 3) == pytest.approx([500, 500, 500.1])


def test_capacity_does_not_raise_the_long_run_rate() -> None:
    for burst in (1, 50):
        turns = turns_s(TokenBucket(20.0, burst), [0.0] * 1000)
        assert (1000 - burst) / (turns[-1] - turns[0]) == pytest.approx(20.0)


def test_a_load_below_the_rate_is_never_delayed() -> None:
    asked = [0.1 * i for i in range(100)]
    assert turns_s(TokenBucket(10.0, 1), asked) == pytest.approx(asked)


def limited(bucket: TokenBucket, at_s: list[float], cooldown_s: float = 5.0) -> tuple[PointLog, list[RequestRecord]]:
    async def main() -> tuple[PointLog, list[RequestRecord]]:
        async with virtual_time() as clock:
            sink = MemorySink()
            plan = schedule(at_s, duration_s=2.0, cooldown_s=cooldown_s)
            run = PointRun(plan, [b"x"] * len(at_s), FakeAdapter(clock), clock, sink, "test", bucket=bucket)
            return await run_open_loop(run), sorted(sink.records, key=lambda r: r.index)

    return anyio.run(main)


def test_the_delay_is_recorded_counts_from_intended_and_not_from_sent() -> None:
    _, records = limited(TokenBucket(2.0, 1), [0.0, 0.0, 0.0])
    delays = [record.limit_delay_ns / S for record in records]
    assert delays == pytest.approx([0, 0.5, 1.0])
    for record, delay in zip(records, delays, strict=True):
        assert record.dispatched_at_ns is not None
        assert record.first_token_at_ns is not None
        assert record.sent_at_ns is not None
        assert (record.dispatched_at_ns - record.intended_at_ns) / S == pytest.approx(delay)
        assert (record.first_token_at_ns - record.intended_at_ns) / S == pytest.approx(delay + 0.1)
        assert (record.first_token_at_ns - record.sent_at_ns) / S == pytest.approx(0.1)


def test_a_request_that_waits_for_its_turn_is_not_in_flight() -> None:
    log, _ = limited(TokenBucket(2.0, 1), [0.0, 0.0, 0.0])
    assert log.in_flight_max == 1
    assert log.in_flight_mean == pytest.approx(3 * 0.1 / 2.0)


def test_a_request_that_never_got_its_turn_is_unfinished_and_not_sent() -> None:
    log, records = limited(TokenBucket(0.1, 1), [0.0, 0.0], cooldown_s=1.0)
    assert [record.status for record in records] == ["ok", "unfinished"]
    assert (records[1].dispatched_at_ns, records[1].sent_at_ns) == (None, None)
    assert log.in_flight_max == 1
