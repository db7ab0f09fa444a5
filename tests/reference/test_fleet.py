"""Virtual time: skipping decode steps changes nothing, routers do what they are named for, KV takes time to travel."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from support.simulated import deployment, drain, fleet, serve

from engine_adapters.reference.deployment import Speculation
from engine_adapters.reference.executors.simulated import Noise
from engine_adapters.reference.fleet import Answer, Fleet


def case(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A random fleet and a random load: preemption, prefix hits, chunks, caps, noise, routers, pools, aborts."""
    rng = Random(seed)
    engine = {
        "max_num_seqs": rng.choice([2, 8, 64]),
        "max_num_batched_tokens": rng.choice([64, 300, 2048]),
        "num_blocks": rng.choice([90, 150, 400, 3000]),
        "max_model_len": 1300,
        "enable_prefix_caching": rng.random() < 0.7,
    }
    config = {
        "engine": engine,
        "replicas": rng.choice([1, 1, 3]),
        "router": rng.choice(["round_robin", "least_loaded", "prefix_aware"]),
        "prefill_replicas": rng.choice([0, 0, 2]),
        "noise": rng.choice([Noise(), Noise(0.02, 0.1, seed)]),
    }
    load = {"rate_rps": rng.choice([3.0, 20.0, 80.0]), "abort_share": rng.choice([0.0, 0.2]), "n_prefixes": 4}
    return config, load


def as_data(answers: list[Answer]) -> list[tuple[int, list[int], list[int], int]]:
    return [(a.number, a.token_at_ns.tolist(), a.counts.tolist(), a.cached_tokens) for a in answers]


@pytest.mark.parametrize("seed", range(24))
def test_decode_steps_computed_together_give_every_instant_that_single_steps_give(seed: int) -> None:
    config, load = case(seed)
    results = []
    for skip in (True, False):
        server = fleet(**config, skip=skip)
        answers = serve(server, 60, seed=seed, **load)
        results.append((as_data(answers), server.n_steps, server.n_preemptions))
    assert results[0] == results[1]


def test_the_random_fleets_do_preempt_hit_prefixes_and_skip_steps() -> None:
    counts: Counter[str] = Counter()
    for seed in range(24):
        config, load = case(seed)
        server = fleet(**config)
        answers = serve(server, 60, seed=seed, **load)
        counts["preempted"] += server.n_preemptions > 0
        counts["hits"] += any(a.cached_tokens for a in answers)
        counts["aborted"] += len(answers) < 60
        engine_steps = sum(r.core.totals.n_steps for r in server.replicas)
        counts["skipped"] += engine_steps < server.n_steps / 2
    assert all(counts[name] >= 3 for name in ("preempted", "hits", "aborted", "skipped")), counts


def test_every_answer_is_complete_and_its_tokens_are_in_order() -> None:
    for answer in serve(fleet(deployment(speculation=Speculation(3, 0.6))), 40, 10.0):
        at_ns = answer.token_at_ns.tolist()
        assert at_ns == sorted(set(at_ns))
        assert not answer.counts or len(answer.counts) == len(at_ns)
    assert len(serve(fleet(), 40, 10.0)) == 40


def test_nothing_is_left_of_requests_that_ended_or_were_given_up() -> None:
    server = fleet(prefill_replicas=1, replicas=2)
    answers = serve(server, 80, 40.0, abort_share=0.5)
    assert 20 < len(answers) < 60
    given_up = sum(replica.core.scheduler.stats.finished["abort"] for replica in server.replicas)
    assert 0 < 80 - len(answers) - given_up < 10  # the others were given up while their KV travelled
    for replica in server.replicas:
        assert replica.n_unfinished == 0
        assert not replica.core.scheduler.has_work
        assert not any(replica.core.scheduler.pool.ref_counts)
        assert not replica.executor.received


def test_round_robin_gives_each_replica_as_many_and_least_loaded_follows_the_work() -> None:
    def steps(router: str) -> list[int]:
        server = fleet(replicas=2, router=router)
        for number in range(20):
            server.submit(number, 0, [number] * 10, 200 if number % 2 else 2)
            server.advance(0)
        drain(server)
        return [replica.core.scheduler.stats.generation_tokens for replica in server.replicas]

    assert max(steps("round_robin")) == 10 * 200
    work = []
    for router in ("round_robin", "least_loaded"):
        server = fleet(replicas=4, router=router)
        answers = serve(server, 200, 60.0, seed=3)
        work.append(sum(a.token_at_ns[-1] for a in answers))
    assert work[1] < work[0]


def test_a_prefix_aware_router_finds_more_of_the_prompts_in_the_cache() -> None:
    cached = {}
    for router in ("round_robin", "prefix_aware"):
        answers = serve(fleet(replicas=8, router=router), 120, 20.0, n_prefixes=8)
        cached[router] = sum(a.cached_tokens for a in answers)
    assert cached["prefix_aware"] > 1.5 * cached["round_robin"]


def test_a_prefix_that_everybody_has_does_not_end_on_one_replica() -> None:
    server = fleet(replicas=4, router="prefix_aware")
    serve(server, 200, 200.0, n_prefixes=1)
    shares = [replica.core.scheduler.stats.generation_tokens for replica in server.replicas]
    assert min(shares) > 0.1 * sum(shares)


def lone(server: Fleet, n_prompt: int = 800) -> Answer:
    server.submit(7, 0, list(range(n_prompt)), 5)
    (answer,) = drain(server)
    return answer


def test_with_a_prefill_pool_the_first_token_waits_for_the_kv_to_travel() -> None:
    engine = {"max_num_batched_tokens": 2048}
    together, apart = lone(fleet(engine=engine)), lone(fleet(engine=engine, prefill_replicas=1))
    d = deployment()
    travels_ns = d.transfer_s(800) * 1e9
    step_ns = together.token_at_ns[1] - together.token_at_ns[0]
    extra_ns = apart.token_at_ns[0] - together.token_at_ns[0]
    assert extra_ns == pytest.approx(travels_ns + step_ns, rel=0.01)
    assert len(apart.token_at_ns) == len(together.token_at_ns) == 5


def test_a_prefill_pool_keeps_prompts_out_of_other_users_decodes() -> None:
    def longest_gap_ns(**pools: int) -> int:
        engine = {"max_num_batched_tokens": 2048}
        answers = serve(fleet(engine=engine, **pools), 100, 15.0)
        gaps = [b - a for answer in answers for a, b in zip(answer.token_at_ns, answer.token_at_ns[1:], strict=False)]
        return max(gaps)

    assert longest_gap_ns(replicas=1, prefill_replicas=1) < 0.5 * longest_gap_ns(replicas=2)
