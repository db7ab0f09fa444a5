"""Which load the doctor tries next, and that a closed loop begins in full swing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from loadgen.self_test.ladder import PARTS, QUICK, Part, affordable, files_wanted, in_full_swing, next_load, plan_of

PART = Part("streams", "closed", (100, 200, 500), 10, 10.0, 10.0, 0.1, 1.0, 10)


@dataclass
class Seen:
    load: int
    offered: bool = True
    cpu_share: float = 0.1


def climb(part: Part, limit: int, cpu_a_load: float = 0.0) -> list[int]:
    """All loads that are tried when every load up to `limit` can be offered."""
    tried: list[Seen] = []
    while (load := next_load(part, tried)) is not None:
        tried.append(Seen(load, load <= limit, load * cpu_a_load))
    return [each.load for each in tried]


def test_it_climbs_until_a_load_fails_twice_and_tries_one_between() -> None:
    assert climb(PART, 200) == [100, 200, 500, 500, 320]
    assert climb(PART, 400) == [100, 200, 500, 500, 320]
    assert climb(PART, 1000) == [100, 200, 500]
    assert climb(PART, 0) == [100, 100]


def test_a_load_that_fails_once_by_chance_does_not_end_the_climb() -> None:
    assert next_load(PART, [Seen(100), Seen(200, offered=False)]) == 200
    assert next_load(PART, [Seen(100), Seen(200, offered=False), Seen(200)]) == 500
    tried = [Seen(100), Seen(200, offered=False), Seen(200), Seen(500, offered=False), Seen(500, offered=False)]
    assert next_load(PART, tried) == 320


def test_neighbours_that_are_close_get_nothing_between() -> None:
    close = replace(PART, loads=(100, 120))
    assert climb(close, 100) == [100, 120, 120]


def test_without_refinement_there_is_nothing_between() -> None:
    assert climb(replace(PART, refine=False), 200) == [100, 200, 500, 500]


def test_a_load_that_would_need_far_more_than_a_core_is_not_tried() -> None:
    assert climb(PART, 1000, cpu_a_load=0.9 / 200) == [100, 200]
    assert climb(PART, 1000, cpu_a_load=0.5 / 200) == [100, 200, 500]


def test_loads_that_need_too_many_files_are_left_out_and_named() -> None:
    allowed = files_wanted(PART, 200)
    assert affordable(PART, files_wanted(PART, 500)) == (PART, None)
    part, note = affordable(PART, allowed)
    assert part.loads == (100, 200)
    assert note is not None
    assert "500 streams left out" in note
    assert f"{allowed:,} (ulimit -Hn)" in note
    assert climb(affordable(PART, 0)[0], 1000) == []


@pytest.mark.parametrize("part", [*PARTS, *QUICK], ids=lambda part: part.name)
def test_every_plan_is_a_schedule_of_its_load(part: Part) -> None:
    load = part.loads[0]
    plan = plan_of(part, load, point=3)
    assert (plan.point, plan.mode) == (3, part.mode)
    assert plan.rate_rps == (load if part.mode == "open" else None)
    assert plan.concurrency == (None if part.mode == "open" else load)
    # Enough for every user to the window's end, however long the streams that it begins with are.
    busy_tokens = 1000 * (part.warmup_s + part.duration_s) / part.itl_ms * load
    assert part.mode == "open" or sum(r.output_tokens for r in plan.requests) >= busy_tokens


def test_the_same_load_has_the_same_plan() -> None:
    assert plan_of(PARTS[0], 200, 0) == plan_of(PARTS[0], 200, 0)


def test_streams_that_run_at_the_start_are_spread_over_their_length() -> None:
    plan = plan_of(PARTS[1], 128, 0)
    first = np.array([request.output_tokens for request in plan.requests[:128]])
    assert first.min() >= 1
    assert first.max() <= 128
    # Evenly: each quarter of the length has a quarter of the streams, to a few.
    assert np.histogram(first, bins=4, range=(1, 129))[0] == pytest.approx(32, abs=4)
    assert {request.output_tokens for request in plan.requests[128:]} == {128}
    assert in_full_swing(plan.requests, 0, 5) == plan.requests
