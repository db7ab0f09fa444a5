"""The reference engine's server in this process, over real sockets: a stub executor, one thread, a free port."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

from engine_adapters.reference.__main__ import _listen
from engine_adapters.reference.config import EngineConfig
from engine_adapters.reference.engine import EngineCore
from engine_adapters.reference.executors.base import StepCost
from engine_adapters.reference.faults import parse_faults
from engine_adapters.reference.http_server import DrainingServer
from engine_adapters.reference.request import Logprobs
from engine_adapters.reference.scheduler import SchedulerOutput
from engine_adapters.reference.server import Server

TIMEOUT_S = 20.0
TEXT = "abcdefghijklmnopqrstuvwxyz"


class Alphabet:
    """Says the alphabet over and over, one letter a step, each step taking `step_s`; logprobs where they are wanted."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.step_s = step_s

    def warmup(self) -> None: ...

    def capacity(self) -> int:
        return 1 << 20

    def step_cost(self, output: SchedulerOutput) -> StepCost:
        return StepCost(1000.0, 1000.0)

    def close(self) -> None: ...

    def execute(self, output: SchedulerOutput) -> list[list[int]]:
        time.sleep(self.step_s)
        drawn = [[ord(TEXT[item.request.num_output_tokens % 26])] if item.samples else [] for item in output.scheduled]
        for item, token_ids in zip(output.scheduled, drawn, strict=True):
            if item.request.sampling.logprobs is not None:
                top = [(65, -0.5), (66, -1.0)][: item.request.sampling.logprobs]
                item.request.logprobs += [Logprobs(token_id, -2.0, top) for token_id in token_ids]
        return drawn


class Running:
    """A server that runs. `url` is where."""

    def __init__(self, server: Server, http_server: DrainingServer, url: str) -> None:
        self.server, self.url, self._http = server, url, http_server

    def terminate(self) -> None:
        """What SIGTERM does."""
        self._http.handle_exit(15, None)

    def ask(self, path: str, body: Any = None, method: str | None = None) -> tuple[int, Any, str]:
        """One exchange: status, headers, text. A body makes it a POST."""
        with closing(http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=TIMEOUT_S)) as connection:
            data = None if body is None else json.dumps(body)
            connection.request(method or ("GET" if body is None else "POST"), path, data)
            response = connection.getresponse()
            return response.status, response.headers, response.read().decode()


@contextmanager
def engine_server(
    faults: Sequence[str] = (), config: EngineConfig | None = None, step_s: float = 0.0, grace_s: int = 1
) -> Iterator[Running]:
    """The server for the length of the block."""
    core = EngineCore(config or EngineConfig(), Alphabet(step_s))
    server = Server(core, "tiny", 1024, faults=parse_faults(faults), grace_s=grace_s)
    http_server = DrainingServer(server)
    sock = _listen("127.0.0.1", 0)
    thread = threading.Thread(target=http_server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    deadline_s = time.monotonic() + TIMEOUT_S
    while not http_server.started:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    try:
        yield Running(server, http_server, f"http://127.0.0.1:{sock.getsockname()[1]}")
    finally:
        http_server.should_exit = True
        thread.join(TIMEOUT_S)
        sock.close()
    assert not thread.is_alive()
