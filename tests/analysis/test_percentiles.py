"""Percentiles: interpolation, the samples they need, and intervals that hold for autocorrelated latencies."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from loadgen.analysis.percentiles import NEEDED, distribution, quantile, samples_needed


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=60), st.floats(0, 1))
def test_quantile_is_numpys_linear_interpolation(values: list[float], q: float) -> None:
    assert quantile(np.sort(np.array(values)), q) == pytest.approx(np.percentile(values, 100 * q), rel=1e-9, abs=1e-9)


def test_minimal_samples_are_those_of_the_order_statistics() -> None:
    assert {**NEEDED, "p99.9": samples_needed(0.999)} == {"p50": 6, "p90": 36, "p95": 72, "p99": 368, "p99.9": 3688}
    for q in (0.5, 0.9, 0.95, 0.99):
        n = samples_needed(q)
        assert stats.binom.pmf(n, n, q) <= 0.025 < stats.binom.pmf(n - 1, n - 1, q)  # all n values below the quantile


def test_p99_of_200_requests_is_none_and_needs_368() -> None:
    result = distribution(np.linspace(0.1, 0.3, 200))
    assert result["p99"] is None
    assert result["ci95"]["p99"] is None
    assert result["needs"] == {"p99": 368}
    assert result["p95"] == pytest.approx(0.29)
    assert result["ci95"]["p95"][0] <= 0.29 <= result["ci95"]["p95"][1]


def test_no_values_give_none_with_a_reason_and_few_give_only_a_mean() -> None:
    nothing = distribution([])
    assert (nothing["n"], nothing["mean"], nothing["p50"]) == (0, None, None)
    assert nothing["reason"]
    few = distribution([1.0, 3.0])
    assert few["mean"] == 2.0
    assert few["p50"] is None
    assert few["needs"]["p50"] == 6


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_nan_never_passes(poison: float) -> None:
    with pytest.raises(ValueError, match="left out"):
        distribution([1.0, poison])


def test_the_same_values_give_the_same_interval() -> None:
    values = np.random.default_rng(1).exponential(size=500)
    assert distribution(values) == distribution(values.copy())


def _ar1(rng: np.random.Generator, n: int, phi: float) -> np.ndarray:
    noise = rng.standard_normal(n + 100)
    out = np.empty(n + 100)
    out[0] = noise[0]
    for i in range(1, n + 100):
        out[i] = phi * out[i - 1] + noise[i]
    return out[100:] * np.sqrt(1 - phi**2)


def test_the_block_bootstrap_covers_the_median_of_autocorrelated_latencies() -> None:
    # AR(1) with phi .8; the nominal 95% interval must cover in >= 87% of 120 runs. At a true coverage of 93%, fewer
    # than 87% happen by chance in about 1% of seeds. The iid bootstrap covers about half, as the second count shows.
    rng = np.random.default_rng(2)
    covered = iid = 0
    for _ in range(120):
        values = _ar1(rng, 900, 0.8)
        low, high = distribution(values)["ci95"]["p50"]
        covered += low <= 0 <= high
        resampled = np.median(values[rng.integers(0, 900, (100, 900))], axis=1)
        iid += np.quantile(resampled, 0.025) <= 0 <= np.quantile(resampled, 0.975)
    assert covered >= 0.87 * 120
    assert iid < 0.75 * 120


@pytest.mark.parametrize("q", ["p50", "p95", "p99"])
def test_the_interval_between_blocks_covers_when_whole_blocks_move_together(q: str) -> None:
    # 40 slices of time share a level, 250 gaps each: cover >= 88% of 150 runs (at 95%: missed in < 0.1% of seeds).
    rng = np.random.default_rng(3)
    blocks = np.repeat(np.arange(40), 250)
    truth = stats.norm.ppf(int(q[1:]) / 100) * np.sqrt(1.25)
    hits = 0
    for _ in range(150):
        values = rng.standard_normal(10_000) + 0.5 * rng.standard_normal(40)[blocks]
        low, high = distribution(values, blocks)["ci95"][q]
        hits += low <= truth <= high
    assert hits >= 0.88 * 150


def test_a_sweep_of_ten_points_is_summarised_quickly() -> None:
    # CPU time, generous for a shared machine: 10 points x 6 metrics of 3,000 values, one ITL pool of a million.
    rng = np.random.default_rng(4)
    begin = time.process_time()
    for _ in range(60):
        distribution(rng.exponential(size=3000))
    distribution(rng.exponential(size=1_000_000), np.repeat(np.arange(40), 25_000))
    assert time.process_time() - begin < 6
