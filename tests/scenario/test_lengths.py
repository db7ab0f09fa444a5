"""Lengths come out as the scenario wrote them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from loadgen.scenario import lengths
from loadgen.scenario.lengths import LengthDist
from loadgen.scenario.streams import stream

U = np.array([0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99])


def dist(value: object) -> LengthDist:
    return LengthDist.model_validate(value)


def test_a_bare_number_is_a_fixed_length():
    assert dist(3000) == dist({"fixed": 3000})
    assert set(lengths.quantile(dist(3000), U)) == {3000}


@pytest.mark.parametrize(
    ("written", "reference"),
    [
        ({"normal": {"mean": 5000, "std": 700}}, stats.norm(5000, 700)),
        ({"lognormal": {"median": 3000, "sigma": 0.4}}, stats.lognorm(0.4, scale=3000)),
        ({"lognormal": {"median": 3000, "p95": 6000}}, stats.lognorm(math.log(2) / stats.norm.ppf(0.95), scale=3000)),
    ],
)
def test_quantiles_agree_with_scipy(written, reference):
    assert lengths.quantile(dist(written), U) == pytest.approx(reference.ppf(U), abs=0.5)


def test_a_lognormal_by_mean_and_p95_has_that_mean_and_that_p95():
    mu, sigma = lengths.lognormal_parameters(lengths.Lognormal(mean=1000, p95=2500))
    reference = stats.lognorm(sigma, scale=math.exp(mu))
    assert reference.mean() == pytest.approx(1000)
    assert reference.ppf(0.95) == pytest.approx(2500)
    assert sigma < stats.norm.ppf(0.95)  # the other root has a p95 that falls when sigma grows


def test_uniform_reaches_both_ends_equally_often():
    drawn = lengths.sample(dist({"uniform": {"low": 3, "high": 7}}), stream(1, "t"), 50_000)
    counts = np.bincount(drawn)[3:]
    assert counts.size == 5
    assert stats.chisquare(counts).pvalue > 1e-4  # false alarm 1 in 10,000, seed fixed


def test_histogram_values_come_as_often_as_their_weights_say():
    drawn = lengths.sample(
        dist({"histogram": {"values": [10, 500, 20], "weights": [5, 0, 15]}}), stream(2, "t"), 40_000
    )
    assert set(drawn) == {10, 20}
    assert stats.binomtest(int((drawn == 10).sum()), drawn.size, 0.25).pvalue > 1e-4  # false alarm 1 in 10,000


def test_histogram_bins_are_filled_evenly_from_the_edge_to_just_below_the_next():
    drawn = lengths.sample(dist({"histogram": {"bins": [10, 20, 40], "weights": [1, 3]}}), stream(3, "t"), 60_000)
    assert (drawn.min(), drawn.max()) == (10, 39)
    expected = np.concatenate([np.full(10, 1 / 40), np.full(20, 3 / 80)]) * drawn.size
    assert stats.chisquare(np.bincount(drawn)[10:], expected).pvalue > 1e-4  # false alarm 1 in 10,000


def test_max_moves_long_prompts_to_the_edge_and_leaves_the_quantiles_below_as_written():
    free = lengths.quantile(dist({"lognormal": {"median": 3000, "p95": 6000}}), U)
    capped = lengths.quantile(dist({"lognormal": {"median": 3000, "p95": 6000}, "min": 512, "max": 6500}), U)
    assert list(capped[:-1]) == list(free[:-1])
    assert capped[-1] == 6500 < free[-1]


@pytest.mark.parametrize(
    "written",
    [
        {"lognormal": {"median": 300, "sigma": 0.8}, "max": 2000},
        {"normal": {"mean": 100, "std": 80}},
        {"uniform": {"low": 5, "high": 9}},
        {"histogram": {"bins": [1, 9, 700], "weights": [3, 1]}},
        48,
    ],
)
def test_the_stated_mean_is_the_mean_of_what_is_drawn(written):
    drawn = lengths.sample(dist(written), stream(4, "t"), 200_000)
    standard_error = drawn.std() / math.sqrt(drawn.size)
    assert abs(drawn.mean() - lengths.mean(dist(written))) < 4 * standard_error + 1e-3 * drawn.mean()  # 4 sigma: 6e-5


def test_the_mean_of_an_uncapped_lognormal_is_right_despite_its_tail():
    assert lengths.mean(dist({"lognormal": {"median": 3000, "p95": 6000}})) == pytest.approx(
        stats.lognorm(math.log(2) / stats.norm.ppf(0.95), scale=3000).mean(), rel=1e-3
    )


shapes = st.one_of(
    st.integers(1, 10_000),
    st.builds(lambda a, b: {"uniform": {"low": min(a, b), "high": max(a, b)}}, *[st.integers(1, 9999)] * 2),
    st.builds(lambda m, s: {"normal": {"mean": m, "std": s}}, st.floats(1, 1e4), st.floats(0, 1e4)),
    st.builds(lambda m, s: {"lognormal": {"median": m, "sigma": s}}, st.floats(1, 1e4), st.floats(0, 4)),
    st.builds(
        lambda edges, w: {
            "histogram": {"bins": sorted(edges), "weights": [w, *[0.3] * (len(edges) - 3), 0][: len(edges) - 1]}
        },
        st.sets(st.integers(1, 9999), min_size=3, max_size=9),
        st.floats(0.01, 5),
    ),
)


@given(shape=shapes, low=st.integers(1, 50), width=st.integers(0, 5000), u=st.floats(0, 1, exclude_max=True))
def test_every_length_is_a_whole_number_within_its_limits(shape, low, width, u):
    written = {"fixed": shape} if isinstance(shape, int) else shape
    bounded = dist({**written, "min": low, "max": low + width})
    value = lengths.quantile(bounded, np.array([u, 0.0]))
    assert value.dtype == np.int64
    assert ((low <= value) & (value <= low + width)).all()
    assert (lengths.quantile(dist(written), np.array([u])) >= 1).all()


@given(shape=shapes, u=st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=20))
def test_a_higher_rank_is_never_a_shorter_prompt(shape, u):
    assert (np.diff(lengths.quantile(dist(shape), np.sort(u))) >= 0).all()


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (
            {"lognormal": {"median": 3000, "p95": 6000}, "min": 512, "max": 8000},
            "lognormal median 3,000, p95 6,000, 512 to 8,000",
        ),
        ({"lognormal": {"median": 200, "sigma": 0.5}, "max": 1000}, "lognormal median 200, sigma 0.5, up to 1,000"),
        (1024, "fixed 1,024"),
        ({"uniform": {"low": 64, "high": 2560}}, "uniform 64 to 2,560"),
        ({"normal": {"mean": 100, "std": 20}, "min": 8}, "normal mean 100, std 20, at least 8"),
        ({"histogram": {"values": [10, 30], "weights": [1, 1]}}, "histogram of 2 values, mean 20"),
    ],
)
def test_the_text_for_the_conditions_reads_as_a_person_would_say_it(written, text):
    assert lengths.describe(dist(written)) == text


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ({}, "exactly one of fixed, uniform"),
        ({"fixed": 3, "normal": {"mean": 1, "std": 1}}, "got fixed and normal"),
        ({"lognormal": {"median": 100}}, "median and sigma, median and p95"),
        ({"lognormal": {"median": 100, "p95": 50}}, "below the median"),
        ({"lognormal": {"mean": 100, "p95": 900}}, "p95 must lie between"),
        ({"histogram": {"values": [1, 2], "weights": [1]}}, "1 weights for 2"),
        ({"histogram": {"values": [1], "weights": [0]}}, "all zero"),
        ({"histogram": {"bins": [5, 4, 6], "weights": [1, 1]}}, "ascend"),
        ({"histogram": {"weights": [1]}}, "either values or bins"),
        ({"uniform": {"low": 9, "high": 3}}, "above high"),
        ({"fixed": 5, "min": 9, "max": 3}, "above max"),
        (0, "greater than or equal to 1"),
        (2.5, "valid integer"),
        (float("nan"), "valid integer"),
        (True, "LengthDist"),
    ],
)
def test_a_distribution_that_makes_no_sense_is_refused_with_the_reason(written, complaint):
    with pytest.raises(ValidationError, match=complaint):
        dist(written)
