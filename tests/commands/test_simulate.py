"""`bench simulate`: an ordinary run folder that says that nothing was measured, and a curve under its bound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from loadgen.cli import bench

QUICK = ("--set", "load.duration=12s", "--set", "load.warmup=3s", "--set", "load.cooldown=10s")
LADDER = ("--set", "load.rates=[2,8,24,60]", *QUICK)


def simulate(out: Path, *args: str, scenario: str = "chat") -> Result:
    return CliRunner().invoke(bench, ["simulate", scenario, "--hardware", "h200-sxm", "--out", str(out), *args])


def summary_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found


@pytest.fixture(scope="module")
def curve(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Llama-3.1-8B on one H200 under the chat scenario, from light load to overload."""
    out = tmp_path_factory.mktemp("simulated") / "r"
    done = simulate(out, *LADDER)
    assert done.exit_code == 0, done.output
    return out


def test_it_leaves_an_ordinary_run_folder_that_can_be_reported_again(curve: Path) -> None:
    names = {path.name for path in curve.iterdir()}
    assert names == {
        "manifest.json", "schedule.jsonl", "records.jsonl", "reads.i32", "points.jsonl", "summary.json", "report.html",
    }  # fmt: skip
    before = summary_of(curve)
    assert CliRunner().invoke(bench, ["report", str(curve)]).exit_code == 0
    assert summary_of(curve) == before


def test_it_is_marked_as_simulated_in_manifest_conditions_notes_and_the_pages_title(curve: Path) -> None:
    summary, manifest = summary_of(curve), json.loads((curve / "manifest.json").read_text())
    assert manifest["simulated"]
    assert summary["simulated"] is True
    assert "simulated" in summary["conditions"]["engine"]
    assert summary["conditions"]["hardware"] == "H200-SXM (simulated)"
    assert summary["conditions"]["client_machine"] == "none (virtual time)"
    assert any(note.startswith("SIMULATED") for note in summary["notes"])
    assert any("bandwidth_efficiency 0.8" in note for note in summary["notes"])
    page = (curve / "report.html").read_text()
    assert "(simulated, not measured)</title>" in page


def test_the_simulated_curve_lies_under_its_bound_everywhere_and_passes_its_own_certificate(curve: Path) -> None:
    points = summary_of(curve)["points"]
    assert all(0.05 < point["bound_fraction"] < 1 for point in points)
    assert {point["validity"]["verdict"] for point in points} <= {"VALID", "WARN", "NONSTATIONARY"}
    assert points[-1]["validity"]["verdict"] == "NONSTATIONARY"
    tps = [point["output_tps"] for point in points]
    assert tps == sorted(tps)


def test_lengths_cache_hits_and_schedule_are_those_of_the_scenario(curve: Path) -> None:
    summary = summary_of(curve)
    for point in summary["points"]:
        due, ok = point["counts"]["due"], point["counts"]["ok"]
        assert ok == due or point["validity"]["verdict"] != "VALID"
    dry = CliRunner().invoke(bench, ["sweep", "chat", "--url", "http://nowhere", "--dry-run", *LADDER])
    rows = [json.loads(line) for line in dry.stdout.splitlines()]
    kept = [json.loads(line) for line in (curve / "schedule.jsonl").read_text().splitlines()]
    assert kept == rows


def test_step_by_step_gives_the_same_summary(tmp_path: Path) -> None:
    found = []
    for name, more in (("a", ()), ("b", ("--step-by-step",))):
        done = simulate(tmp_path / name, *QUICK, "--set", "load.rates=[8]", "--step-noise", "0.05", *more)
        assert done.exit_code == 0, done.output
        found.append(summary_of(tmp_path / name)["points"])
    assert found[0] == found[1]


def test_an_automatic_ladder_finds_the_knee_of_a_fleet(tmp_path: Path) -> None:
    done = simulate(
        tmp_path / "r", *QUICK, "--replicas", "2", "--router", "prefix_aware",
        "--set", "load.rates=auto", "--set", "load.max_points=6", "--engine", "max_num_seqs=8",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    summary = summary_of(tmp_path / "r")
    # 16 at once is all that the fleet takes; at the knee some wait already.
    assert 12 < summary["knee"]["measured"]["concurrency"] < 32
    assert summary["conditions"]["split"] == "2 replicas of 1 device, prefix_aware"
    assert "max_num_seqs=8" in summary["conditions"]["engine_flags"]


def test_a_bound_that_does_not_count_speculation_is_not_shown_with_it(tmp_path: Path) -> None:
    done = simulate(tmp_path / "r", *QUICK, "--set", "load.concurrency=[4]", "--speculate", "3:0.8")
    assert done.exit_code == 0, done.output
    summary = summary_of(tmp_path / "r")
    [point] = summary["points"]
    assert point["bound"]["output_tps"] is None
    assert "speculation is on" in summary["roofline"]["reason"]
    assert point["tokens"]["per_event"] == pytest.approx(2.95, abs=0.15)
    assert point["metrics"]["itl"]["p50"] is not None
    assert summary["conditions"]["speculation"] == "3 tokens a step, acceptance 0.8 (assumed)"


def test_prefill_and_decode_pools_are_said_in_the_conditions(tmp_path: Path) -> None:
    done = simulate(tmp_path / "r", *QUICK, "--set", "load.rates=[4]", "--prefill-replicas", "1", "--replicas", "2")
    assert done.exit_code == 0, done.output
    assert summary_of(tmp_path / "r")["conditions"]["split"].startswith("1 prefill + 2 decode replicas")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--model", "llama-9"], "unknown model 'llama-9'"),
        (["--model", "mixtral-8x7b"], "mixture of experts"),
        (["--model", "llama-3.1-405b"], "does not fit in 1 x H200-SXM"),
        (["--devices", "3"], "can't be split over 3"),
        (["--precision", "fp9"], "unknown precision"),
        (["--kv-precision", "int4"], "unknown KV precision 'int4'"),
        (["--speculate", "x"], "--speculate x"),
        (["--assume", "speed=2"], "unknown assumption 'speed'"),
        (["--engine", "max_seqs=2"], "--engine max_seqs: unknown"),
        (["--engine", "max_model_len=512"], "the longest request has"),
        (["--hardware", "h300"], "unknown hardware 'h300'"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2_and_leave_no_folder(tmp_path: Path, args: list[str], says: str) -> None:
    done = simulate(tmp_path / "r", "--set", "load.rates=[1]", *args)
    assert done.exit_code == 2, done.output
    assert says in done.output
    assert "Traceback" not in done.output
    assert not (tmp_path / "r").exists()


def test_every_assumption_is_listed_with_its_default_and_source() -> None:
    listed = CliRunner().invoke(bench, ["simulate", "--assumptions"])
    assert listed.exit_code == 0
    lines = listed.output.splitlines()
    assert len(lines) >= 11
    assert any(line.startswith("bandwidth_efficiency") and "0.8" in line and "fit to" in line for line in lines)
