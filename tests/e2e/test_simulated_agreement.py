"""The simulated engine behind HTTP in real time and the same in virtual time: throughput and TTFT within 3%."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine_adapters.reference.process import EngineProcess

pytestmark = pytest.mark.e2e
BENCH = [str(Path(sys.executable).parent / "bench")]
# Slow enough that HTTP's milliseconds do not matter: a prompt takes 150 ms, a decode step 70 ms.
MACHINE = ("--hardware", "l4", "--devices", "1")
LOAD = (
    "--set", "api=completions", "--set", "load.rates=[2]", "--set", "load.duration=8s", "--set", "load.warmup=2s",
    "--set", "load.arrivals=constant", "--set", "load.cooldown=4s",
    "--set", "workload.prompt.tokens=500", "--set", "workload.output.tokens=16",
)  # fmt: skip


def point(args: list[str], out: Path) -> dict[str, Any]:
    done = subprocess.run([*BENCH, *args, "--out", str(out)], capture_output=True, text=True)
    assert done.returncode in (0, 4), done.stderr
    [found] = json.loads((out / "summary.json").read_text())["points"]
    return dict(found)


def test_virtual_and_real_time_agree_within_3_percent_in_throughput_and_ttft(tmp_path: Path) -> None:
    with EngineProcess("llama-3.1-8b", extra_args=["--executor", "simulated", *MACHINE]) as engine:
        real = point(["sweep", "smoke", "--url", engine.url, *LOAD], tmp_path / "real")
    virtual = point(["simulate", "smoke", "--model", "llama-3.1-8b", *MACHINE, *LOAD], tmp_path / "virtual")
    assert real["counts"]["ok"] == virtual["counts"]["ok"] == 16
    assert real["output_tps"] == pytest.approx(virtual["output_tps"], rel=0.03)
    ttft = [found["metrics"]["ttft"]["from_sent"]["p50"] for found in (real, virtual)]
    assert ttft[0] == pytest.approx(ttft[1], rel=0.03)
