"""The terminal's table: plain, 80 columns, with conditions, answers and reasons."""

from __future__ import annotations

import pytest
import synthetic_summary as synthetic

from reports.tables import answer_sentences, points_table

BUILDERS = [
    synthetic.open_loop, synthetic.closed_loop, synthetic.unknown_bound, synthetic.far_bound, synthetic.all_failed,
    synthetic.nulls_everywhere,
]  # fmt: skip


@pytest.mark.parametrize("build", BUILDERS)
def test_a_table_is_plain_text_of_80_columns_with_its_conditions(build: object) -> None:
    text = points_table(build())  # type: ignore[operator]
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    for name in ("input lengths:", "output lengths:", "load:", "latency target:"):
        assert name in text
    assert not any(word in text for word in ("None", "nan", "inf "))


def test_the_answer_names_the_slo_the_users_the_throughput_the_bound_and_the_knee() -> None:
    assert answer_sentences(synthetic.open_loop()) == [
        "Within the SLO (TTFT p95 < 500 ms, ITL p95 < 50 ms) it serves 30 users: 5 requests/s, 1,215 output tokens/s, "
        "35% of the memory-bandwidth bound.",
        "Past the knee at 58 users (1,507 output tokens/s) the queue grows.",
    ]


def test_an_slo_that_nothing_met_gives_the_lightest_points_figures() -> None:
    summary = synthetic.open_loop()
    summary["slo"].update(best_point=None, reason="no load point met it")
    assert answer_sentences(summary)[0].endswith(
        "no load point met it. The lightest point had TTFT p95 n/a, needs 72, ITL p95 16 ms."
    )


def test_without_an_overloaded_point_the_queue_is_not_said_to_grow() -> None:
    summary = synthetic.open_loop()
    summary["points"] = [p for p in summary["points"] if p["index"] != synthetic.OVERLOADED]
    assert "little is gained" in answer_sentences(summary)[1]
    summary["knee"] = {"measured": None, "model": None, "reason": "throughput still grew at the last point"}
    assert answer_sentences(summary)[1] == "No knee: throughput still grew at the last point."


def test_a_knee_at_the_heaviest_counted_point_is_not_said_to_be_passed() -> None:
    summary = synthetic.open_loop()
    summary["points"] = [p for p in summary["points"] if p["index"] <= summary["points"][4]["index"]]
    last = summary["points"][4]
    summary["knee"]["measured"].update(
        point=last["index"], concurrency=last["concurrency_mean"], output_tps=last["output_tps"]
    )
    summary["slo"]["best_point"] = last["index"]
    assert answer_sentences(summary)[1].startswith("The knee was not passed: throughput was highest at the heaviest")


def test_a_knee_that_only_overload_reaches_is_not_told_as_a_number_of_users() -> None:
    summary = synthetic.overloaded_knee()
    assert answer_sentences(summary)[1] == (
        "Past 30 users (1,215 output tokens/s), the heaviest load without a growing queue, only overload gives more: "
        "1,652 at most."
    )
    summary["points"] = [p for p in summary["points"] if p["index"] == synthetic.OVERLOADED]
    summary["slo"].update(best_point=None, reason="no load point met it")
    assert answer_sentences(summary)[1].startswith("No knee: the queue grew at every load that counts; 1,652 output")


def test_a_run_where_all_failed_has_errors_and_no_table() -> None:
    text = points_table(synthetic.all_failed())
    assert "172 x http_status: 503 Service Unavailable: model is loading" in text
    assert "TTFT\n" not in text
    assert "p50 ms" not in text


def test_missing_numbers_are_na_with_a_footnote_and_verdicts_are_words() -> None:
    text = points_table(synthetic.open_loop())
    assert "a: needs 72 samples" in text
    assert "b: withheld: the queue grows (NONSTATIONARY)" in text
    assert any(line.startswith(" 8.00") and line.endswith("overloaded") for line in text.splitlines())
    assert "2.00 invalid: lateness. p99 of sent - intended was 63.0 ms" in text


def test_a_run_without_tokens_shows_e2e_instead_of_ttft_and_itl() -> None:
    summary = synthetic.open_loop()
    for point in summary["points"]:
        point["output_tps"] = None
        for start in point["metrics"]["ttft"].values():
            if start is not None:
                start["n"] = 0
    text = points_table(summary)
    assert "E2E" in text
    assert "TTFT  " not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "E2E" not in points_table(synthetic.open_loop())
