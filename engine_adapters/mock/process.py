"""Runs the mock server as a subprocess: the C file where it can be built, else its Python twin; never left behind."""

from __future__ import annotations

import hashlib
import http.client
import os
import platform
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from engine_adapters.child import end_child
from engine_adapters.mock.truth import Truth, read_truth

HERE = Path(__file__).parent
SOURCE, TWIN = HERE / "mockserver.c", HERE / "mock_server.py"
FLAGS = ("-O2", "-o")
STARTUP_TIMEOUT_S = 30.0
STOP_GRACE_S = 10.0  # a large log takes a while to write


class MockError(RuntimeError):
    """The mock server did not come up or does not answer; the text tells why."""


@dataclass(frozen=True)
class Build:
    """How the mock server is started. `note` says why it is the Python twin, where it is."""

    kind: Literal["C", "Python"]
    command: tuple[str, ...]
    note: str | None = None


def build() -> Build:
    """The compiled server, built once a user and source; the Python twin where that can't be."""
    if sys.platform != "linux":
        return twin("the C mock server needs Linux")
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        return twin("there is no C compiler (cc, gcc or clang)")
    try:
        return Build("C", (str(compiled(compiler)),))
    except subprocess.CalledProcessError as error:
        return twin(f"{compiler} did not build it: {(error.stderr.strip().splitlines() or ['no message'])[0]}")
    except OSError as error:
        return twin(f"it could not be built: {error.filename or compiler}: {error.strerror}")


def twin(why: str) -> Build:
    """The Python server, and why it is that."""
    note = f"the mock server is the Python one, which is slower and may bind before the client does: {why}"
    return Build("Python", (sys.executable, str(TWIN)), note)


def compiled(compiler: str) -> Path:
    """Path of the binary of this source, built when it is not there; a half-built one is never seen."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openloop"
    key = hashlib.sha256(SOURCE.read_bytes() + f"{FLAGS}{platform.machine()}{platform.libc_ver()}".encode())
    binary = cache / f"mockserver-{key.hexdigest()[:16]}"
    if not os.access(binary, os.X_OK):
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            out = Path(scratch) / "mockserver"
            subprocess.run([compiler, *FLAGS, out, SOURCE, "-lm"], check=True, capture_output=True, text=True)
            os.replace(out, binary)
    return binary


class MockServer:
    """`with MockServer(itl_ms=10) as mock: mock.url`: a running mock server on a free port of 127.0.0.1.

    Its first event leaves `ttft_ms` after the request (and up to one ITL later with `phase`), the next ones every
    `itl_ms`, exactly or exponentially distributed; ITL 0 sends them at once. `cores` pins it. It sits in its own
    session, so that Ctrl-C reaches only the parent, and ends with the parent, whatever ends that. Raises MockError.
    """

    def __init__(
        self,
        *,
        ttft_ms: float = 0.0,
        itl_ms: float = 0.0,
        itl_dist: Literal["fixed", "exp"] = "fixed",
        phase: bool = False,
        tokens_per_event: int = 1,
        max_conns: int = 20_000,
        cores: Collection[int] | None = None,
        how: Build | None = None,
    ) -> None:
        self.url = ""
        self.build = how or build()
        self._cores = cores
        self._options = [
            f"--ttft-ms={ttft_ms}",
            f"--itl-ms={itl_ms}",
            f"--itl-dist={itl_dist}",
            f"--tokens-per-event={tokens_per_event}",
            f"--max-conns={max_conns}",
            *(["--phase"] if phase else []),
        ]

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="openloop-mock-")
        self._log = Path(self._folder.name) / "truth.csv"
        self._process = subprocess.Popen(
            [*self.build.command, "--port=0", "--die-with-stdin", f"--log={self._log}", *self._options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            if self._cores and hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(self._process.pid, self._cores)
            self.port = self._read_port()
        except BaseException:
            self._stop()
            raise
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def pid(self) -> int:
        """The subprocess's id."""
        return self._process.pid

    def truth(self) -> Truth:
        """The log of all requests since the start or the last reset, those that still run included."""
        self._call("/truth/flush")
        return read_truth(self._log)

    def reset(self) -> None:
        """Forget the requests that have ended."""
        self._call("/reset")

    def cpu_s(self) -> float | None:
        """CPU seconds that the server has used; None where the system does not say."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))

    def _call(self, path: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=STARTUP_TIMEOUT_S)
        try:
            connection.request("GET", path, headers={"connection": "close"})
            reply = connection.getresponse()
            text = reply.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise MockError(f"the mock server does not answer {path}: {error}") from None
        finally:
            connection.close()
        if reply.status != 200:
            raise MockError(f"the mock server refused {path}: {text}")

    def _read_port(self) -> int:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], STARTUP_TIMEOUT_S)
        line = self._process.stdout.readline() if ready else b""
        if not line.strip().isdigit():
            raise MockError(f"the mock server ({self.build.kind}) did not start: it named no port")
        return int(line)

    def _stop(self) -> None:
        try:
            end_child(self._process, STOP_GRACE_S)
        finally:
            self._folder.cleanup()
