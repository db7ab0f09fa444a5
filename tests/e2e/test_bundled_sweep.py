"""`bench sweep` without a URL: it starts its own engine, measures, and leaves nothing running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
BENCH = [str(Path(sys.executable).parent / "bench")]


def heed_sigint() -> None:
    """A suite that was started in the background ignores SIGINT, and its children would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def engines() -> set[int]:
    """Pids of bundled engines that run on this machine now."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if b"engine_adapters.reference\0--model" in command:
            found.add(int(entry.name))
    return found


def test_a_sweep_without_url_starts_and_stops_the_bundled_engine(tmp_path: Path) -> None:
    before = engines()
    out = tmp_path / "r"
    settings = ["--set", "load.duration=2s", "--set", "load.warmup=500ms", "--set", "load.rates=[4,8]"]
    done = subprocess.run([*BENCH, "sweep", "smoke", "--out", str(out), *settings], capture_output=True, text=True)
    assert done.returncode in (0, 4), done.stderr
    assert "starting the bundled engine" in done.stderr
    assert "2 points" in done.stderr
    assert engines() <= before
    summary = json.loads((out / "summary.json").read_text())
    assert summary["finished"]
    assert summary["conditions"]["engine"].startswith("openloop")
    for point in summary["points"]:
        assert point["counts"]["ok"] == point["counts"]["due"]
        assert point["tokens"]["prompt_mean"] == pytest.approx(32, rel=0.01)
        assert 0 < point["bound_fraction"] < 1
    assert "bench sweep smoke --url" in done.stdout


def test_ctrl_c_keeps_what_was_measured_and_leaves_no_engine(tmp_path: Path) -> None:
    before = engines()
    out = tmp_path / "r"
    child = subprocess.Popen(
        [*BENCH, "sweep", "smoke", "--out", str(out), "--set", "load.duration=60s"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_sigint,
    )
    wait_for(lambda: (out / "records.jsonl").exists() and (out / "records.jsonl").stat().st_size > 6000)
    os.kill(child.pid, signal.SIGINT)
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert "1 point is kept" in stderr
    assert engines() <= before
    summary = json.loads((out / "summary.json").read_text())
    assert not summary["finished"]
    assert summary["points"][0]["counts"]["ok"] > 0
    assert (out / "report.html").exists()


def test_a_killed_sweep_can_still_be_reported_and_its_engine_is_gone(tmp_path: Path) -> None:
    before = engines()
    out = tmp_path / "r"
    child = subprocess.Popen(
        [*BENCH, "sweep", "smoke", "--out", str(out), "--set", "load.duration=60s"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: (out / "records.jsonl").exists() and (out / "records.jsonl").stat().st_size > 6000)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    wait_for(lambda: engines() <= before)
    done = subprocess.run([*BENCH, "report", str(out)], capture_output=True, text=True)
    assert done.returncode in (0, 4), done.stderr
    summary = json.loads((out / "summary.json").read_text())
    [point] = summary["points"]
    assert point["counts"]["ok"] > 0
    # Sent and not recorded = in flight when the process was killed.
    assert point["counts"]["due"] - point["counts"]["ok"] <= 8


def wait_for(condition: object, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)
