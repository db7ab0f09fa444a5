"""Goodput: all limits at once, inclusive, against everything that was scheduled."""

from __future__ import annotations

import pytest
from analysis_builders import log, record

from loadgen.analysis.goodput import Objective, goodput, is_good, request_value


def _answer(at_s: float, ttft_s: float, tpot_s: float):
    return record(at_s, ttft_s, (tpot_s, tpot_s))


def test_b78_two_of_five_meet_both_limits() -> None:
    records = [_answer(0, 0.150, 0.020), _answer(1, 0.250, 0.020), _answer(2, 0.150, 0.040), _answer(3, 0.200, 0.030)]
    records.append(record(4, None, status="failed", end_s=0.1, error_class="http_status"))
    objectives = [Objective("ttft", "p95", 0.200), Objective("tpot", "p95", 0.030)]
    rps, attainment = goodput(log(records), records, objectives)
    assert rps == pytest.approx(0.2)
    assert attainment == pytest.approx(0.4)


def test_shed_unsent_and_unfinished_requests_are_misses() -> None:
    records = [
        _answer(0, 0.1, 0.01),
        record(1, None, status="shed", sent_at_ns=None),
        record(2, 0.1, status="unfinished"),
    ]
    point = log(records, due_measured=5)
    assert goodput(point, records, [Objective("ttft", "p95", 0.2)])[1] == pytest.approx(1 / 5)


def test_open_loop_counts_from_the_intended_send_and_closed_loop_from_the_actual_one() -> None:
    late = [record(0, 0.1, late_s=0.5)]
    objectives = [Objective("ttft", "p95", 0.2)]
    assert goodput(log(late), late, objectives)[1] == 0.0
    assert goodput(log(late, mode="closed"), late, objectives)[1] == 1.0


def test_itl_of_a_request_is_the_objectives_statistic_over_its_own_gaps() -> None:
    answer = record(0, 0.1, (0.01,) * 18 + (0.2,) * 2)
    assert request_value(answer, Objective("itl", "p50", 1), "sent") == pytest.approx(0.01)
    assert request_value(answer, Objective("itl", "p95", 1), "sent") == pytest.approx(0.2)
    assert request_value(answer, Objective("itl", "mean", 1), "sent") == pytest.approx(0.029)


def test_an_event_of_several_tokens_is_one_gap_shared_over_them() -> None:
    answer = record(0, 0.1, (0.06,) * 9, output_tokens=30, output_tokens_source="usage")
    assert request_value(answer, Objective("itl", "p95", 1), "sent") == pytest.approx(0.02)


def test_one_token_answers_meet_token_limits_and_answers_without_an_answer_token_miss_ttfo() -> None:
    assert is_good(record(0, 0.1), [Objective("tpot", "p95", 0.01), Objective("itl", "p95", 0.01)], "sent")
    assert not is_good(record(0, 0.1, first_answer_at_ns=None), [Objective("ttfo", "p95", 9.0)], "sent")


def test_without_objectives_there_is_no_goodput() -> None:
    assert goodput(log([record()]), [record()], []) == (None, None)
