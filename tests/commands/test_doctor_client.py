"""`bench doctor --client` from the command line: it measures, tells, and can be interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.cli import bench
from loadgen.commands import doctoring
from loadgen.self_test.ladder import QUICK

BENCH = [str(Path(sys.executable).parent / "bench")]
TINY = (
    replace(QUICK[0], loads=(20,), warmup_s=0.1, duration_s=0.8),
    replace(QUICK[1], loads=(4,), warmup_s=0.1, duration_s=0.4, output_tokens=8, running_tokens=8),
    replace(QUICK[2], loads=(20,), warmup_s=0.1, duration_s=0.4, output_tokens=2, running_tokens=4),
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctoring, "PARTS", TINY)


@pytest.mark.e2e
@pytest.mark.usefixtures("tiny")
def test_every_part_is_measured_against_the_servers_log() -> None:
    done = CliRunner().invoke(bench, ["doctor", "--client", "--json"], catch_exceptions=False, standalone_mode=False)
    data = json.loads(done.stdout)
    assert data["finished"]
    by_part = {rung["part"]: rung for rung in data["rungs"]}
    assert list(by_part) == ["requests", "events", "streams"]
    for rung in by_part.values():
        assert rung["n_matched"] == rung["due"] == rung["sent"] > 0
        # Ten times what a busy machine does here; a client's stamp is never before the server's.
        assert 0 <= rung["ttft_error_s"][0] < 0.01
        assert 0 <= rung["itl_error_s"][0] < 0.01
        assert 0 < rung["cpu_share"] < 1.5
        assert rung["memory_bytes"] is None or rung["memory_bytes"] < 500e6
    assert len(data["sentences"]) >= 3
    assert data["server"]["kind"] in ("C", "Python")


@pytest.mark.e2e
@pytest.mark.usefixtures("tiny")
def test_the_table_has_a_row_a_load_and_ends_with_sentences() -> None:
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    done = CliRunner().invoke(bench, ["doctor", "--client"], standalone_mode=False)
    table, _, told = done.stdout.partition("\n\n")
    assert len(table.split("\n")) == 2 + done.stderr.count("] ")
    assert "Requests (open loop" in told
    assert "client machine: " in done.stderr
    assert before is None or os.sched_getaffinity(0) == before


def test_without_a_subject_it_says_what_to_give() -> None:
    done = subprocess.run([*BENCH, "doctor"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip() == "doctor: say what to look at: --client or --url URL, one of them"


def heed_sigint() -> None:
    """A suite that was started in the background ignores SIGINT, and its children would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.e2e
def test_ctrl_c_exits_130_with_what_it_has() -> None:
    child = subprocess.Popen(
        [*BENCH, "doctor", "--client", "--quick"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_sigint,
    )
    assert child.stderr is not None
    while "[1]" not in (line := child.stderr.readline()):
        assert line, "it ended before the first load"
    child.send_signal(signal.SIGINT)
    stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == 130, stderr
    assert "500 requests/s" in stdout
    assert "Requests (open loop" in stdout
    assert "Traceback" not in stderr
