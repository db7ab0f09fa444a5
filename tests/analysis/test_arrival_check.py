"""Arrivals at the socket against the asked process, at the stated false-alarm rates."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from loadgen.analysis.arrival_check import asked_cv, fit_arrivals


def _arrivals(rng: np.random.Generator, shape: float, rate_rps: float, seconds: float) -> np.ndarray:
    gaps = rng.gamma(shape, 1 / (shape * rate_rps), int(rate_rps * seconds * 1.5) + 100)
    return np.cumsum(gaps)


@pytest.mark.parametrize("n", [60, 400, 4000])
@pytest.mark.parametrize(("asked", "shape"), [("poisson", 1.0), ({"gamma": {"burstiness": 0.5}}, 0.5)])
def test_the_asked_process_is_accepted_at_the_stated_rate(n: int, asked, shape: float) -> None:
    # Nominal 5% WARN or worse and 0.1% INVALID; the approximations give up to 9% and 1% at n = 60. 300 seeds.
    rng = np.random.default_rng(n)
    seen = Counter(fit_arrivals(_arrivals(rng, shape, n / 20, 20), asked, 0, 20).verdict for _ in range(300))
    assert 0.88 * 300 <= seen["pass"] <= 0.99 * 300  # a check that never warns would prove nothing
    assert seen["invalid"] <= 4


def test_constant_arrivals_pass_with_the_timers_grain_and_fail_as_poisson() -> None:
    rng = np.random.default_rng(1)
    even = np.arange(0, 20, 0.05) + rng.exponential(0.0003, 400)
    assert fit_arrivals(even, "constant", 0, 20).verdict == "pass"
    assert fit_arrivals(even, "poisson", 0, 20).verdict == "invalid"


def test_exponential_gaps_sold_as_constant_are_invalid() -> None:
    poisson = _arrivals(np.random.default_rng(2), 1.0, 20, 20)
    assert fit_arrivals(poisson, "constant", 0, 20).verdict == "invalid"


def test_workers_that_share_a_seed_are_invalid_though_each_is_poisson() -> None:
    one = _arrivals(np.random.default_rng(3), 1.0, 20, 20)
    clones = np.concatenate([one + 0.001 * worker for worker in range(8)])
    fit = fit_arrivals(clones, "poisson", 0, 20)
    assert fit.verdict == "invalid"
    assert fit.dispersion > 4


def test_relative_sleeps_that_thin_the_stream_out_are_seen_by_their_variation() -> None:
    rng = np.random.default_rng(4)
    slept = np.cumsum(rng.exponential(0.005, 3000) + 0.002)
    assert fit_arrivals(slept, "poisson", 0, 18).verdict == "invalid"


def test_too_few_arrivals_or_an_unknown_process_are_not_judged() -> None:
    assert fit_arrivals(np.arange(10.0), "poisson", 0, 10).verdict == "n/a"
    assert fit_arrivals(np.arange(100.0), "trace", 0, 100).verdict == "n/a"
    assert asked_cv({"gamma": {"burstiness": 0.25}}) == 2.0
