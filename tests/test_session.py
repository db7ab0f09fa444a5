"""What is found out before the ladder: how much text makes a token, and how much load the server bears."""

from __future__ import annotations

import json

import anyio
import pytest

from engine_adapters.base import Request, StreamOutcome
from loadgen.generator.clock import MonotonicClock
from loadgen.scenario.loader import load_scenario
from loadgen.scenario.prompts import TextUnit
from loadgen.session import ProbeError, Session, fit_unit, probe_server


class Server:
    """An adapter over a server with four slots of `service_s` each; tokens are the words' letters in threes."""

    def __init__(
        self, service_s: float = 0.02, max_words: int = 10_000, usage: bool = True, fails: bool = False
    ) -> None:
        self.service_s, self.max_words, self.usage, self.fails = service_s, max_words, usage, fails
        self.slots = anyio.Semaphore(4)

    def encode(self, request: Request) -> bytes:
        return json.dumps(request.prompt).encode()

    async def stream(self, body: bytes, request_id: str, outcome: StreamOutcome) -> None:
        clock = MonotonicClock()
        outcome.sent_at_ns = clock.now_ns()
        words = json.loads(body).split()
        if self.fails or len(words) > self.max_words:
            outcome.error_class, outcome.error = "http_status", "HTTP 400: too long"
            return
        async with self.slots:
            await anyio.sleep(self.service_s)
        outcome.first_token_at_ns = outcome.last_token_at_ns = outcome.stream_end_at_ns = clock.now_ns()
        outcome.n_token_events = 1
        if self.usage:
            outcome.prompt_tokens = sum(-(-len(word) // 3) for word in words) + 7

    async def warm(self, n_connections: int) -> None: ...

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("max_words", [10_000, 200])
def test_the_text_unit_is_learnt_also_from_a_server_with_a_short_context(max_words: int) -> None:
    unit, note = anyio.run(fit_unit, Server(0.0, max_words))
    assert note is None
    assert unit.kind == "word"
    assert unit.overhead_tokens == 7
    assert 1.5 < unit.tokens_per_unit < 2.2


def test_without_usage_lengths_are_said_to_be_estimates() -> None:
    unit, note = anyio.run(fit_unit, Server(0.0, usage=False))
    assert unit == TextUnit("word", 1.0, 0.0)
    assert note is not None
    assert "estimates" in note


def probed(server: Server) -> tuple[float, float]:
    async def main() -> tuple[float, float]:
        scenario = load_scenario("smoke")
        probe = await probe_server(Session(scenario, server, TextUnit("word", 1.0, 0.0), "s", "r"))
        return probe.light_residence_s, probe.flood_rps

    return anyio.run(main)


def test_the_probe_finds_residence_and_capacity() -> None:
    residence_s, flood_rps = probed(Server(0.05))
    assert 0.05 <= residence_s < 0.5
    assert flood_rps < 4 / 0.05 * 1.01  # four slots of 50 ms: never more than 80 a second
    assert flood_rps > 20


def test_a_server_that_answers_nothing_stops_the_probe_with_its_error() -> None:
    with pytest.raises(ProbeError, match="too long"):
        probed(Server(fails=True))
