"""Admission in simulated time: who is refused is told when to come back, and is let in when it does."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import pytest

from engine_adapters.reference.admission import AdmissionControl, Refused
from engine_adapters.reference.config import EngineConfig

ROUND_TRIP_S = 0.03


class FakeClock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Outcome:
    """What happened in one simulation."""

    came_back: int = 0
    let_in: int = 0
    n_done: int = 0
    busy_slot_s: float = 0.0
    told_s: Counter[int] = field(default_factory=Counter)
    ended_at_s: float = 0.0


def simulate(
    config: EngineConfig, arrivals_s: list[float], seed: int, patience: float = 1.0, token_s: float = 0.004
) -> Outcome:
    """A server of max_num_seqs slots with lognormal answers; each refused client comes back with probability
    `patience` at the instant that it was told, a round trip later, as often as it takes."""
    rng, clock, order, outcome = random.Random(seed), FakeClock(), count(), Outcome()
    door = AdmissionControl(config, clock)
    events: list[tuple[float, int, str, int, int]] = []
    queue, running = deque[int](), 0

    def at(delay_s: float, what: str, client: int, visit: int = 0) -> None:
        heappush(events, (clock.now_s + delay_s, next(order), what, client, visit))

    def start_some() -> None:
        nonlocal running
        while queue and running < config.max_num_seqs:
            running += 1
            client = queue.popleft()
            at(tokens[client] * token_s, "end", client)

    tokens = [20 + int(rng.lognormvariate(4.5, 0.6)) for _ in arrivals_s]
    for client, arrival_s in enumerate(arrivals_s):
        at(arrival_s, "arrive", client)
    while events:
        last_s = clock.now_s
        clock.now_s, _, what, client, visit = heappop(events)
        outcome.busy_slot_s += running * (clock.now_s - last_s)
        if what == "end":
            running -= 1
            outcome.n_done += 1
            outcome.ended_at_s = clock.now_s - 100.0
            door.work_off(tokens[client])
            door.leave(tokens[client])
        else:
            outcome.came_back += visit
            try:
                door.enter(client, tokens[client])
            except Refused as refused:
                outcome.told_s[refused.retry_after_s] += 1
                if rng.random() < patience:
                    at(refused.retry_after_s + rng.uniform(0.0, ROUND_TRIP_S), "arrive", client, 1)
            else:
                outcome.let_in += visit
                queue.append(client)
        start_some()
    return outcome


def poisson(rate_rps: float, duration_s: float, seed: int) -> list[float]:
    rng, at_s, arrivals = random.Random(seed), 0.0, []
    while (at_s := at_s + rng.expovariate(rate_rps)) < duration_s:
        arrivals.append(at_s)
    return arrivals


CONFIG = EngineConfig(max_num_seqs=32, max_waiting=96)
CAPACITY_RPS = 32 / (0.004 * 128)  # slots / (mean tokens x seconds a token)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("warm_s", [0.0, 10.0])
def test_a_crowd_that_comes_back_as_told_is_let_in_and_does_not_come_back_together(warm_s: float, seed: int) -> None:
    crowd = [warm_s + i * 1e-4 for i in range(3000)]
    outcome = simulate(CONFIG, sorted(poisson(0.5 * CAPACITY_RPS, warm_s or 1e-9, seed) + crowd), seed)
    assert outcome.came_back > 2000
    assert outcome.let_in >= 0.9 * outcome.came_back
    assert max(outcome.told_s.values()) < 0.1 * 3000
