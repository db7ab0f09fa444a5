"""How many connections a load needs: users, or what the arrivals may put in flight."""

from __future__ import annotations

import pytest
from support.fakes import schedule

from loadgen.generator.connections import at_once, at_start


def test_every_user_of_a_closed_loop_has_a_connection() -> None:
    plan = schedule([0.0] * 50, mode="closed", concurrency=20)
    assert at_start(plan) == 20
    assert at_once(plan, max_in_flight=10, total_s=600.0) == (20, 20)


@pytest.mark.parametrize(("max_in_flight", "expected"), [(4096, (100, 500)), (200, (100, 200)), (40, (40, 40))])
def test_an_open_loop_needs_a_second_of_arrivals_and_may_need_those_of_the_longest_request(
    max_in_flight: int, expected: tuple[int, int]
) -> None:
    plan = schedule([0.01 * i + 0.001 for i in range(1000)])
    assert at_start(plan) == pytest.approx(10, abs=1)
    surely, possibly = at_once(plan, max_in_flight, total_s=5.0)
    assert (surely, possibly) == pytest.approx(expected, abs=2)


def test_a_plan_without_requests_needs_none() -> None:
    assert at_start(schedule([])) == 0
    assert at_once(schedule([]), 10, 1.0) == (0, 0)
