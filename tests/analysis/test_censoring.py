"""Kaplan-Meier: requests that had not ended are neither dropped nor taken as ended."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from loadgen.analysis.censoring import censored_distribution, survival
from loadgen.analysis.percentiles import distribution


def test_without_censored_requests_it_is_the_plain_distribution() -> None:
    values = np.random.default_rng(1).exponential(size=100).tolist()
    assert censored_distribution(values, [False] * 100) == distribution(values)


def test_the_survival_curve_agrees_with_scipy() -> None:
    rng = np.random.default_rng(2)
    times, cut = rng.exponential(size=200), rng.exponential(2, size=200)
    observed = np.minimum(times, cut)
    ends = times <= cut
    data = stats.CensoredData.right_censored(observed, ~ends)
    reference = stats.ecdf(data).sf
    order = np.argsort(observed)
    assert survival(ends[order])[ends[order]] == pytest.approx(reference.evaluate(np.sort(observed[ends])))


def test_at_equal_times_an_end_comes_before_a_censoring() -> None:
    tied = censored_distribution([1.0] * 36, [False] * 30 + [True] * 6)
    assert tied["p90"] is None  # 30 of 36 ended; taking the six out first would make p90 = 1 s


def test_percentiles_that_the_ends_do_not_reach_are_a_lower_bound_in_words() -> None:
    values = [*np.linspace(0.1, 1.0, 380), *[5.0] * 20]
    result = censored_distribution(values, [False] * 380 + [True] * 20)
    assert result["p90"] == pytest.approx(0.1 + 0.9 * 359 / 379)  # the 360th of 400
    assert result["p99"] is None
    assert result["ci95"]["p99"] is None
    assert "p99 >= 5.000 s" in result["reason"]
    assert result["mean"] is None


def test_dropping_the_censored_would_flatter_the_tail_and_kaplan_meier_does_not() -> None:
    # Exponential waits seen for at most 3 time units: the true p90 is 2.303.
    waits = np.random.default_rng(3).exponential(size=3000)
    limit = np.random.default_rng(4).uniform(0, 6, size=3000)
    censored = waits > limit
    estimate = censored_distribution(np.minimum(waits, limit).tolist(), censored.tolist())
    low, high = estimate["ci95"]["p90"]
    assert low < 2.303 < high
    assert np.quantile(waits[~censored], 0.9) < low
