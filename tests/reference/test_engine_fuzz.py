"""The engine core under random configurations and histories, against an oracle that reads every context back."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from support.oracle import N_WORDS, OracleExecutor, drawn, expected_output

from engine_adapters.reference.config import MODELS, EngineConfig
from engine_adapters.reference.engine import EngineCore
from engine_adapters.reference.executors.numpy import NumpyExecutor
from engine_adapters.reference.request import Request
from engine_adapters.reference.scheduler import Scheduler
from engine_adapters.reference.weights import random_weights

N_SHARDS, CONFIGS_A_SHARD = 12, 100
MODEL = dataclasses.replace(MODELS["tiny"], num_hidden_layers=1)
WEIGHTS = random_weights(MODEL, seed=2)


def random_config(rng: random.Random) -> EngineConfig:
    size, num_blocks = rng.randint(1, 8), rng.randint(2, 14)
    return EngineConfig(
        max_num_seqs=rng.randint(1, 8),
        max_num_batched_tokens=rng.randint(1, 60),
        block_size=size,
        num_blocks=num_blocks,
        max_model_len=max(size * num_blocks // rng.choice([1, 1, 2, 3]), 2),
        long_prefill_token_threshold=rng.choice([0, 0, 1, 5, 16]),
        enable_prefix_caching=rng.random() < 0.8,
        policy=rng.choice(["fcfs", "priority"]),
        admission=rng.choice(["on_demand", "on_demand", "on_demand", "reserve"]),
        num_speculative_tokens=rng.choice([0, 0, 1, 3]),
    )


def check_blocks(scheduler: Scheduler) -> None:
    """Each block is free or held by exactly those whose table names it, and each request holds what it needs."""
    config, pool = scheduler.config, scheduler.pool
    held = Counter(block for request in scheduler.running for block in request.block_ids)
    assert pool.ref_counts == [held[block] for block in range(pool.num_blocks)]
    assert set(pool._free) == set(range(pool.num_blocks)) - set(held)
    assert {block: h for h, block in pool._block_of.items()} == {b: h for b, h in enumerate(pool._hash_of) if h}
    reserved = config.max_model_len if config.admission == "reserve" else 0
    for request in scheduler.running:
        assert len(set(request.block_ids)) == len(request.block_ids)
        least = -(-max(request.num_computed_tokens, reserved) // config.block_size)
        most = -(-max(len(request.token_ids) + config.num_speculative_tokens, reserved) // config.block_size)
        assert least <= len(request.block_ids) <= most
    assert all(not request.block_ids and not request.num_computed_tokens for request in scheduler.waiting)
    assert len(scheduler.running) + len(scheduler.waiting) == len(scheduler.requests)


def check_order(scheduler: Scheduler) -> None:
    running, waiting = [r.rank for r in scheduler.running], [r.rank for r in scheduler.waiting]
    assert running == sorted(running)
    assert waiting == sorted(waiting)
    assert len(running) <= scheduler.config.max_num_seqs
    if scheduler.config.policy == "fcfs" and running and waiting:
        assert running[-1] < waiting[0], "nobody overtakes"


@dataclass
class History:
    """One configuration with requests that come, are aborted and fail at random."""

    rng: random.Random
    config: EngineConfig
    seen: Counter[str] = field(default_factory=Counter)
    added: list[Request] = field(default_factory=list)
    streamed: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.executor = OracleExecutor(self.config.block_size, self.config.num_blocks)
        self.core = EngineCore(self.config, self.executor, self.guess)
        self.stems = [[self.rng.randrange(N_WORDS) for _ in range(self.config.max_model_len)] for _ in range(2)]

    def guess(self, request: Request, n_tokens: int) -> Sequence[int]:
        """Sometimes right, sometimes wrong, sometimes more than was asked for."""
        tokens = list(request.token_ids)
        for _ in range(self.rng.randint(0, n_tokens + 1)):
            tokens.append(drawn(tokens, False) if self.rng.random() < 0.7 else 1)
        return tokens[len(request.token_ids) :]

    def add(self) -> None:
        n_prompt = self.rng.randint(1, self.config.max_model_len - 1)
        n_shared = self.rng.randint(0, n_prompt)
        own = [self.rng.randrange(N_WORDS) for _ in range(n_prompt - n_shared)]
        max_tokens = self.rng.randint(1, self.config.max_model_len - n_prompt)
        request = Request(str(len(self.added)), self.rng.choice(self.stems)[:n_shared] + own, max_tokens)
        request.ignore_eos, request.priority = self.rng.random() < 0.7, self.rng.randrange(3)
        self.core.add(request)
        self.added.append(request)
        self.streamed[request.request_id] = []

    def step(self) -> None:
        scheduler, stats = self.core.scheduler, self.core.scheduler.stats
        before, n_preempted = set(scheduler.running), stats.num_preemptions
        self.executor.fails = self.rng.random() < 0.01
        results = self.core.step()
        output = self.executor.last
        assert output.scheduled, "a step with work must do some: no deadlock"
        assert output.total_num_scheduled_tokens <= self.config.max_num_batched_tokens
        assert stats.num_preemptions - n_preempted == len(output.preempted)
        if output.preempted:
            assert not output.admitted, "nothing is admitted beside a preemption"
            assert all(item.request in before for item in output.scheduled)
        for item in output.scheduled:
            assert item.num_tokens > len(item.draft_token_ids)
            if not item.is_decode and self.config.long_prefill_token_threshold:
                assert item.num_tokens <= self.config.long_prefill_token_threshold
        for result in results:
            self.streamed[result.request_id] += result.token_ids
        if self.executor.fails:
            assert {r.request for r in results} == {item.request for item in output.scheduled}
            assert all(r.finish_reason == r.request.finish_reason == "error" for r in results)

    def run(self, n_requests: int) -> None:
        scheduler = self.core.scheduler
        for _ in range(4000):
            if len(self.added) < n_requests and (self.rng.random() < 0.4 or not scheduler.has_work):
                self.add()
            if scheduler.has_work and self.rng.random() < 0.04:
                self.core.abort(self.rng.choice(list(scheduler.requests)))
            if self.rng.random() < 0.005:
                scheduler.pool.forget_all()
            if scheduler.has_work:
                self.step()
            elif len(self.added) == n_requests:
                break
            check_blocks(scheduler)
            check_order(scheduler)
        self.check_end()

    def check_end(self) -> None:
        scheduler, stats = self.core.scheduler, self.core.scheduler.stats
        assert not scheduler.has_work
        assert scheduler.pool.num_free_blocks == self.config.num_blocks
        for request in self.added:
            expected = expected_output(request.prompt_token_ids, request.max_tokens, request.ignore_eos)
            assert self.streamed[request.request_id] == request.output_token_ids
            assert request.output_token_ids == expected[: request.num_output_tokens]
            if request.finish_reason in ("stop", "length"):
                assert request.output_token_ids == expected
                assert request.finish_reason == ("length" if len(expected) == request.max_tokens else "stop")
        ends = Counter(request.finish_reason for request in self.added)
        assert stats.finished == {reason: ends[reason] for reason in stats.finished}
        if self.config.admission == "reserve":
            assert not stats.num_preemptions, "who has reserved is never preempted"
        self.seen.update(
            preemptions=stats.num_preemptions,
            hit_tokens=stats.prefix_cache_hits,
            evictions=scheduler.pool.num_evictions,
            accepted=stats.num_accepted_tokens,
            rejected=stats.num_draft_tokens - stats.num_accepted_tokens,
            requests=len(self.added),
            aborts=stats.finished["abort"],
            errors=stats.finished["error"],
        )


@pytest.mark.usefixtures("capfd")
@pytest.mark.parametrize("shard", range(N_SHARDS))
def test_every_block_is_accounted_for_and_every_answer_is_that_of_a_batch_of_one(shard: int) -> None:
    seen: Counter[str] = Counter()
    for number in range(CONFIGS_A_SHARD):
        rng = random.Random(shard * CONFIGS_A_SHARD + number)
        history = History(rng, random_config(rng))
        try:
            history.run(rng.randint(1, 16))
        except AssertionError as error:
            raise AssertionError(f"seed {shard * CONFIGS_A_SHARD + number}: {history.config}") from error
        seen.update(history.seen)
    rare = {"errors": 5, "aborts": 20, "preemptions": 30}
    too_few = {what: n for what, n in seen.items() if n < rare.get(what, 100)}
    assert not too_few, "the histories must reach all of this"


def numpy_answers(config: EngineConfig, prompts: Sequence[list[int]], rng: random.Random) -> tuple[list[Request], int]:
    """Requests answered by a real model, coming one by one; and how many preemptions that took."""
    core = EngineCore(config, NumpyExecutor(MODEL, config, WEIGHTS))
    requests = [Request(str(i), prompt, 24, ignore_eos=True) for i, prompt in enumerate(prompts)]
    coming = list(requests)
    while coming or core.scheduler.has_work:
        if coming and (rng.random() < 0.5 or not core.scheduler.has_work):
            core.add(coming.pop(0))
        core.step()
        check_blocks(core.scheduler)
    return requests, core.scheduler.stats.num_preemptions


def test_a_real_model_answers_as_in_a_batch_of_one_whatever_is_shared_cut_or_computed_again() -> None:
    draw, rng = np.random.default_rng(11), random.Random(11)
    stems = [draw.integers(0, MODEL.vocab_size, 60).tolist() for _ in range(2)]
    prompts = [
        stem[: 20 + 8 * i] + draw.integers(0, MODEL.vocab_size, 5 + i).tolist() for i in range(5) for stem in stems
    ]
    plain = EngineConfig(max_num_seqs=1, max_num_batched_tokens=512, max_model_len=128, enable_prefix_caching=False)
    expected = [request.output_token_ids for request in numpy_answers(plain, prompts, rng)[0]]
    n_preemptions = n_cached_tokens = 0
    for _ in range(4):
        size = rng.choice([4, 8, 16])
        config = EngineConfig(
            max_num_seqs=rng.randint(2, 8),
            max_num_batched_tokens=rng.randint(8, 80),
            block_size=size,
            num_blocks=rng.randint(140, 300) // size,
            max_model_len=128,
            long_prefill_token_threshold=rng.choice([0, 7]),
            policy=rng.choice(["fcfs", "priority"]),
        )
        requests, n_more = numpy_answers(config, prompts, rng)
        assert [request.output_token_ids for request in requests] == expected
        n_preemptions += n_more
        n_cached_tokens += sum(request.num_cached_tokens for request in requests)
    assert n_preemptions > 5
    assert n_cached_tokens > 500
