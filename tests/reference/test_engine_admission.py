"""Admission in simulated time: who is refused is told when to come back, and is let in when it does."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import pytest

from engine_adapters.reference.admission import AdmissionControl, Refused, TokenBucket
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


def crowd_and_crowd_again(seed: int) -> list[float]:
    return sorted(poisson(0.6 * CAPACITY_RPS, 60.0, seed) + [10.0 + i * 1e-4 for i in range(1500)])


@pytest.mark.parametrize("patience", [1.0, 0.5])
@pytest.mark.parametrize("load", [1.1, 1.5, 3.0])
def test_under_lasting_overload_too_who_comes_back_on_time_is_let_in(load: float, patience: float) -> None:
    outcome = simulate(CONFIG, poisson(load * CAPACITY_RPS, 40.0, seed=4), 4, patience)
    assert outcome.came_back > 50
    assert outcome.let_in >= 0.9 * outcome.came_back


def test_a_crowd_that_comes_back_amid_others_is_let_in() -> None:
    outcome = simulate(CONFIG, crowd_and_crowd_again(5), 5)
    assert outcome.came_back > 1000
    assert outcome.let_in >= 0.9 * outcome.came_back


@pytest.mark.parametrize("patience", [0.0, 0.5, 1.0])
def test_places_that_are_held_cost_no_throughput(patience: float) -> None:
    # The last of the patient come a tenth more slowly than the engine could take them, when nobody else is left.
    outcome = simulate(CONFIG, poisson(1.5 * CAPACITY_RPS, 60.0, seed=6), 6, patience)
    assert outcome.n_done / outcome.ended_at_s > 0.88 * CAPACITY_RPS


def test_where_nobody_comes_back_nobody_is_told_to_wait_behind_the_others() -> None:
    longest_s = {p: max(simulate(CONFIG, poisson(3.0 * CAPACITY_RPS, 30.0, 8), 8, p).told_s) for p in (0.0, 1.0)}
    assert longest_s[0.0] < 15 < 45 < longest_s[1.0]


def test_the_rate_limit_holds_and_who_comes_back_on_time_passes_it() -> None:
    config = EngineConfig(max_num_seqs=32, max_waiting=96, rate_limit_rps=20.0, rate_limit_burst=40)
    outcome = simulate(config, poisson(CAPACITY_RPS, 40.0, seed=7), 7)
    assert outcome.let_in >= 0.9 * outcome.came_back
    assert outcome.n_done <= 40 + 20.0 * (outcome.ended_at_s + 1.0)
    assert outcome.n_done / outcome.ended_at_s > 0.9 * 20.0


def test_retry_after_follows_the_queued_work_and_the_speed_of_late() -> None:
    def told_s(n_tokens: int, tokens_per_s: int) -> int:
        clock = FakeClock()
        door = AdmissionControl(EngineConfig(max_num_seqs=4, max_waiting=4), clock)
        for i in range(8):
            door.enter(i, n_tokens)
        for _ in range(20):
            clock.now_s += 1.0
            door.work_off(tokens_per_s)
        with pytest.raises(Refused) as refused:
            door.enter("late", n_tokens)
        return refused.value.retry_after_s

    assert told_s(1000, 400) == 10, "a batch of four needs 4,000 tokens"
    assert told_s(2000, 400) == 20
    assert told_s(1000, 4000) == 1


def test_who_comes_early_is_a_newcomer_and_who_comes_late_has_missed_it() -> None:
    clock = FakeClock()
    door = AdmissionControl(EngineConfig(max_num_seqs=1, max_waiting=1), clock)
    door.enter("a", 10)
    door.enter("b", 10)
    with pytest.raises(Refused) as refused:
        door.enter("c", 10)
    due_s = clock.now_s + refused.value.retry_after_s
    door.leave(10)
    clock.now_s = due_s - 0.5
    for key in ("c", "d"):
        with pytest.raises(Refused):
            door.enter(key, 10)  # the place is held for c, who is early
    clock.now_s = due_s
    door.enter("c", 10)
    assert (door.stats.kept, door.stats.kept_in_vain) == (1, 0)
    door.leave(10)
    clock.now_s += 60.0
    door.enter("e", 10)  # whom the second refusals of c and d no longer hold off


def test_an_idle_slot_is_held_for_nobody() -> None:
    door = AdmissionControl(EngineConfig(max_num_seqs=2, max_waiting=0), FakeClock())
    door.enter("a", 10)
    door.enter("b", 10)
    for key in "cdef":
        with pytest.raises(Refused):
            door.enter(key, 10)
    door.leave(10)
    door.enter("newcomer", 10)
    assert door.stats.admitted == 3


def test_the_speed_of_an_engine_with_idle_slots_says_nothing_about_a_crowd() -> None:
    clock = FakeClock()
    door = AdmissionControl(EngineConfig(max_num_seqs=4, max_waiting=0), clock)
    door.enter("alone", 1000)
    for _ in range(20):
        clock.now_s += 1.0
        door.work_off(5000)
    for key in "abc":
        door.enter(key, 1000)
    with pytest.raises(Refused) as refused:
        door.enter("d", 1000)
    assert refused.value.retry_after_s == 2, "what is assumed of a batch, as long as none has been seen"
    clock.now_s += 1.0
    door.work_off(50)
    with pytest.raises(Refused) as refused:
        door.enter("e", 1000)
    assert refused.value.retry_after_s == pytest.approx(80, abs=5), "4,000 tokens at 50 a second"


def test_a_token_of_somebody_who_did_not_come_back_is_free_again() -> None:
    clock = FakeClock()
    door = AdmissionControl(EngineConfig(rate_limit_rps=1.0, rate_limit_burst=1), clock)
    door.enter("a", 10)
    for key in "bcd":
        with pytest.raises(Refused):
            door.enter(key, 10)
    clock.now_s += 3.2  # b and c should have been here 1 and 2 s after their refusal
    door.enter("e", 10)


def test_every_arrival_is_counted_once() -> None:
    clock = FakeClock()
    door = AdmissionControl(EngineConfig(max_num_seqs=2, max_waiting=1, rate_limit_rps=1.0, rate_limit_burst=2), clock)
    refusals: list[Refused] = []
    for i in range(10):
        try:
            door.enter(i, 10)
        except Refused as refused:
            refusals.append(refused)
    assert door.stats.admitted + len(refusals) == 10
    assert sum(door.stats.refused.values()) == len(refusals)
    assert {refused.reason for refused in refusals} == {"rate_limited", "queue_full"}
    assert all(refused.retry_after_s >= 1 for refused in refusals)


def test_a_token_bucket_has_a_capacity_and_a_rate_of_its_own() -> None:
    clock = FakeClock()
    bucket = TokenBucket(3, 2.0, clock)
    assert [bucket.reserve() for _ in range(5)] == [0.0, 0.0, 0.0, 0.5, 1.0]
    bucket.give_back()
    assert bucket.reserve() == 1.0
    clock.now_s += 1.0
    assert bucket.reserve() == 0.5, "both tokens of this second were promised"
    clock.now_s += 1000.0
    assert [bucket.reserve() for _ in range(4)] == [0.0, 0.0, 0.0, 0.5], "never more than its capacity at once"
