"""What a run leaves behind and how it exits: complete, all failed, not listed model, secrets kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.fake_server import fake_server

from loadgen.cli import bench

QUICK = ["--set", "load.duration=1s", "--set", "load.warmup=200ms", "--set", "load.rates=[20]"]


def invoke(*args: str) -> Result:
    return CliRunner().invoke(bench, list(args))


def ran(result: Result) -> bool:
    """Complete; on a busy machine the client may have been late, and then says so with exit code 4."""
    assert result.exit_code in (0, 4), result.output
    return result.exit_code == 0 or "every point is INVALID" in result.output


def strict(path: Path) -> dict[str, Any]:
    """Parsed as a strict reader would: NaN and Infinity are refused (case B72)."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    data: dict[str, Any] = json.loads(path.read_text(), parse_constant=refuse)
    return data


def test_a_run_leaves_a_complete_folder_and_its_summary_keeps_the_contract(tmp_path: Path) -> None:
    out = tmp_path / "r"
    with fake_server() as (url, script):
        result = invoke("run", "smoke", "--url", url, "--out", str(out), *QUICK, "--rate", "20")
    assert ran(result)
    names = {path.name for path in out.iterdir()}
    assert names == {
        "manifest.json", "schedule.jsonl", "records.jsonl", "reads.i32", "points.jsonl", "summary.json", "report.html",
    }  # fmt: skip
    summary = strict(out / "summary.json")
    [point] = summary["points"]
    assert summary["schema_version"] == 1
    assert point["rate_rps"] == 20
    assert point["counts"]["ok"] == point["counts"]["due"] > 5
    assert set(point["metrics"]["ttft"]) == {"from_intended", "from_sent"}
    assert point["metrics"]["ttft"]["from_sent"]["p99"] is None
    assert point["metrics"]["ttft"]["from_sent"]["needs"]["p99"] == 368
    assert point["bound"]["output_tps"] is None
    assert point["bound"]["reason"]
    assert summary["conditions"]["model"] == "fake"
    # The fake tokenizer costs a token a character and three for the template: lengths are exact from usage alone.
    assert point["tokens"]["prompt_mean"] == 32
    assert len({body["messages"][0]["content"] for body in script.seen[4:]}) == len(script.seen[4:])
    assert all(body["stream_options"] == {"include_usage": True} for body in script.seen)


def test_all_requests_failed_gives_no_curve_and_exit_code_4(tmp_path: Path) -> None:
    with fake_server() as (url, script):
        script.fails_after = 4  # the preflight and its three length probes
        result = invoke("sweep", "smoke", "--url", url, "--out", str(tmp_path / "r"), *QUICK)
    assert result.exit_code == 4, result.output
    assert "HTTP 500: out of luck" in result.output
    assert "Traceback" not in result.output
    [point] = strict(tmp_path / "r" / "summary.json")["points"]
    assert point["output_tps"] in (None, 0)
    assert point["metrics"]["ttft"]["from_sent"]["p50"] is None
    assert point["failed"] == point["counts"]["due"]
    assert "out of luck" in (tmp_path / "r" / "report.html").read_text()


def test_a_model_that_is_not_listed_but_served_is_a_warning_in_the_report(tmp_path: Path) -> None:
    with fake_server() as (url, _):
        result = invoke("sweep", "smoke", "--url", url, "--model", "other", "--out", str(tmp_path / "r"), *QUICK)
    assert ran(result)
    assert any("does not list" in note for note in strict(tmp_path / "r" / "summary.json")["notes"])


def test_keys_and_headers_reach_the_server_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_KEY", "hunter2-secret")
    with fake_server() as (url, script):
        script.wants_key = "hunter2-secret"
        args = ["--api-key-env", "BENCH_KEY", "--header", "X-Extra: hunter3-secret"]
        result = invoke("sweep", "smoke", "--url", f"{url}/v1/", "--out", str(tmp_path / "r"), *QUICK, *args)
    assert ran(result)
    written = b"".join(path.read_bytes() for path in (tmp_path / "r").iterdir())
    assert b"hunter" not in written
    assert "hunter" not in result.output


