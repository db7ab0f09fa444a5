"""The knee, and ladders that find it on servers of every shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest

from loadgen.analysis.knee import Rung, find_knee, max_throughput, next_rate, plan_ladder


def _points(*rows: tuple[float, float, str]) -> list[Rung]:
    return [Rung(None, concurrency, tps, verdict) for concurrency, tps, verdict in rows]


def test_the_knee_is_the_smallest_concurrency_within_a_tenth_of_the_best() -> None:
    points = _points(
        (1, 100, "VALID"), (8, 700, "VALID"), (16, 905, "WARN"), (32, 950, "VALID"), (300, 1000, "NONSTATIONARY")
    )
    assert find_knee(points) == 2
    assert max_throughput(points) == 1000


def test_an_invalid_point_is_neither_the_knee_nor_the_best() -> None:
    points = _points((4, 2000, "INVALID"), (8, 700, "VALID"), (16, 740, "VALID"))
    assert find_knee(points) == 1
    assert find_knee(_points((4, 2000, "INVALID"))) is None


def test_points_may_come_in_any_order_and_without_throughput() -> None:
    points = [*_points((32, 950, "VALID"), (16, 940, "VALID")), Rung(1.0, 2.0, None, "VALID")]
    assert find_knee(points) == 1


def _server(capacity_rps: float, x_of_c: Callable[[float], float]) -> Callable[[float], Rung]:
    """A server whose throughput at concurrency C is x_of_c(C) < capacity; above capacity its queue grows."""

    def measure(rate_rps: float) -> Rung:
        if rate_rps >= 0.995 * capacity_rps:
            return Rung(rate_rps, 1e5 * rate_rps / capacity_rps, 100 * capacity_rps, "NONSTATIONARY", capacity_rps)
        low, high = 1e-6, 1e6
        for _ in range(80):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if x_of_c(middle) < rate_rps else (low, middle)
        return Rung(rate_rps, high, 100 * rate_rps, "VALID", rate_rps)

    return measure


def _batching(ratio: float) -> Callable[[float], float]:
    return lambda c: ratio * c / (c + ratio - 1)  # X(1) = 1, X(inf) = ratio


def _multi_server(ratio: float) -> Callable[[float], float]:
    return lambda c: ratio * (1 - math.exp(-c / ratio))  # M/D/c-like: linear, then a sharp bend


def _climb(measure: Callable[[float], Rung], plan: list[float], max_points: int) -> list[Rung]:
    history: list[Rung] = []
    while (rate := next_rate(history, plan, max_points)) is not None:
        history.append(measure(rate))
    return history


@pytest.mark.parametrize("law", [_batching, _multi_server])
@pytest.mark.parametrize("ratio", [1.05, 3.0, 10.0, 100.0])
@pytest.mark.parametrize("estimate", [0.8, 1.0, 1.3, 3.0])
def test_a_ladder_has_six_points_or_more_and_a_stable_knee_past_which_the_queue_grows(law, ratio, estimate) -> None:
    measure = _server(ratio, law(ratio))
    history = _climb(measure, plan_ladder(1.0, estimate * ratio, 8), 8)
    assert 6 <= len(history) <= 8
    knee = history[find_knee(history)]
    assert knee.verdict == "VALID"
    assert 0.899 * ratio <= knee.rate_rps <= 0.99 * ratio
    assert any(p.verdict == "NONSTATIONARY" for p in history)
    assert len({round(p.rate_rps / ratio, 3) for p in history}) == len(history)  # no rate twice


def _unsteady(capacity_rps: float, stable_share: float) -> Callable[[float], Rung]:
    """A batching server whose queue grows from a share of its capacity on: overload gives more than any stable load."""
    steady = _server(capacity_rps, _batching(capacity_rps))

    def measure(rate_rps: float) -> Rung:
        if rate_rps < stable_share * capacity_rps:
            return steady(rate_rps)
        done_rps = min(0.985 * rate_rps, capacity_rps)
        waiting = steady(0.97 * done_rps).concurrency + 1e3 * (rate_rps / capacity_rps - stable_share)
        return Rung(rate_rps, waiting, 100 * done_rps, "NONSTATIONARY", done_rps)

    return measure


@pytest.mark.parametrize("stable_share", [0.9, 0.85, 0.8, 0.7])
@pytest.mark.parametrize("estimate", [0.8, 1.0, 1.3, 2.0])
@pytest.mark.parametrize(("ratio", "max_points"), [(5.0, 8), (20.0, 8), (100.0, 8), (20.0, 12)])
def test_a_refinement_that_is_overloaded_too_is_tried_lower_until_a_stable_load_is_near(
    stable_share, estimate, ratio, max_points
) -> None:
    measure = _unsteady(ratio, stable_share)
    history = _climb(measure, plan_ladder(1.0, estimate * ratio, max_points), max_points)
    assert len(history) <= max_points
    heaviest = max(p.rate_rps for p in history if p.verdict == "VALID")
    assert 0.89 * stable_share * ratio <= heaviest < stable_share * ratio
    assert len({round(p.rate_rps / ratio, 3) for p in history}) == len(history)


def test_a_server_that_bears_nothing_near_capacity_is_tried_three_times_at_most() -> None:
    measure = _unsteady(20.0, 0.3)
    history = _climb(measure, [1.0, 4.0, 18.0, 30.0], 40)
    confirmed = [p.verdict for p in history].index("NONSTATIONARY") + 2
    assert [p.rate_rps for p in history[confirmed : confirmed + 3]] == pytest.approx([15.3, 13.0, 11.05], abs=0.05)
    assert len(history) <= 12


def test_the_plan_starts_at_one_request_in_flight_and_ends_above_capacity() -> None:
    plan = plan_ladder(2.0, 40.0, 8)
    assert plan[0] == pytest.approx(0.5)
    assert plan[-2] == pytest.approx(36.0)
    assert plan[-1] > 40
    steps = [b / a for a, b in pairwise(plan[:-1])]
    assert steps == pytest.approx([steps[0]] * len(steps))  # geometric
    with pytest.raises(ValueError, match="probe"):
        plan_ladder(0.0, 1.0, 8)


def test_rounded_rates_do_not_repeat_a_rung() -> None:
    plan = plan_ladder(1.0, 23.7, 8)
    measure = _server(23.7, _batching(23.7))
    history: list[Rung] = []
    while (rate := next_rate(history, plan)) is not None:
        history.append(measure(float(f"{rate:.2g}")))
    assert len({p.rate_rps for p in history}) == len(history)


def test_a_nonstationary_fluke_does_not_end_the_climb() -> None:
    plan = plan_ladder(1.0, 10.0, 8)
    fluke = [Rung(1.0, 1, 100, "VALID", 1.0), Rung(2.0, 2, 200, "NONSTATIONARY", 2.0)]
    confirm = next_rate(fluke, plan)
    assert confirm == pytest.approx(2.3)
    assert next_rate([*fluke, Rung(confirm, 2.4, 230, "VALID", confirm)], plan) == plan[2]


def test_two_rates_that_add_under_three_percent_end_the_climb() -> None:
    history = [Rung(r, c, x, "VALID", r) for r, c, x in ((1, 1, 100), (4, 5, 390), (8, 30, 400), (12, 60, 402))]
    rate = next_rate(history, [1, 4, 8, 12, 20, 30])
    assert rate is not None
    assert rate < 12


def test_two_invalid_points_in_a_row_end_the_climb_and_one_does_not() -> None:
    good = [Rung(1, 1, 100, "VALID", 1), Rung(2, 2.2, 200, "VALID", 2)]
    bad = Rung(4, 5, 390, "INVALID", 4)
    assert next_rate([*good, bad], [1, 2, 4, 8]) == 8
    assert next_rate([*good, bad, Rung(8, 9, 500, "INVALID", 8)], [1, 2, 4, 8, 16], 5) < 2


def test_the_budget_is_never_exceeded() -> None:
    assert next_rate([Rung(1, 1, 100, "VALID", 1)] * 8, [1, 2], 8) is None
