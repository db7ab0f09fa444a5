"""An adapter without a network: answers after a service time that the test chooses, on the test's clock."""

from __future__ import annotations

from collections.abc import Callable

from engine_adapters.base import Request, StreamOutcome
from loadgen.generator.clock import Clock
from loadgen.scenario.schedule import PlannedRequest, PointSchedule


class FakeAdapter:
    """One token after `service_s(n)` seconds for the n-th request; logs the instant of every send."""

    def __init__(self, clock: Clock, service_s: Callable[[int], float] = lambda n: 0.1) -> None:
        self.clock = clock
        self.service_s = service_s
        self.sent_at_ns: list[int] = []

    def encode(self, request: Request) -> bytes:
        return request.prompt.encode()

    async def stream(self, body: bytes, request_id: str, outcome: StreamOutcome) -> None:
        now_ns = self.clock.now_ns()
        outcome.sent_at_ns = now_ns
        self.sent_at_ns.append(now_ns)
        token_ns = now_ns + round(self.service_s(len(self.sent_at_ns) - 1) * 1e9)
        await self.clock.sleep_until_ns(token_ns)
        outcome.first_token_at_ns = outcome.first_answer_at_ns = outcome.last_token_at_ns = token_ns
        outcome.read_at_ns.append(token_ns)
        outcome.read_events.append(1)
        outcome.read_bytes.append(10)
        outcome.n_token_events = 1
        outcome.finish_reason = "length"
        outcome.stream_end_at_ns = token_ns

    async def warm(self, n_connections: int) -> None: ...

    async def close(self) -> None:
        pass


def schedule(
    at_s: list[float],
    warmup_s: float = 0.0,
    duration_s: float = 10.0,
    cooldown_s: float = 5.0,
    mode: str = "open",
    concurrency: int | None = None,
) -> PointSchedule:
    """A schedule with a request at each instant."""
    end_s = warmup_s + duration_s

    def phase(at: float) -> str:
        return "warmup" if at < warmup_s else "measured" if at < end_s else "cooldown"

    requests = tuple(
        PlannedRequest(index=i, at_s=at, phase=phase(at), prompt_tokens=8, output_tokens=1)  # type: ignore[arg-type]
        for i, at in enumerate(at_s)
    )
    rate = len(at_s) / (end_s + cooldown_s)
    return PointSchedule(0, mode, rate, concurrency, warmup_s, duration_s, requests, cooldown_s=cooldown_s)
