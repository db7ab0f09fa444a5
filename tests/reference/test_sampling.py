"""Drawing tokens: greedy is exact, chances are those of the filters, and a draw depends on its request alone."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine_adapters.reference.request import Request, SamplingParams
from engine_adapters.reference.sampling import candidate_tokens, draw, logprobs_of

VOCAB = 50


def some_logits(seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(VOCAB, dtype=np.float32) * np.float32(2.0)


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    powers: NDArray[np.float64] = np.exp(logits.astype(np.float64) - float(logits.max()))
    return powers / powers.sum()


def request(request_id: str = "0", **params: float | int) -> Request:
    return Request(request_id, [1], 10, sampling=SamplingParams(**params))  # type: ignore[arg-type]


@given(st.integers(0, 1000), st.integers(0, 50), st.floats(0.0, 1.0))
def test_temperature_0_takes_the_likeliest_token_whatever_the_filters_say(seed: int, top_k: int, top_p: float) -> None:
    logits = some_logits(seed)
    assert draw(logits, request(temperature=0.0, top_k=top_k, top_p=top_p), 3) == int(logits.argmax())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_their_chances_say(temperature: float) -> None:
    logits, n = some_logits(), 4000
    counts = Counter(draw(logits, request(temperature=temperature, seed=7), i) for i in range(n))
    expected = softmax(logits / np.float32(temperature)) * n
    often = expected > 5
    drawn = np.array([counts[i] for i in range(VOCAB)])
    chi_square = float(((drawn - expected)[often] ** 2 / expected[often]).sum())
    assert chi_square < often.sum() + 4 * math.sqrt(2 * often.sum())


@given(st.integers(0, 1000), st.integers(1, VOCAB))
def test_top_k_keeps_the_k_likeliest_and_their_ratios(seed: int, k: int) -> None:
    logits = some_logits(seed)
    tokens, chances = candidate_tokens(logits, SamplingParams(temperature=1.0, top_k=k))
    assert set(tokens.tolist()) == set(np.argsort(-logits)[:k].tolist())
    expected = softmax(logits)[tokens]
    assert np.allclose(chances, expected / expected.sum())


@given(st.integers(0, 1000), st.floats(0.001, 0.999), st.sampled_from([0, 5, 20]))
def test_top_p_keeps_the_fewest_of_the_likeliest_that_reach_p(seed: int, p: float, k: int) -> None:
    logits = some_logits(seed)
    all_tokens, before = candidate_tokens(logits, SamplingParams(temperature=0.8, top_k=k))
    tokens, chances = candidate_tokens(logits, SamplingParams(temperature=0.8, top_k=k, top_p=p))
    assert tokens.tolist() == all_tokens[: len(tokens)].tolist()
    assert before[: len(tokens)].sum() >= p - 1e-12
    assert before[: len(tokens) - 1].sum() < p
    assert math.isclose(chances.sum(), 1.0)


@given(st.integers(0, 1000), st.floats(0.01, 5.0))
def test_a_token_that_must_not_come_is_never_drawn(seed: int, temperature: float) -> None:
    logits = some_logits(seed)
    logits[logits.argsort()[-VOCAB // 2 :]] = -np.inf
    assert np.isfinite(logits[draw(logits, request(temperature=temperature, seed=seed), seed)])


def test_a_draw_depends_on_the_seed_and_the_place_in_the_answer_alone() -> None:
    logits = some_logits()
    answers = [[draw(logits, request(name, temperature=1.5, seed=3), i) for i in range(40)] for name in ("a", "b")]
    assert answers[0] == answers[1]
    assert len(set(answers[0])) > 5
    assert answers[0] != [draw(logits, request("a", temperature=1.5, seed=4), i) for i in range(40)]


def test_without_a_seed_every_request_has_its_own() -> None:
    logits = some_logits()
    answers = [[draw(logits, request(name, temperature=1.5), i) for i in range(20)] for name in ("a", "b", "a")]
    assert answers[0] == answers[2] != answers[1]


@given(st.integers(0, 1000), st.integers(0, 20))
def test_logprobs_are_the_logarithms_of_the_models_chances(seed: int, n_top: int) -> None:
    logits = some_logits(seed)
    chances = np.log(softmax(logits))
    found = logprobs_of(logits, 11, n_top)
    assert found.token_id == 11
    assert math.isclose(found.logprob, chances[11], abs_tol=1e-9)
    assert [token for token, _ in found.top] == np.argsort(-logits)[:n_top].tolist()
    assert np.allclose([value for _, value in found.top], np.sort(chances)[::-1][:n_top])
