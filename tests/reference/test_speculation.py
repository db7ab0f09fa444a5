"""n-gram speculation: guesses are what followed before, and they change the number of steps, never a token."""

from __future__ import annotations

import dataclasses
import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_adapters.reference import ngram
from engine_adapters.reference.config import MODELS, EngineConfig
from engine_adapters.reference.engine import EngineCore
from engine_adapters.reference.executors.numpy import NumpyExecutor
from engine_adapters.reference.request import Request, SamplingParams
from engine_adapters.reference.scheduler import ScheduledRequest
from engine_adapters.reference.weights import Weights, random_weights

MODEL = dataclasses.replace(MODELS["tiny"], num_hidden_layers=1, hidden_size=64, intermediate_size=96)
TOKENS = st.lists(st.integers(0, 3), max_size=60)


@cache
def weights() -> Weights:
    """Weights whose greedy answers soon go round in circles: with a weak context the last tokens decide."""
    made = random_weights(MODEL, seed=1)
    return dataclasses.replace(made, embedding=made.embedding * np.float32(3.0), head=made.head * np.float32(3.0))


def plain_propose(token_ids: list[int], num_drafts: int) -> list[int]:
    """The same, tried at every place for every length."""
    for length in range(min(ngram.MAX_MATCH, len(token_ids) - 1), ngram.MIN_MATCH - 1, -1):
        last = token_ids[-length:]
        for end in range(length, len(token_ids)):
            if token_ids[end - length : end] == last:
                return token_ids[end : end + num_drafts]
    return []


@given(TOKENS, st.integers(0, 6))
def test_a_guess_is_what_followed_the_earliest_of_the_longest_matches(token_ids: list[int], num_drafts: int) -> None:
    assert ngram.propose(token_ids, num_drafts) == plain_propose(token_ids, num_drafts)


def answers(
    num_drafts: int, prompts: list[list[int]], max_tokens: list[int], **config: int
) -> tuple[list[Request], int, list[int]]:
    """The requests, the steps they took, and how many tokens came in each request's steps."""
    engine = EngineConfig(max_model_len=192, num_speculative_tokens=num_drafts, **config)
    core = EngineCore(engine, NumpyExecutor(MODEL, engine, weights()), ngram.draft)
    requests = [
        Request(str(i), tokens, n, ignore_eos=True)
        for i, (tokens, n) in enumerate(zip(prompts, max_tokens, strict=True))
    ]
    for request in requests:
        core.add(request)
    n_steps, events = 0, []
    while core.scheduler.has_work:
        events += [len(output.token_ids) for output in core.step()]
        n_steps += 1
    return requests, n_steps, events


@pytest.mark.parametrize("seed", range(8))
def test_greedy_answers_are_the_same_with_and_without_speculation(seed: int) -> None:
    rng = random.Random(seed)
    phrase = [rng.randrange(300, 1024) for _ in range(rng.randint(2, 6))]
    prompts = [phrase * rng.randint(1, 6) + [rng.randrange(1024)] for _ in range(rng.randint(1, 8))]
    lengths = [rng.randint(1, 50) for _ in prompts]
    tight = {"num_blocks": 24, "max_num_batched_tokens": rng.choice([7, 20, 64]), "max_num_seqs": rng.choice([2, 8])}
    plain, n_plain_steps, events = answers(0, prompts, lengths, **tight)
    drafted, n_steps, bursts = answers(rng.randint(1, 6), prompts, lengths, **tight)
    assert [r.output_token_ids for r in drafted] == [r.output_token_ids for r in plain]
    assert [len(r.output_token_ids) for r in plain] == lengths
    assert n_steps <= n_plain_steps
    assert max(events) == 1
    assert sum(bursts) == sum(lengths)


def test_accepted_guesses_are_counted_and_come_several_an_event() -> None:
    prompts = [[300 + i, 301, 302] * 4 for i in range(4)]
    requests, n_steps, events = answers(4, prompts, [100] * 4)
    _, n_plain_steps, _ = answers(0, prompts, [100] * 4)
    accepted = sum(request.num_accepted_tokens for request in requests)
    assert 0 < accepted < sum(request.num_draft_tokens for request in requests)
    assert sum(n - 1 for n in events) == accepted
    assert max(events) == 5
    assert n_steps < 0.8 * n_plain_steps


def test_drawn_answers_are_the_same_with_and_without_speculation_too() -> None:
    engine = EngineConfig(max_model_len=192)
    executor = NumpyExecutor(MODEL, engine, weights())
    logits = np.random.default_rng(0).standard_normal((5, MODEL.vocab_size), dtype=np.float32)
    request = Request("0", [1], 9, ignore_eos=True, sampling=SamplingParams(temperature=1.0, seed=5))
    alone = []
    for i in range(5):
        request.token_ids = [1, *alone]
        alone += executor.sample(logits[i : i + 1].copy(), [ScheduledRequest(request, 1, True)])[0]
    request.token_ids = [1]
    for drafts in ([*alone[:4]], [*alone[:2], 7, 7], [7, 7, 7, 7]):
        n_right = next((i for i in range(4) if drafts[i] != alone[i]), 4)
        sampled = executor.sample(logits.copy(), [ScheduledRequest(request, 5, True, drafts)])
        assert sampled == [alone[: n_right + 1]]
