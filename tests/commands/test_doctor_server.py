"""`bench doctor --url` from the command line: what it understood of a server, and what should give pause."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.fake_server import fake_server

from engine_adapters.reference.process import EngineProcess
from loadgen.cli import bench

BENCH = [str(Path(sys.executable).parent / "bench")]


def doctor(url: str, *args: str) -> Result:
    return CliRunner().invoke(bench, ["doctor", "--url", url, *args])


def data_of(url: str, *args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(doctor(url, "--json", *args).stdout)
    return found


def rows(result: Result) -> dict[str, str]:
    assert result.exit_code == 0, result.output
    return {line[:13].strip(): line[13:] for line in result.stdout.splitlines() if line[:13].strip()}


def test_the_table_tells_server_first_event_counts_length_clock_and_connection() -> None:
    with fake_server() as (url, _):
        told = rows(doctor(url))
    assert told["server"].startswith("fake ")
    assert told["server"].endswith(url)
    assert told["first event"].endswith("content")
    assert told["events"].startswith("18, 16 of them with tokens")
    assert told["tokens"].startswith("16 by the server's usage; usage in one event;")
    assert told["length"] == "max_tokens: kept to, finish reason length; ignore_eos taken"
    assert told["connection"].startswith("closed by the server")
    assert told["API"].startswith("openai-chat, /v1/chat/completions: the default")
    assert {"headers", "first token", "last token", "reasoning", "clock", "connecting"} <= told.keys()


def test_what_the_server_refuses_is_named() -> None:
    with fake_server() as (url, script):
        script.refuses = ('"max_tokens"', "use max_completion_tokens")
        told = data_of(url)
    assert told["answer"]["max_tokens_field"] == "max_completion_tokens"
    assert "the server takes max_completion_tokens" in told["notes"]


def test_an_early_stop_shows_that_the_length_is_not_kept() -> None:
    with fake_server() as (url, script):
        script.stops_early = {1, 2}
        told = rows(doctor(url))
    assert told["length"].startswith("max_tokens: 16 were asked for, finish reason stop")


def test_an_answer_that_is_held_back_is_warned_about() -> None:
    with fake_server() as (url, script):
        script.holds_back = True
        script.token_gap_s = 0.005
        result, told = doctor(url), data_of(url)
    assert told["answer"]["came_at_once"] is True
    assert "! all 16 tokens came at once" in result.stdout
    assert "proxy_buffering off" in result.stdout


@pytest.mark.e2e
def test_the_bundled_engine_is_understood() -> None:
    with EngineProcess(model="tiny") as engine:
        told = data_of(engine.url)
    assert told["answer"]["ok"]
    assert told["answer"]["output_tokens"] == told["answer"]["output_tokens_asked"] == 16
    assert told["answer"]["output_tokens_source"] == "usage"
    assert told["connection_reused"]
    instants = [
        told["answer"]["instants"][f"{name}_s"] for name in ("headers", "first_token", "last_token", "stream_end")
    ]
    assert instants == sorted(instants)
    assert told["model"]["name"] == "tiny"


def test_a_template_is_read_from_the_scenario_that_has_it(tmp_path: Path) -> None:
    scenario = tmp_path / "mine.yaml"
    scenario.write_text(
        "name: mine\napi: template\n"
        "template: {path: /v1/completions, text: 'choices[0].text',\n"
        "  body: {model: '{model}', prompt: '{prompt}', max_tokens: '{max_tokens}', stream: true}}\n"
        "workload: {prompt: {tokens: 8}, output: {tokens: 8}}\nload: {rates: [1]}\n"
    )
    with EngineProcess("tiny") as engine:
        told = rows(doctor(engine.url, "--scenario", str(scenario), "--model", "tiny"))
    assert told["API"].startswith("template, /v1/completions")
    assert "16 of them with tokens" in told["events"]
    alone = doctor("http://127.0.0.1:9", "--api", "template")
    assert (alone.exit_code, "--scenario FILE" in alone.output) == (2, True)


def test_errors_are_one_line_and_exit_2() -> None:
    with fake_server() as (url, script):
        script.wants_key = "k"
        refused = doctor(url)
        script.wants_key, script.fails_after = None, 1
        failed = doctor(url)
    for result, words in (
        (refused, "refused the credentials"),
        (failed, "the answer was no success: HTTP 500: out of luck"),
        (doctor("http://127.0.0.1:1"), "no answer from"),
        (doctor("nonsense"), "a URL looks like"),
        (CliRunner().invoke(bench, ["doctor", "--client", "--url", "http://x"]), "one of them"),
        (CliRunner().invoke(bench, ["doctor", "--client", "--insecure"]), "none of a server's options"),
    ):
        assert result.exit_code == 2
        assert words in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


def test_no_secret_is_printed_even_when_the_server_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCTOR_KEY", "sk-a-secret-of-the-doctor")
    with fake_server() as (url, script):
        script.repeats_headers = True
        shown = doctor(url, "--api-key-env", "DOCTOR_KEY").output + str(data_of(url, "--api-key-env", "DOCTOR_KEY"))
    assert "sk-a-secret" not in shown
    assert "***" in shown


@pytest.mark.e2e
def test_ctrl_c_exits_130() -> None:
    with fake_server() as (url, script):
        script.first_token_s = 30.0
        child = subprocess.Popen(
            [*BENCH, "doctor", "--url", url],
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        while not script.seen:
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        _, stderr = child.communicate(timeout=30)
    assert child.returncode == 130
    assert stderr.strip() == "interrupted"
