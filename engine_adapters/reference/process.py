"""Runs the engine as a subprocess: started on a free port, known to be healthy, and never left behind."""

from __future__ import annotations

import http.client
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Self
from urllib.parse import urlsplit

from engine_adapters.child import end_child
from engine_adapters.reference.config import PROCESS_ENVIRONMENT

STARTUP_TIMEOUT_S = 60.0
STOP_GRACE_S = 8.0
STDERR_TAIL_BYTES = 2000
LISTENING = "listening on "


class EngineStartError(RuntimeError):
    """The engine did not come up; the text holds the last lines that it wrote."""


class EngineProcess:
    """`with EngineProcess(model="tiny") as engine: engine.url`: a running bundled engine on 127.0.0.1.

    The subprocess has one BLAS thread. It sits in its own session, so that Ctrl-C in the terminal reaches only the
    parent, and it watches its stdin, so that it ends when the parent does, whatever ends it. Raises EngineStartError.
    """

    def __init__(
        self,
        model: str = "tiny",
        slowdown: float = 1.0,
        extra_args: Sequence[str] = (),
        startup_timeout_s: float = STARTUP_TIMEOUT_S,
    ) -> None:
        self.model = model
        self.url = ""
        self._startup_timeout_s = startup_timeout_s
        self._args = ["--model", model, "--slowdown", str(slowdown), "--port", "0", "--die-with-stdin", *extra_args]
        self._process: subprocess.Popen[bytes]
        self._stderr: IO[bytes]

    @property
    def pid(self) -> int:
        """The subprocess's id."""
        return self._process.pid

    def __enter__(self) -> Self:
        self._stderr = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "engine_adapters.reference", *self._args],
            env=os.environ | PROCESS_ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
        )
        try:
            deadline_s = time.monotonic() + self._startup_timeout_s
            self.url = self._read_url(deadline_s)
            self._wait_until_healthy(deadline_s)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def is_alive(self) -> bool:
        """Whether the subprocess runs."""
        return self._process.poll() is None

    def stderr_tail(self) -> str:
        """The last lines that the engine wrote to stderr."""
        size = os.fstat(self._stderr.fileno()).st_size
        tail = os.pread(self._stderr.fileno(), STDERR_TAIL_BYTES, max(size - STDERR_TAIL_BYTES, 0))
        return tail.decode("utf-8", "replace").strip()

    def _read_url(self, deadline_s: float) -> str:
        assert self._process.stdout is not None
        output = b""
        while b"\n" not in output:
            ready, _, _ = select.select([self._process.stdout], [], [], max(deadline_s - time.monotonic(), 0.0))
            chunk = os.read(self._process.stdout.fileno(), 4096) if ready else b""
            if not chunk:
                raise self._start_error("ended before it listened" if ready else "did not start in time")
            output += chunk
        line = output.decode().splitlines()[0]
        if not line.startswith(LISTENING):
            raise self._start_error(f"said {line!r}")
        return line.removeprefix(LISTENING)

    def _wait_until_healthy(self, deadline_s: float) -> None:
        while not is_healthy(self.url):
            if not self.is_alive():
                raise self._start_error(f"ended with exit code {self._process.returncode}")
            if time.monotonic() > deadline_s:
                raise self._start_error("did not become healthy in time")
            time.sleep(0.02)

    def _start_error(self, what: str) -> EngineStartError:
        return EngineStartError(f"the bundled engine {what}\n{self.stderr_tail()}".strip())

    def _stop(self) -> None:
        try:
            end_child(self._process, STOP_GRACE_S)
        finally:
            self._stderr.close()


def is_healthy(url: str) -> bool:
    """Whether GET /health of the engine at `url` answers 200 within two seconds."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=2.0)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
