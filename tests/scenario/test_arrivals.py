"""Arrival processes have the regularity that their name promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from loadgen.scenario.arrivals import GammaArrivals, gap_cv, unit_arrivals, unit_arrivals_before, unit_gaps
from loadgen.scenario.streams import stream

N = 50_000


def gamma(burstiness: float) -> GammaArrivals:
    return GammaArrivals.model_validate({"gamma": {"burstiness": burstiness}})


PROCESSES = ["constant", "poisson", gamma(0.25), gamma(0.5), gamma(4)]


def test_constant_gaps_are_all_alike():
    assert np.ptp(unit_gaps("constant", stream(1, "a"), N)) == 0
    assert gap_cv("constant") == 0


@pytest.mark.parametrize("process", PROCESSES[1:])
def test_gaps_have_mean_1_and_the_stated_cv(process):
    gaps = unit_gaps(process, stream(2, "a"), N)
    cv = gap_cv(process)
    # Standard errors: of the mean cv/sqrt(n); of the CV of gamma gaps sqrt(cv^2 (1 + 2 cv^2) / 2n) at most, doubled for
    # their skewness. 4 sigma: false alarm 6e-5 each.
    assert abs(gaps.mean() - 1) < 4 * cv / math.sqrt(N)
    assert abs(gaps.std() / gaps.mean() - cv) < 4 * 2 * cv * math.sqrt((1 + 2 * cv**2) / (2 * N))


@pytest.mark.parametrize(
    ("process", "reference"),
    [("poisson", stats.expon()), (gamma(0.5), stats.gamma(0.5, scale=2)), (gamma(4), stats.gamma(4, scale=0.25))],
)
def test_gaps_follow_the_named_distribution(process, reference):
    # Kolmogorov-Smirnov, false alarm 1 in 10,000, seed fixed.
    assert stats.kstest(unit_gaps(process, stream(3, "a"), N), reference.cdf).pvalue > 1e-4


def test_a_gamma_process_is_not_taken_for_poisson():
    assert stats.kstest(unit_gaps(gamma(0.8), stream(3, "a"), N), stats.expon().cdf).pvalue < 1e-6


def dispersion(process: object, seed: int, bin_units: float) -> float:
    """Variance over mean of the counts in equal bins."""
    arrivals = unit_arrivals_before(process, stream(seed, "a"), N)  # type: ignore[arg-type]
    counts = np.histogram(arrivals, bins=np.arange(0, N + 0.5, bin_units))[0]
    return float(counts.var() / counts.mean())


def test_the_index_of_dispersion_is_1_for_poisson_and_0_for_constant():
    n_bins = N // 50
    # (n-1) x dispersion is chi-square with n-1 degrees of freedom: false alarm 1 in 10,000.
    low, high = stats.chi2(n_bins - 1).ppf([5e-5, 1 - 5e-5]) / (n_bins - 1)
    assert low < dispersion("poisson", 4, 50) < high
    assert dispersion("constant", 4, 50) < 0.01


@pytest.mark.parametrize("burstiness", [0.25, 0.5, 4])
def test_the_index_of_dispersion_tends_to_the_squared_cv(burstiness):
    # 500 bins of 100: relative standard error sqrt(2/500) = 6.3%; bins of finite length add a few per cent.
    assert dispersion(gamma(burstiness), 5, 100) == pytest.approx(1 / burstiness, rel=0.3)


def test_the_time_of_n_arrivals_varies_as_the_process_does():
    """Rescaling the last arrival onto n, as a peer does, would make this spread zero."""
    n, n_runs = 400, 400
    ends = np.array([unit_arrivals("poisson", stream(seed, "a"), n)[-1] for seed in range(n_runs)])
    low, high = np.sqrt(stats.chi2(n_runs - 1).ppf([5e-5, 1 - 5e-5]) / (n_runs - 1))  # false alarm 1 in 10,000
    assert low * 0.95 < ends.std() / math.sqrt(n) < high * 1.05


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**40), short=st.floats(0.1, 300), extra=st.floats(0, 3000), which=st.sampled_from(PROCESSES)
)
def test_a_longer_horizon_only_adds_arrivals(seed, short, extra, which):
    few = unit_arrivals_before(which, stream(seed, "a"), short)
    many = unit_arrivals_before(which, stream(seed, "a"), short + extra)
    assert few.tolist() == many[: few.size].tolist()
    assert (many < short + extra).all()
    assert (few.size == many.size) or many[few.size] >= short
    assert (np.diff(many) >= 0).all()
