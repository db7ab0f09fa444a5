"""The engine thread and the handlers on it, in one process: failures, aborts, admission and the slowdown."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapters.reference import engine as engine_module
from engine_adapters.reference.admission import Refused
from engine_adapters.reference.config import EngineConfig
from engine_adapters.reference.engine import EngineCore, EngineThread
from engine_adapters.reference.executors.base import StepCost
from engine_adapters.reference.request import Request
from engine_adapters.reference.scheduler import SchedulerOutput
from engine_adapters.reference.server import Server

CONFIG = EngineConfig(max_num_seqs=2, max_model_len=64, max_waiting=1)


class StubExecutor:
    """Emits `token` for whoever samples; `before` is called with each step's number first."""

    def __init__(self, before: Callable[[int], object] = lambda n: None, token: int = 65) -> None:
        self.before, self.token, self.n_steps = before, token, 0

    def warmup(self) -> None: ...

    def capacity(self) -> int:
        return 1 << 20

    def step_cost(self, output: SchedulerOutput) -> StepCost:
        return StepCost(0.0, 0.0)

    def close(self) -> None: ...

    def execute(self, output: SchedulerOutput) -> list[list[int]]:
        self.n_steps += 1
        self.before(self.n_steps)
        return [[self.token] if item.samples else [] for item in output.scheduled]


def fail_at(step: int) -> Callable[[int], None]:
    def before(n: int) -> None:
        if n == step:
            raise RuntimeError("the worker broke")

    return before


@asynccontextmanager
async def running(executor: StubExecutor) -> AsyncIterator[Server]:
    server = Server(EngineCore(CONFIG, executor), "tiny", 1024)
    async with server.lifespan(server.app()):
        yield server


