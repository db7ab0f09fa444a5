"""Two runs: ratios only where they mean something, every difference said, the crucial ones on top."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import synthetic_summary as synthetic

from reports.compare_page import compare, compare_text, differences, write_compare


def scaled(factor: float) -> dict[str, Any]:
    summary = synthetic.open_loop()
    for point in summary["points"]:
        point["output_tps"] *= factor
        point["goodput_rps"] *= factor
    return summary


def test_a_run_against_itself_has_ratio_one_and_no_difference() -> None:
    found = compare(synthetic.open_loop(), synthetic.open_loop())
    assert found["differences"] == []
    assert found["equal_slo"]["output_tps"]["ratio"] == 1
    assert found["equal_concurrency"]["ratio"] == pytest.approx([1] * len(found["equal_concurrency"]["ratio"]))


def test_ratios_are_b_over_a_at_equal_concurrency_and_at_equal_slo() -> None:
    found = compare(synthetic.open_loop(), scaled(1.5))
    assert found["equal_concurrency"]["ratio"] == pytest.approx([1.5] * 7)
    assert found["equal_slo"]["output_tps"]["ratio"] == pytest.approx(1.5)
    assert found["equal_slo"]["goodput_rps"]["ratio"] == pytest.approx(1.5)


def test_interpolation_is_in_log_concurrency_between_two_points() -> None:
    a, b = synthetic.open_loop(), synthetic.open_loop()
    for summary, users in ((a, (1.0, 4.0)), (b, (2.0, 8.0))):
        summary["points"] = summary["points"][:2]
        for point, concurrency, tps in zip(summary["points"], users, (100.0, 200.0), strict=True):
            point.update(concurrency_mean=concurrency, output_tps=tps)
    a["slo"]["best_point"] = b["slo"]["best_point"] = 0
    found = compare(a, b)["equal_concurrency"]
    assert found["concurrency"] == [2.0, 4.0]
    assert found["ratio"] == pytest.approx([100 / 150, 150 / 200])


def test_nothing_is_extrapolated_beyond_the_shared_range() -> None:
    a, b = synthetic.open_loop(), synthetic.open_loop()
    for point in b["points"]:
        point["concurrency_mean"] *= 1000
    found = compare(a, b)["equal_concurrency"]
    assert found["ratio"] == []
    assert found["reason"] == "the runs share no range of concurrency"


def test_invalid_and_overloaded_points_are_no_input_of_a_ratio() -> None:
    a, b = synthetic.open_loop(), synthetic.open_loop()
    for index in (synthetic.INVALID, synthetic.OVERLOADED):
        b["points"][index]["output_tps"] *= 100
    assert compare(a, b)["equal_concurrency"]["ratio"] == pytest.approx([1] * 7)


def test_the_ladders_steps_bracket_the_ratio_and_an_open_end_is_said() -> None:
    a = synthetic.open_loop()
    served = compare(a, a)["equal_slo"]["output_tps"]
    assert served["low"] < 1 < served["high"]
    b = copy.deepcopy(a)
    b["points"] = [p for p in b["points"] if p["output_tps"] <= b["points"][synthetic.BEST]["output_tps"]]
    assert compare(a, b)["equal_slo"]["output_tps"]["high"] is None
    assert "B held the SLO to the end of its ladder" in " ".join(compare_text(a, b).split())


def test_different_slos_or_none_met_give_no_ratio_but_a_reason() -> None:
    a, b = synthetic.open_loop(), synthetic.open_loop()
    b["slo"]["objectives"][0]["limit_s"] = 0.2
    assert compare(a, b)["equal_slo"]["reason"].startswith("the SLOs differ")
    a, b = synthetic.open_loop(), synthetic.all_failed()
    found = compare(a, b)
    assert found["equal_slo"]["reason"] == "no load point of B met the SLO"
    assert found["equal_concurrency"]["reason"] == "fewer than two valid points in a run"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schedule_id", "0" * 16),
        ("input_lengths", "512"),
        ("token_source", "events"),
        ("receive_stamps", "when read"),
        ("client_machine", "2 cores"),
    ],
)
def test_a_crucial_difference_stands_above_the_headline(key: str, value: str, tmp_path: Path) -> None:
    a, b = synthetic.open_loop(), synthetic.other_engine()
    if key == "schedule_id":
        b[key] = value
    else:
        b["conditions"][key] = value
    crucial = [one["key"] for one in differences(a, b) if one["crucial"]]
    assert crucial == [key]
    write_compare(a, b, tmp_path / "c.html", ("one", "two"))
    page = (tmp_path / "c.html").read_text(encoding="utf-8")
    said = f"Other {key.replace('_', ' ')}: A "
    assert page.index(said) < page.index("At equal SLO")
    text = compare_text(a, b)
    assert text.index(said) < text.index("At equal SLO")
    assert re.search(rf'<tr class="differs"><th scope="row">{key.replace("_", " ")}</th>', page)


def test_every_difference_is_marked_and_no_equal_condition_is(tmp_path: Path) -> None:
    a, b = synthetic.open_loop(), synthetic.other_engine()
    write_compare(a, b, tmp_path / "c.html", ("<b>one</b>", "two $x$"))
    page = (tmp_path / "c.html").read_text(encoding="utf-8")
    marked = re.findall(r'<tr class="differs"><th scope="row">([^<]+)</th>', page)
    assert marked == ["engine", "engine flags", "url"]
    assert "They differ in: engine, engine flags, url." in page
    assert "<b>one</b>" not in page
    assert "two $x$" in page


def test_both_runs_share_the_figures_with_their_own_points(tmp_path: Path) -> None:
    write_compare(synthetic.open_loop(), synthetic.other_engine(), tmp_path / "c.html")
    page = (tmp_path / "c.html").read_text(encoding="utf-8")
    curve = page[page.index('<svg class="plot"') :]
    curve = curve[: curve.index("</svg>")]
    assert 'data-point="a6"' in curve
    assert 'data-point="b6"' in curve
    assert "var(--a)" in curve
    assert "var(--b)" in curve
    assert "src=" not in page


def test_runs_without_any_number_can_still_be_compared(tmp_path: Path) -> None:
    write_compare(synthetic.nulls_everywhere(), synthetic.all_failed(), tmp_path / "c.html")
    assert "No ratio at equal SLO" in (tmp_path / "c.html").read_text(encoding="utf-8")
