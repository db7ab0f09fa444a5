"""A sweep of a real vLLM 0.32.0 (CPU, tiny random model), kept as it was written: the contract holds for it too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reports.page import write_report
from reports.tables import points_table

FIXTURE = Path(__file__).parent / "data" / "summary_vllm.json"


def refuse(word: str) -> None:
    raise ValueError(word)


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(FIXTURE.read_text(encoding="utf-8"), parse_constant=refuse)
    return data


def test_the_server_was_recognised_and_its_own_counts_were_used(summary: dict[str, Any]) -> None:
    assert summary["conditions"]["engine"] == "vllm 0.32.0"
    assert summary["conditions"]["token_source"] == "usage (100%)"
    assert summary["conditions"]["hardware"] == "unknown"


def test_the_curve_rises_to_a_knee_past_which_the_queue_grows(summary: dict[str, Any]) -> None:
    points = summary["points"]
    assert len(points) >= 6
    assert [point["validity"]["verdict"] for point in points].count("NONSTATIONARY") >= 2
    assert summary["knee"]["measured"]["output_tps"] >= 0.9 * summary["knee"]["measured"]["x_max_tps"]
    assert "INVALID" not in {point["validity"]["verdict"] for point in points}


def test_prompt_lengths_came_out_as_asked_without_a_tokenizer(summary: dict[str, Any]) -> None:
    shares = [
        check["value"]
        for point in summary["points"]
        for check in point["validity"]["checks"]
        if check["name"] == "prompt tokens"
    ]
    assert len(shares) == len(summary["points"])
    assert max(shares) < 0.02


def test_littles_law_holds_at_every_stable_point(summary: dict[str, Any]) -> None:
    for point in summary["points"]:
        if point["validity"]["verdict"] != "NONSTATIONARY":
            [check] = [c for c in point["validity"]["checks"] if c["name"] == "Little's law"]
            assert check["verdict"] in ("pass", "warn"), check["text"]


def test_table_and_page_can_be_made_of_it(summary: dict[str, Any], tmp_path: Path) -> None:
    assert "vllm 0.32.0" in points_table(summary)
    write_report(summary, tmp_path / "report.html")
    assert "Bound unknown" in (tmp_path / "report.html").read_text(encoding="utf-8")