async def call(server: Server, method: str, path: str, body: Any = None, gone: asyncio.Event | None = None) -> Any:
    """One HTTP exchange with the ASGI app: (status, headers, body). The client goes away when `gone` is set."""
    messages: list[dict[str, Any]] = []
    requests = iter([{"type": "http.request", "body": json.dumps(body).encode()}])

    async def receive() -> Any:
        message = next(requests, None)
        if message is None:
            await (gone or asyncio.Event()).wait()
        return message or {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        messages.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
    await asyncio.wait_for(server.app()(scope, receive, send), 10)
    headers = {key.decode(): value.decode() for key, value in messages[0]["headers"]}
    return messages[0]["status"], headers, b"".join(message.get("body", b"") for message in messages)


def ask(server: Server, max_tokens: int = 5, stream: bool = True, gone: asyncio.Event | None = None) -> Any:
    body = {"prompt": "hello", "max_tokens": max_tokens, "stream": stream, "ignore_eos": True}
    return call(server, "POST", "/v1/completions", body, gone)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_workers_exception_ends_only_the_requests_of_its_step_and_shows_in_health(capfd: Any) -> None:
    async def scenario() -> None:
        executor = StubExecutor(lambda n: gate.wait(10) and fail_at(3)(n))
        async with running(executor) as server:
            asking = [asyncio.create_task(ask(server)) for _ in range(3)]  # two run, one waits
            await until(lambda: len(server.thread._streams) == 3)
            gate.set()
            answers = [await task for task in asking]
            assert [status for status, _, _ in answers] == [200, 200, 200]
            failed = [text for _, _, text in answers if b"RuntimeError: the worker broke" in text]
            assert len(failed) == 2
            assert server.core.scheduler.stats.finished == {"stop": 0, "length": 1, "abort": 0, "error": 2}
            assert server.core.health.n_failed_steps == 1
            assert server.core.scheduler.pool.usage == 0.0

    gate = threading.Event()
    run(scenario)
    assert capfd.readouterr().err.count("RuntimeError: the worker broke") == 1


@pytest.mark.usefixtures("capfd")
def test_health_is_bad_while_the_worker_fails_and_good_again_once_a_step_went_well() -> None:
    async def scenario() -> None:
        async with running(StubExecutor(fail_at(3))) as server:
            assert (await call(server, "GET", "/health"))[0] == 200
            assert (await ask(server, stream=False))[0] == 500
            status, _, text = await call(server, "GET", "/health")
            assert (status, b"the worker broke" in text) == (503, True)
            assert (await ask(server, stream=False))[0] == 200
            assert (await call(server, "GET", "/health"))[0] == 200

    run(scenario)


def test_a_broken_loop_ends_every_request_with_an_error_and_refuses_new_ones(capfd: Any) -> None:
    async def scenario() -> None:
        async with running(StubExecutor(lambda n: gate.wait(10))) as server:
            asking = [asyncio.create_task(ask(server, stream=False)) for _ in range(3)]
            await until(lambda: len(server.thread._streams) == 3)
            server.core.scheduler.update_from_output = broken  # type: ignore[method-assign]
            gate.set()
            assert [(await task)[0] for task in asking] == [500, 500, 500]
            assert (await ask(server))[0] == 503
            assert (await call(server, "GET", "/health"))[0] == 503
            assert server.core.scheduler.stats.finished["error"] == 3

    def broken(*_: object) -> Any:
        raise AssertionError("the books are wrong")

    gate = threading.Event()
    run(scenario)
    assert "the books are wrong" in capfd.readouterr().err


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_blocks_and_is_counted(stream: bool) -> None:
    async def scenario() -> None:
        gone = asyncio.Event()
        executor = StubExecutor(lambda n: gate.wait(10) if n == 4 else None)
        async with running(executor) as server:
            asking = asyncio.create_task(ask(server, max_tokens=50, stream=stream, gone=gone))
            await until(lambda: executor.n_steps == 4)
            assert server.core.scheduler.pool.usage > 0.0
            gone.set()
            await asking
            gate.set()
            await until(lambda: not server.core.scheduler.has_work)
            assert server.core.scheduler.stats.finished["abort"] == 1
            assert server.core.scheduler.pool.usage == 0.0
            assert executor.n_steps < 10

    gate = threading.Event()
    run(scenario)


def test_a_full_waiting_queue_answers_429_with_retry_after_and_accepts_again_later() -> None:
    async def scenario() -> None:
        async with running(StubExecutor(lambda n: gate.wait(10))) as server:
            asking = [asyncio.create_task(ask(server)) for _ in range(3)]
            await until(lambda: len(server.thread._streams) == 3)
            status, headers, body = await ask(server)
            assert status == 429
            assert int(headers["retry-after"]) >= 1
            assert json.loads(body)["error"]["code"] == 429
            gate.set()
            assert [(await task)[0] for task in asking] == [200, 200, 200]
            assert (await ask(server))[0] == 200

    gate = threading.Event()
    run(scenario)


def test_stopping_ends_what_is_unfinished_as_aborted() -> None:
    async def scenario() -> None:
        core = EngineCore(CONFIG, StubExecutor(lambda n: started.set()))
        thread = EngineThread(core, asyncio.get_running_loop())
        thread.start()
        thread.submit(Request("0", [1], 60, ignore_eos=True))
        started.wait(10)
        thread.stop()
        assert not core.scheduler.has_work
        assert sum(core.scheduler.stats.finished.values()) == 1

    started = threading.Event()
    run(scenario)


def test_a_refused_request_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        thread = EngineThread(EngineCore(CONFIG, StubExecutor()), asyncio.get_running_loop())
        for i in range(3):
            thread.submit(Request(str(i), [1], 5))
        with pytest.raises(Refused):
            thread.submit(Request("3", [1], 5))
        thread.abort("0")
        thread.abort("1")
        thread.submit(Request("4", [1], 5))
        assert thread.n_unfinished == 2

    run(scenario)


@pytest.mark.parametrize("slowdown", [1.0, 1.3])
def test_the_slowdown_multiplies_the_duration_of_steps_though_the_system_sleeps_too_long(
    slowdown: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, step_s, n_tokens = [0.0], 0.010, 50

    def advance(duration_s: float) -> None:
        now_s[0] += duration_s

    clock = SimpleNamespace(perf_counter=lambda: now_s[0], sleep=lambda s: advance(s + 0.0002))
    monkeypatch.setattr(engine_module, "time", clock)

    async def scenario() -> None:
        core = EngineCore(CONFIG, StubExecutor(lambda n: advance(step_s)))
        thread = EngineThread(core, asyncio.get_running_loop(), slowdown)
        thread.start()
        stream = thread.submit(Request("0", [1], n_tokens, ignore_eos=True))
        while (await stream.next())[1] is None:
            pass
        thread.stop()

    run(scenario)
    assert now_s[0] == pytest.approx(slowdown * step_s * n_tokens, abs=0.0003)