def test_two_runs_of_a_scenario_have_one_schedule_and_other_words(tmp_path: Path) -> None:
    said = []
    with fake_server() as (url, script):
        for name in ("a", "b"):
            assert ran(invoke("sweep", "smoke", "--url", url, "--out", str(tmp_path / name), *QUICK))
            said.append({body["messages"][0]["content"] for body in script.seen[4:]})  # the load, not the probes
            script.seen.clear()
    a, b = (strict(tmp_path / name / "summary.json") for name in ("a", "b"))
    assert a["schedule_id"] == b["schedule_id"]
    rows = [(tmp_path / name / "schedule.jsonl").read_text() for name in ("a", "b")]
    assert rows[0] == rows[1]
    # A live server's prefix cache must not know the second run's prompts.
    assert not said[0] & said[1]
    page = tmp_path / "c.html"
    result = invoke("compare", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(page))
    assert result.exit_code == 0, result.output
    assert page.stat().st_size > 10_000
    page.write_text("mine")
    again = ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(page)]
    assert invoke(*again).exit_code == 2
    assert page.read_text() == "mine"
    assert invoke(*again, "--force").exit_code == 0
    assert page.stat().st_size > 10_000


def test_dry_run_prints_the_schedule_and_sends_nothing(tmp_path: Path) -> None:
    with fake_server() as (url, script):
        result = invoke("sweep", "smoke", "--url", url, "--dry-run")
        assert script.seen == []
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert {row["point"] for row in rows} == {0, 1, 2}
    assert all(row["prompt_tokens"] == 32 and row["output_tokens"] == 16 for row in rows)


def test_records_hold_wall_clock_and_monotonic_instants_with_one_anchor(tmp_path: Path) -> None:
    # Case B82.
    with fake_server() as (url, _):
        assert ran(invoke("sweep", "smoke", "--url", url, "--out", str(tmp_path / "r"), *QUICK))
    rows = [json.loads(line) for line in (tmp_path / "r" / "records.jsonl").read_text().splitlines()]
    anchors = [row["intended_wall_s"] - row["intended_at_ns"] / 1e9 for row in rows]
    assert max(anchors) - min(anchors) < 1e-6
    created = strict(tmp_path / "r" / "manifest.json")["created_utc"]
    assert created.endswith("Z")


def test_closed_loop_is_labelled(tmp_path: Path) -> None:
    with fake_server() as (url, _):
        result = invoke(
            "run", "smoke", "--url", url, "--out", str(tmp_path / "r"), "--concurrency", "2", "--duration", "1s"
        )
    assert ran(result)
    summary = strict(tmp_path / "r" / "summary.json")
    [point] = summary["points"]
    assert summary["mode"] == "closed"
    assert point["metrics"]["ttft"]["from_intended"] is None
    assert point["concurrency_target"] == 2
    assert "closed loop" in result.output


def test_the_conditions_of_a_single_point_are_that_points(tmp_path: Path) -> None:
    with fake_server() as (url, _):
        assert ran(invoke("run", "smoke", "--url", url, "--out", str(tmp_path / "r"), "--duration", "3s"))
    load = strict(tmp_path / "r" / "summary.json")["conditions"]["load"]
    assert "arrivals, 2 requests/s, 3 s measured" in load


def test_too_few_samples_for_the_slo_are_said_to_be_just_that(tmp_path: Path) -> None:
    with fake_server() as (url, _):
        result = invoke("run", "smoke", "--url", url, "--out", str(tmp_path / "r"), "--rate", "20", "--duration", "1s")
    assert ran(result)
    if result.exit_code == 0:
        assert "can't be said" in " ".join(result.output.split())
        assert "needs 72" in " ".join(result.output.split())


def test_a_report_goes_elsewhere_when_the_folder_can_not_take_it(tmp_path: Path) -> None:
    with fake_server() as (url, _):
        assert ran(invoke("sweep", "smoke", "--url", url, "--out", str(tmp_path / "r"), *QUICK))
    (tmp_path / "r" / "report.html").unlink()
    page = tmp_path / "page.html"
    assert invoke("report", str(tmp_path / "r"), "--out", str(page)).exit_code in (0, 4)
    assert page.stat().st_size > 10_000
    assert not (tmp_path / "r" / "report.html").exists()


def test_a_point_in_which_nothing_was_due_is_invalid(tmp_path: Path) -> None:
    with fake_server() as (url, _):
        args = ["--rate", "0.001", "--duration", "200ms", "--set", "load.warmup=0s"]
        result = invoke("run", "smoke", "--url", url, "--out", str(tmp_path / "r"), *args)
    assert result.exit_code == 4, result.output
    [point] = strict(tmp_path / "r" / "summary.json")["points"]
    assert point["validity"]["verdict"] == "INVALID"
