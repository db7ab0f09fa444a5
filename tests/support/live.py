"""Real servers, started by the scripts in shared/servers, and the list of what held on them (tests/data/live.json)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[3] / "shared" / "servers"
LIVE = Path(__file__).parents[1] / "data" / "live.json"
START_S = 3600  # the first start installs vLLM or compiles llama.cpp
PRODUCTS = {"vllm": "vLLM", "llamacpp": "llama.cpp"}


def folder() -> Path:
    """Where servers are installed, built and logged; kept between runs."""
    return Path(os.environ.get("OPENLOOP_SERVERS") or Path(tempfile.gettempdir()) / "openloop-servers")


@contextmanager
def started(name: str, *arguments: str) -> Iterator[tuple[str, int | None]]:
    """URL of a server that answers, and its process id; None for one that runs already (OPENLOOP_URL_VLLM=...)."""
    running = os.environ.get(f"OPENLOOP_URL_{name.upper()}")
    if running and not arguments:
        yield running.rstrip("/"), None
        return
    script = SCRIPTS / f"serve_{name}.sh"
    if not script.exists():
        pytest.skip(f"shared/servers/{script.name} is not beside this checkout")
    folder().mkdir(parents=True, exist_ok=True)
    log_path, port = folder() / f"{name}.log", free_port()
    command = ["bash", str(script), str(folder() / name), str(port), *arguments]
    with log_path.open("wb") as log:
        variables = {"BUILD": "quick", **os.environ}
        child = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=variables)
    try:
        wait_for(f"http://127.0.0.1:{port}", child, log_path)
        yield f"http://127.0.0.1:{port}", child.pid
    finally:
        stop(child)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def wait_for(url: str, child: subprocess.Popen[bytes], log_path: Path) -> None:
    for _ in range(START_S):
        assert child.poll() is None, f"it ended:\n{log_path.read_text('utf-8', 'replace')[-2000:]}"
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise AssertionError(f"no answer after {START_S} s, see {log_path}")


def stop(child: subprocess.Popen[bytes]) -> None:
    """End the script's session: vLLM has processes of its own in it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            child.wait(20)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


class Held:
    """Which cells held on which server; written down at the end when OPENLOOP_RECORD_LIVE is set."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], dict[str, Any]] = {}

    def add(self, name: str, version: str, api: str, cell: str) -> None:
        row = {"server": PRODUCTS[name], "api": api, "version": version, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
        self._rows.setdefault((PRODUCTS[name], api), row | {"cells": []})["cells"].append(cell)

    def write(self) -> None:
        """Rows of servers and APIs that were not asked stay as they are."""
        if os.environ.get("OPENLOOP_RECORD_LIVE"):
            rows = {(row["server"], row["api"]): row for row in live_rows()} | self._rows
            LIVE.write_text(json.dumps([rows[key] for key in sorted(rows)], indent=1) + "\n", encoding="utf-8")


def live_rows() -> list[dict[str, Any]]:
    """[{server, api, version, date, cells}]"""
    rows: list[dict[str, Any]] = json.loads(LIVE.read_text("utf-8")) if LIVE.exists() else []
    return rows
