"""Faults of asking that people really hit (cases B38, B40, B94, B96), over real sockets and from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from support.fake_server import fake_server

from loadgen.cli import bench

QUICK = ["--rate", "20", "--set", "load.duration=1s", "--set", "load.warmup=200ms"]
WANTS_OTHER_FIELD = ('"max_tokens"', "Unsupported parameter: use max_completion_tokens")


def run(url: str, out: Path, *args: str) -> Result:
    return CliRunner().invoke(bench, ["run", "smoke", "--url", url, "--out", str(out), *QUICK, *args])


def summary_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found


def check_named(out: Path, name: str) -> dict[str, Any]:
    [point] = summary_of(out)["points"]
    found: dict[str, Any] = next(check for check in point["validity"]["checks"] if check["name"] == name)
    return found


def test_a_server_that_wants_max_completion_tokens_and_one_user_message_gets_them_b40_b94_b96(tmp_path: Path) -> None:
    with fake_server() as (url, script):
        script.refuses = WANTS_OTHER_FIELD
        result = run(url, tmp_path / "r", "--model", "my-model")
        roles = {tuple(message["role"] for message in body["messages"]) for body in script.seen}
    assert result.exit_code in (0, 4), result.output
    summary = summary_of(tmp_path / "r")
    [point] = summary["points"]
    assert point["counts"]["failed"] == 0
    assert any("max_completion_tokens" in note for note in summary["notes"])
    assert roles == {("user",)}
    assert check_named(tmp_path / "r", "tokens")["verdict"] == "pass"
    # No tokenizer of another model was looked for: the server's counts were used, and the source is told.
    assert sum(point["tokens"]["source"].values()) == point["tokens"]["source"]["usage"] > 0


def test_the_wrong_field_ends_the_run_early_with_the_servers_message_b40(tmp_path: Path) -> None:
    with fake_server() as (url, script):
        script.refuses = WANTS_OTHER_FIELD
        result = run(url, tmp_path / "r", "--set", "request.max_tokens_field=max_tokens")
        assert len(script.seen) == 1
    assert result.exit_code == 2
    assert "use max_completion_tokens" in result.output
    assert not (tmp_path / "r").exists()


def test_answers_shorter_than_asked_under_ignore_eos_make_the_point_invalid_b38(tmp_path: Path) -> None:
    with fake_server() as (url, script):
        script.stops_early = {i for i in range(4, 400) if i % 10 < 3}
        run(url, tmp_path / "r")
    check = check_named(tmp_path / "r", "tokens")
    assert check["verdict"] == "invalid"
    assert "shorter than asked" in check["text"]
    assert summary_of(tmp_path / "r")["points"][0]["tokens"]["output_mean"] < 16


def test_a_wrong_api_name_is_a_usage_error_in_one_line() -> None:
    result = CliRunner().invoke(bench, ["run", "smoke", "--url", "http://127.0.0.1:9", "--api", "chatt"])
    assert result.exit_code == 2
    assert "unknown API 'chatt'" in result.output
    assert result.output.count("\n") == 1
