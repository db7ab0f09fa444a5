"""Exports: CSV that a program reads, Markdown that survives hostile text, JUnit that never turns doubt into a pass."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ET
from typing import Any

import pytest
import synthetic_summary as synthetic

from reports.exports import gate_junit, gate_markdown, gate_table, points_csv, points_markdown


def decision(verdict: str = "FAIL", second: str = "PASS") -> dict[str, Any]:
    def metric(name: str, ratio: float, outcome: str) -> dict[str, Any]:
        return {"metric": name, "margin": 0.1, "ratio": ratio, "ratio_low": ratio - 0.04, "ratio_high": ratio + 0.05,
                "verdict": outcome, "text": f"{name} is {ratio - 1:+.1%}"}  # fmt: skip

    return {
        "verdict": verdict, "pairs": 5, "conditions": {"input_lengths": "32", "load": "poisson | 20 requests/s"},
        "metrics": [metric("ttft_p95", 1.31, verdict), metric("tpot_p50", 1.01, second)], "notes": ["a <b>note</b>"],
    }  # fmt: skip


def test_csv_has_units_in_its_names_raw_values_and_a_reason_for_each_gap() -> None:
    rows = list(csv.DictReader(io.StringIO(points_csv(synthetic.open_loop()))))
    assert [row["rate_rps"] for row in rows] == ["0.25", "0.5", "1", "2", "4", "5", "6.2", "6.6", "8"]
    assert rows[0]["ttft_p95_ms"] == ""
    assert "ttft_p95_ms: needs 72 samples, has 60" in rows[0]["missing"]
    assert float(rows[5]["ttft_p95_ms"]) == pytest.approx(474.4, abs=1)
    assert rows[8]["validity"] == "NONSTATIONARY"
    units = ("_ms", "_rps", "_tps", "_s", "_share", "_mean", "_max")
    counts = {"point", "failed", "unfinished", "stalls", "tokens_per_event", "limiter", "validity", "missing"}
    assert all(name.endswith(units) or name in counts for name in rows[0])


def test_markdown_tables_are_rectangular_and_carry_the_conditions() -> None:
    summary = synthetic.open_loop()
    summary["conditions"]["engine"] = "v|LLM <script>"
    text = points_markdown(summary)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert "- latency target: TTFT p95 &lt; 500 ms" in text
    assert "v\\|LLM &lt;script>" in text


@pytest.mark.parametrize(
    ("verdict", "failures", "errors"), [("PASS", 0, 0), ("FAIL", 1, 0), ("INCONCLUSIVE", 0, 1), ("INVALID", 0, 1)]
)
def test_junit_says_failure_only_for_a_regression_and_error_for_no_verdict(
    verdict: str, failures: int, errors: int
) -> None:
    suites = ET.fromstring(gate_junit(decision(verdict)))
    assert (suites.get("tests"), suites.get("failures"), suites.get("errors")) == ("2", str(failures), str(errors))
    assert len(suites.findall(".//failure")) == failures
    assert len(suites.findall(".//error")) == errors


def test_junit_of_a_gate_that_measured_nothing_is_not_green() -> None:
    nothing = decision("INVALID") | {"metrics": [], "notes": ["server\x00 gone"]}
    suites = ET.fromstring(gate_junit(nothing))
    assert suites.get("errors") == "1"
    assert "server? gone" in ET.tostring(suites, encoding="unicode")


def test_a_gate_is_shown_with_intervals_margins_notes_and_conditions() -> None:
    for text in (gate_table(decision()), gate_markdown(decision())):
        assert "FAIL after 5 interleaved pairs" in text
        assert "1.270 to 1.360" in text
        assert "+10%" in text
        assert "input lengths: 32" in text
    assert "<b>" not in gate_markdown(decision())
    assert max(map(len, gate_table(decision()).splitlines())) <= 80


def test_a_gate_without_a_ratio_says_na() -> None:
    one = decision("INCONCLUSIVE")
    one["metrics"][0].update(ratio=None, ratio_low=None, ratio_high=None)
    assert "n/a" in gate_table(one)
