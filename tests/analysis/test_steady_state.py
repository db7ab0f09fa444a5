"""Steady state: a growing queue is seen, a light one is left alone."""

from __future__ import annotations

import numpy as np
import pytest
from analysis_builders import queue
from scipy import stats

from loadgen.analysis.evidence import Evidence
from loadgen.analysis.steady_state import differ, in_flight_trend, kendall, mser5
from loadgen.analysis.validity import certify


@pytest.mark.parametrize("n", [6, 9, 10])
def test_kendall_agrees_with_scipys_exact_p(n: int) -> None:
    rng = np.random.default_rng(n)
    for _ in range(20):
        values = rng.permutation(n).astype(float)
        reference = stats.kendalltau(np.arange(n), values, method="exact")
        assert kendall(values) == pytest.approx((reference.statistic, reference.pvalue))


def _exponential(mean_s: float):
    return lambda rng: rng.exponential(mean_s)


@pytest.mark.parametrize(
    ("rate_rps", "service_s", "n_servers", "seconds"),
    [(4, _exponential(0.5), 4, 60), (8, 0.5, 8, 18), (11.2, _exponential(0.5), 8, 60)],
)
def test_a_light_stationary_point_is_not_flagged(rate_rps, service_s, n_servers, seconds) -> None:
    # Utilisation .5, .5 and .7. The true rate of false alarms is under 0.2% (0 of 2,600 seeds); 2 of 120 allows 1%.
    flagged = sum(
        Evidence(*queue(rate_rps, service_s, n_servers, seconds, np.random.default_rng(seed))).grows
        for seed in range(120)
    )
    assert flagged <= 2


@pytest.mark.parametrize(("utilisation", "seconds"), [(1.2, 60), (1.5, 18), (3.0, 18)])
def test_an_overloaded_server_is_always_nonstationary(utilisation: float, seconds: float) -> None:
    # M/D/8. A minute at 1.2 or 18 s at 1.5 leave no doubt: no miss is allowed in 25 seeds.
    for seed in range(25):
        log, records = queue(16 * utilisation, 0.5, 8, seconds, np.random.default_rng(seed), patience_s=5)
        assert certify(Evidence(log, records)).verdict == "NONSTATIONARY", seed


def test_overload_is_seen_when_the_warm_up_was_longer_than_the_window() -> None:
    # 30 s of warm-up at utilisation 1.3 leave 140 requests waiting before a window of 18 s: 24 of 25 seeds must show.
    seen = [Evidence(*queue(20.8, 0.5, 8, 18, np.random.default_rng(seed), 30.0)).grows for seed in range(25)]
    assert sum(seen) >= 24


def test_unfinished_requests_of_a_growing_queue_do_not_make_it_invalid() -> None:
    log, records = queue(32, 0.5, 8, 30, np.random.default_rng(1), patience_s=1)
    assert sum(r.status == "unfinished" for r in records) > 0.1 * len(records)
    assert certify(Evidence(log, records)).verdict == "NONSTATIONARY"


def test_a_trend_needs_a_material_rise() -> None:
    slight = in_flight_trend(np.linspace(100, 104, 600).tolist(), 0.1, 1.0)
    assert (slight.state, slight.rises) == ("drifting", False)
    assert in_flight_trend(np.linspace(20, 104, 600).tolist(), 0.1, 1.0).state == "growing"
    assert in_flight_trend(np.linspace(104, 20, 600).tolist(), 0.1, 1.0).state == "drifting"


def test_batches_hold_two_residences_or_the_test_says_that_it_could_not() -> None:
    flat = np.random.default_rng(5).normal(50, 1, 600).tolist()
    assert in_flight_trend(flat, 0.1, 1.0).n_batches == 10
    assert in_flight_trend(flat, 0.1, 4.0).n_batches == 7
    assert in_flight_trend(flat, 0.1, 20.0).state == "unknown"
    assert in_flight_trend(flat[:5], 0.1, 1.0).state == "unknown"
    assert in_flight_trend(np.linspace(5, 90, 600).tolist(), 0.1, 20.0).state == "growing"


def test_mser5_cuts_a_cold_start_and_little_else() -> None:
    rng = np.random.default_rng(6)
    steady = rng.exponential(1.0, 400)
    cold = np.concatenate((rng.exponential(1.0, 60) + 5, steady))
    assert 55 <= mser5(cold.tolist()) <= 80
    assert mser5([1.0] * 10) == 0
    assert differ(cold[:60], cold[60:])
    assert not differ(steady[:60], steady[60:])
