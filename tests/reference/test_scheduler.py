"""The scheduler against an oracle: every page holds the tokens that its sequence believes are there."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_adapters.reference.config import EngineConfig
from engine_adapters.reference.request import Request, TokenOutput
from engine_adapters.reference.scheduler import Scheduler, SchedulerOutput

EOS = 99


def next_token(token_ids: list[int]) -> int:
    """A "model": the next token follows from the whole context; now and then it is the end of sequence."""
    draw = random.Random(repr(token_ids)).randrange(120)
    return draw if draw < 90 else EOS


@dataclass
class OracleExecutor:
    """Writes token ids where a real executor writes keys, and reads the context back from there."""

    block_size: int
    pages: dict[int, int] = field(default_factory=dict)

    def execute(self, output: SchedulerOutput) -> list[list[int]]:
        return [self._step(item.request, item.num_tokens, item.samples) for item in output.scheduled]

    def _step(self, request: Request, num_tokens: int, samples: bool) -> list[int]:
        first, last = request.num_computed_tokens, request.num_computed_tokens + num_tokens
        slots = [request.block_ids[i // self.block_size] * self.block_size + i % self.block_size for i in range(last)]
        for position in range(first, last):
            self.pages[slots[position]] = request.token_ids[position]
        context = [self.pages[slot] for slot in slots]
        assert context == request.token_ids[:last]
        return [self._sampled(request, context)] if samples else []

    def _sampled(self, request: Request, context: list[int]) -> int:
        token = next_token(context)
        return 0 if token == EOS and not request.eos_allowed else token


def expected_output(prompt: list[int], max_tokens: int, ignore_eos: bool) -> list[int]:
    """The answer of a batch of one."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        token = next_token(tokens)
        if token == EOS:
            if not ignore_eos:
                break
            token = 0
        tokens.append(token)
    return tokens[len(prompt) :]


