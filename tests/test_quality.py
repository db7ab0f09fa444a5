"""Fast garbage must not win: agreement between two servers' greedy answers."""

from __future__ import annotations

import pytest

from loadgen.quality import agreement, degenerate

GOOD = [f"the answer to question {i} is {i * i}" for i in range(50)]


def test_equal_answers_agree_fully_and_are_acceptable() -> None:
    found = agreement(GOOD, GOOD, GOOD)
    assert (found.share, found.self_share, found.acceptable) == (1.0, 1.0, True)
    assert found.first_divergence_chars is None


def test_other_answers_are_not_acceptable_and_the_divergence_is_told() -> None:
    other = [answer[:10] + "?" + answer[11:] for answer in GOOD[:25]] + GOOD[25:]
    found = agreement(GOOD, GOOD, other)
    assert found.share == 0.5
    assert found.first_divergence_chars == 10
    assert not found.acceptable


def test_a_baseline_that_differs_from_itself_lowers_the_bar() -> None:
    wobbly = [answer + "." for answer in GOOD[:20]] + GOOD[20:]
    assert agreement(GOOD, wobbly, [answer + "!" for answer in GOOD[:22]] + GOOD[22:]).acceptable


def test_degenerate_answers_of_the_candidate_are_not_acceptable() -> None:
    found = agreement(GOOD, GOOD, ["" if i == 3 else answer for i, answer in enumerate(GOOD)])
    assert found.degenerate_candidate == 1
    assert not found.acceptable


@pytest.mark.parametrize("answer", ["", "  \n", "a\ufffdb", "aaaaaaaaaaaa", "start " + "no no " * 8])
def test_degenerate(answer: str) -> None:
    assert degenerate(answer)


@pytest.mark.parametrize("answer", ["short", "hello hello world", "The quick brown fox jumps over the lazy dog"])
def test_not_degenerate(answer: str) -> None:
    assert not degenerate(answer)
