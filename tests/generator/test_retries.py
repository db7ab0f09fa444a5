"""A rejected request fails, or comes back when it was told to: every attempt and every wait is on record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from support.fakes import FakeAdapter, schedule
from support.virtual_time import VirtualClock, virtual_time

from engine_adapters.base import StreamOutcome
from loadgen.collectors.records import PointLog, RequestRecord
from loadgen.generator.open_loop import run_open_loop
from loadgen.generator.point import MemorySink, PointRun

S = 1_000_000_000


@dataclass
class Rejecting(FakeAdapter):
    """Turns the first requests away, each with its advice in seconds (None: without); each refusal takes 10 ms."""

    clock: VirtualClock
    advice_s: Sequence[float | None]

    def __post_init__(self) -> None:
        super().__init__(self.clock)

    async def stream(self, body: bytes, request_id: str, outcome: StreamOutcome) -> None:
        if len(self.sent_at_ns) >= len(self.advice_s):
            await super().stream(body, request_id, outcome)
            return
        advised_s = self.advice_s[len(self.sent_at_ns)]
        outcome.sent_at_ns = self.clock.now_ns()
        self.sent_at_ns.append(outcome.sent_at_ns)
        await self.clock.sleep_until_ns(outcome.sent_at_ns + S // 100)
        outcome.stream_end_at_ns = self.clock.now_ns()
        outcome.http_status, outcome.advised_wait_s = 429, advised_s
        outcome.fail("rejected", "HTTP 429: slow down")


def one_request(*advice_s: float | None, cooldown_s: float = 60.0, **options: Any) -> tuple[PointLog, RequestRecord]:
    async def main() -> tuple[PointLog, RequestRecord]:
        async with virtual_time() as clock:
            sink, plan = MemorySink(), schedule([0.0], duration_s=1.0, cooldown_s=cooldown_s)
            run = PointRun(plan, [b"x"], Rejecting(clock, advice_s), clock, sink, "test", **options)
            log = await run_open_loop(run)
            return log, sink.records[0]

    return anyio.run(main)


def seconds(end_ns: int | None, begin_ns: int | None) -> float:
    assert end_ns is not None
    assert begin_ns is not None
    return (end_ns - begin_ns) / S


def test_by_default_nothing_is_sent_again() -> None:
    _, record = one_request(1.0)  # case B69, retry off
    assert (record.status, record.error_class, record.http_status) == ("failed", "rejected", 429)
    assert (record.n_attempts, record.n_rejections, record.advised_wait_s) == (1, 1, 1.0)


def test_the_wait_counts_from_intended_and_the_last_attempt_from_its_own_send() -> None:
    _, record = one_request(1.0, on_429="wait")  # case B69, retry on
    assert (record.status, record.n_attempts, record.n_rejections) == ("ok", 2, 1)
    assert seconds(record.last_token_at_ns, record.intended_at_ns) == pytest.approx(1.11)
    assert seconds(record.last_token_at_ns, record.sent_at_ns) == pytest.approx(0.1)
    assert seconds(record.sent_at_ns, record.first_rejected_at_ns) == pytest.approx(1.0)


def test_nobody_comes_back_early_and_each_advice_is_followed_in_turn() -> None:
    _, record = one_request(1.0, 2.0, 0.5, on_429="wait")
    assert (record.status, record.n_attempts, record.n_rejections) == ("ok", 4, 3)
    assert record.advised_wait_s == 1.0
    assert seconds(record.sent_at_ns, record.first_rejected_at_ns) == pytest.approx(1.0 + 2.0 + 0.5 + 2 * 0.01)


@pytest.mark.parametrize(("advice_s", "options"), [(None, {}), (1e6, {}), (5.0, {"patience_s": 4.0})])
def test_without_an_advice_or_with_one_beyond_its_time_a_request_fails(
    advice_s: float | None, options: dict[str, float]
) -> None:
    _, record = one_request(advice_s, on_429="wait", **options)
    assert (record.status, record.error_class, record.n_attempts) == ("failed", "rejected", 1)


def test_the_one_that_still_waits_at_the_end_is_unfinished() -> None:
    log, record = one_request(30.0, cooldown_s=2.0, on_429="wait")
    assert (record.status, record.n_attempts, record.n_rejections) == ("unfinished", 2, 1)
    assert record.error_class is None
    assert record.stream_end_at_ns == pytest.approx(log.closed_at_ns)


def test_a_request_that_waits_to_come_back_is_in_flight() -> None:
    log, _ = one_request(0.2, on_429="wait")
    assert log.in_flight_mean == pytest.approx(0.31, abs=0.01)