def check_blocks(scheduler: Scheduler) -> None:
    """Each block is free or held by exactly one request, and each request holds exactly what it needs."""
    size = scheduler.config.block_size
    held = [block for request in scheduler.requests.values() for block in request.block_ids]
    assert len(held) == len(set(held)) == scheduler.pool.num_blocks - scheduler.pool.num_free_blocks
    assert scheduler.pool.ref_counts == [int(block in held) for block in range(scheduler.pool.num_blocks)]
    for request in scheduler.running:
        assert len(request.block_ids) == -(-request.num_computed_tokens // size)
    assert all(not request.block_ids and not request.num_computed_tokens for request in scheduler.waiting)


def step(scheduler: Scheduler, executor: OracleExecutor) -> list[TokenOutput]:
    before, n_preemptions = list(scheduler.running), scheduler.stats.num_preemptions
    output = scheduler.schedule()
    if scheduler.stats.num_preemptions > n_preemptions:
        assert all(item.request in before for item in output.scheduled), "nothing is admitted beside a preemption"
    assert output.scheduled, "a step with work must do some: no deadlock"
    assert output.total_num_scheduled_tokens <= scheduler.config.max_num_batched_tokens
    assert len(scheduler.running) <= scheduler.config.max_num_seqs
    results = scheduler.update_from_output(output, executor.execute(output))
    check_blocks(scheduler)
    return results


configs = st.builds(
    lambda seqs, batched, size, blocks: EngineConfig(seqs, batched, size, blocks, max_model_len=size * blocks),
    st.integers(1, 8),
    st.integers(1, 40),
    st.integers(1, 8),
    st.integers(2, 14),
)


@settings(max_examples=250, deadline=None)
@given(configs, st.randoms(use_true_random=False))
def test_every_request_ends_with_the_tokens_of_a_batch_of_one(config: EngineConfig, rng: random.Random) -> None:
    scheduler, executor = Scheduler(config, frozenset({EOS})), OracleExecutor(config.block_size)
    pending, added, aborted = rng.randint(1, 12), list[Request](), set[str]()
    streamed: dict[str, list[int]] = {}
    for _ in range(4000):
        if pending and (rng.random() < 0.5 or not scheduler.has_work):
            n_prompt = rng.randint(1, config.max_model_len - 1)
            max_tokens = rng.randint(1, config.max_model_len - n_prompt)
            prompt = [rng.randrange(90) for _ in range(n_prompt)]
            request = Request(str(pending), prompt, max_tokens, ignore_eos=rng.random() < 0.7)
            scheduler.add(request)
            added.append(request)
            streamed[request.request_id] = []
            pending -= 1
        if scheduler.has_work and rng.random() < 0.05:
            victim = rng.choice(list(scheduler.requests))
            scheduler.abort(victim)
            aborted.add(victim)
            check_blocks(scheduler)
        if not scheduler.has_work:
            if not pending:
                break
            continue
        for result in step(scheduler, executor):
            streamed[result.request_id] += result.token_ids
    assert not scheduler.has_work
    assert scheduler.pool.num_free_blocks == config.num_blocks
    for request in added:
        expected = expected_output(request.prompt_token_ids, request.max_tokens, request.ignore_eos)
        assert streamed[request.request_id] == request.output_token_ids
        if request.request_id in aborted:
            assert request.output_token_ids == expected[: request.num_output_tokens]
        else:
            assert request.output_token_ids == expected
            assert request.finish_reason == ("length" if len(expected) == request.max_tokens else "stop")
    assert sum(scheduler.stats.finished.values()) == len(added)
    assert scheduler.stats.finished["abort"] == len(aborted)


def run_until_done(scheduler: Scheduler, executor: OracleExecutor) -> list[TokenOutput]:
    results = []
    while scheduler.has_work:
        results += step(scheduler, executor)
    return results


def test_preemption_takes_the_last_admitted_and_loses_no_token() -> None:
    config = EngineConfig(max_num_batched_tokens=64, block_size=4, num_blocks=6, max_model_len=24)
    scheduler, executor = Scheduler(config, frozenset({EOS})), OracleExecutor(4)
    requests = [Request(str(i), [i] * 8, 16, ignore_eos=True) for i in range(3)]
    for request in requests:
        scheduler.add(request)
    results = run_until_done(scheduler, executor)
    assert requests[0].num_preemptions == 0
    assert requests[2].num_preemptions > 0
    assert [len([r for r in results if r.request_id == str(i)]) for i in range(3)] == [16, 16, 16]
    assert [r.output_token_ids for r in requests] == [expected_output([i] * 8, 16, True) for i in range(3)]
    assert scheduler.stats.num_preemptions == sum(request.num_preemptions for request in requests)


def test_running_requests_go_before_waiting_ones_and_a_long_prompt_comes_in_chunks() -> None:
    scheduler = Scheduler(EngineConfig(max_num_batched_tokens=10, max_model_len=100), frozenset({EOS}))
    short, long = Request("short", [1] * 4, 20, ignore_eos=True), Request("long", [2] * 25, 20, ignore_eos=True)
    executor, shapes = OracleExecutor(16), []
    scheduler.add(short)
    scheduler.add(long)
    for _ in range(5):
        output = scheduler.schedule()
        shapes.append([(item.request.request_id, item.num_tokens, item.samples) for item in output.scheduled])
        scheduler.update_from_output(output, executor.execute(output))
    assert shapes == [
        [("short", 4, True), ("long", 6, False)],
        [("short", 1, True), ("long", 9, False)],
        [("short", 1, True), ("long", 9, False)],
        [("short", 1, True), ("long", 1, True)],
        [("short", 1, True), ("long", 1, True)],
    ]


def test_a_request_that_could_never_fit_is_refused() -> None:
    scheduler = Scheduler(EngineConfig(max_model_len=32), frozenset({EOS}))
    with pytest.raises(ValueError, match="max_model_len"):
        scheduler.add(Request("0", [1] * 20, 13))
    assert not scheduler.has_work


def test_min_tokens_holds_back_the_end_of_sequence() -> None:
    scheduler = Scheduler(EngineConfig(), frozenset({EOS}))
    request = Request("0", [1], 10, min_tokens=2)
    scheduler.add(request)
    ends = []
    for _ in range(3):
        output = scheduler.schedule()
        sampled = EOS if request.eos_allowed else 5
        ends += [result.finish_reason for result in scheduler.update_from_output(output, [[sampled]])]
    assert ends == [None, None, "stop"]
    assert request.output_token_ids == [5, 5]
