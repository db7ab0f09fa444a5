"""The engine as users meet it: a subprocess, sockets, signals."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from engine_adapters.reference.process import EngineProcess, EngineStartError

pytestmark = pytest.mark.e2e
TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineProcess]:
    with EngineProcess(extra_args=["--max-num-seqs", "2", "--max-waiting", "1"]) as process:
        yield process


def connect(engine: EngineProcess) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(engine.url.removeprefix("http://"), timeout=TIMEOUT_S)


def ask(engine: EngineProcess, path: str, body: Any = None, **headers: str) -> tuple[int, Any, str]:
    """One exchange: status, headers, text. A body makes it a POST; bytes are sent as they are."""
    with closing(connect(engine)) as connection:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body)
        connection.request(
            "GET" if body is None else "POST", path, data, {"content-type": "application/json"} | headers
        )
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()


def events(text: str) -> list[Any]:
    """The stream's JSON events; the stream must end in [DONE]."""
    data = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert data.pop() == "[DONE]"
    return [json.loads(item) for item in data]


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def metric(engine: EngineProcess, name: str) -> float:
    text = ask(engine, "/metrics")[2]
    match = re.search(rf"^vllm:{name}\S* (\S+)$", text, re.MULTILINE)
    assert match
    return float(match[1])


COMPLETION = {"model": "tiny", "prompt": "Why is the sky blue?", "max_tokens": 12, "ignore_eos": True}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 12, "ignore_eos": True}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


def test_a_stream_has_one_event_for_each_token_then_usage_without_choices(engine: EngineProcess) -> None:
    status, headers, text = ask(engine, "/v1/completions", COMPLETION | STREAM)
    *tokens, usage = events(text)
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert len(tokens) == 12
    assert all(event["choices"][0]["text"] for event in tokens)
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 11 + ["length"]
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == len("Why is the sky blue?")
    assert usage["usage"]["completion_tokens"] == 12


def test_a_chat_stream_begins_with_the_role_alone(engine: EngineProcess) -> None:
    first, *tokens = events(ask(engine, "/v1/chat/completions", CHAT | {"stream": True})[2])
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(tokens) == 12
    assert all(event["choices"][0]["delta"]["content"] for event in tokens)


def test_streamed_and_plain_answers_say_the_same_each_time(engine: EngineProcess) -> None:
    streamed = events(ask(engine, "/v1/completions", COMPLETION | {"stream": True})[2])
    plain = json.loads(ask(engine, "/v1/completions", COMPLETION)[2])
    chat = [json.loads(ask(engine, "/v1/chat/completions", CHAT)[2]) for _ in range(2)]
    assert "".join(event["choices"][0]["text"] for event in streamed) == plain["choices"][0]["text"]
    assert plain["usage"]["completion_tokens"] == 12
    assert chat[0]["choices"] == chat[1]["choices"]


def test_truth_holds_the_instant_of_each_token_between_request_and_receipt(engine: EngineProcess) -> None:
    asked_at_ns = time.monotonic_ns()
    with closing(connect(engine)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(COMPLETION | STREAM), {"x-request-id": "mine"})
        response, received_at_ns = connection.getresponse(), []
        for line in response:
            if b'"text"' in line:
                received_at_ns.append(time.monotonic_ns())
    truth = json.loads(ask(engine, "/truth?since=0")[2])
    record = next(record for record in truth["requests"] if record["id"] == "mine")
    sent_at_ns = record["token_at_ns"]
    assert record["done"]
    assert len(sent_at_ns) == len(received_at_ns) == 12
    assert asked_at_ns < record["arrived_at_ns"] < sent_at_ns[0]
    assert sorted(sent_at_ns) == sent_at_ns
    assert all(sent < received for sent, received in zip(sent_at_ns, received_at_ns, strict=True))
    assert json.loads(ask(engine, f"/truth?since={truth['next']}")[2])["requests"] == []


def test_bad_requests_are_answered_as_vllm_does(engine: EngineProcess) -> None:
    assert ask(engine, "/v1/completions", COMPLETION | {"model": "other"})[0] == 404
    assert ask(engine, "/v1/completions", b"{bad json")[0] == 400
    assert ask(engine, "/v1/completions", COMPLETION | {"prompt": "x" * 5000})[0] == 400
    assert ask(engine, "/v1/completions", COMPLETION | {"n": 0})[0] == 400
    assert ask(engine, "/v1/completions")[0] == 405
    assert ask(engine, "/truth?since=x")[0] == 400
    assert ask(engine, "/nowhere")[0] == 404


def test_the_server_names_its_model_and_counts_tokens(engine: EngineProcess) -> None:
    (model,) = json.loads(ask(engine, "/v1/models")[2])["data"]
    assert (model["id"], model["max_model_len"]) == ("tiny", 4096)
    assert json.loads(ask(engine, "/tokenize", {"prompt": "hé"})[2])["tokens"] == list("hé".encode())
    assert "version" in json.loads(ask(engine, "/version")[2])
    assert ask(engine, "/health")[0] == 200


def start_stream(engine: EngineProcess) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """A long answer of which the first token has come."""
    connection = connect(engine)
    connection.request("POST", "/v1/completions", json.dumps(COMPLETION | {"max_tokens": 4000, "stream": True}))
    response = connection.getresponse()
    response.readline()
    return connection, response


def leave(connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
    response.close()
    connection.close()


def test_a_client_that_disconnects_aborts_its_request(engine: EngineProcess) -> None:
    aborted = metric(engine, r'request_success_total\{[^}]*"abort"')
    stream = start_stream(engine)
    assert metric(engine, "num_requests_running") == 1
    leave(*stream)
    until(lambda: metric(engine, "num_requests_running") == 0)
    assert metric(engine, r'request_success_total\{[^}]*"abort"') == aborted + 1
    assert metric(engine, "kv_cache_usage_perc") == 0


def test_a_full_waiting_queue_answers_429(engine: EngineProcess) -> None:
    streams = [start_stream(engine) for _ in range(2)]
    with closing(connect(engine)) as waiting:
        waiting.request("POST", "/v1/completions", json.dumps(COMPLETION))
        until(lambda: metric(engine, "num_requests_waiting") == 1)
        status, headers, _ = ask(engine, "/v1/completions", COMPLETION)
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        for stream in streams:
            leave(*stream)
        assert waiting.getresponse().status == 200
    until(lambda: metric(engine, "num_requests_running") == 0)


def test_sigterm_ends_it_with_code_0_and_no_traceback_even_with_a_stream_open() -> None:
    with EngineProcess(extra_args=["--grace", "0"]) as engine:
        stream = start_stream(engine)
        os.kill(engine.pid, signal.SIGTERM)
        until(lambda: not engine.is_alive())
        leave(*stream)
        assert engine._process.returncode == 0
        (line,) = engine.stderr_tail().splitlines()
        assert "in flight at the signal: 1, aborted: 1; all requests by their end: 0 stop, 0 length, 1 abort" in line


def test_ctrl_c_in_the_terminal_reaches_only_the_parent(engine: EngineProcess) -> None:
    assert os.getpgid(engine.pid) != os.getpgid(0)


def test_an_engine_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(EngineStartError, match="cannot hold one sequence"),
        EngineProcess(extra_args=["--num-blocks=1"]),
    ):
        pass


PARENT = """
import sys, time
from engine_adapters.reference.process import EngineProcess
with EngineProcess() as engine:
    print(engine.pid, flush=True)
    time.sleep(60)
"""


def is_running(pid: int) -> bool:
    """Whether `pid` exists and is no zombie that waits for an absent-minded init."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_it_does_not_outlive_its_parent(number: signal.Signals) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # A suite that was started in the background ignores SIGINT, and its children would inherit that.
    heed = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen([sys.executable, "-c", PARENT], **pipes, **heed) as parent:  # type: ignore[call-overload]
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.send_signal(number)
        _, errors = parent.communicate(timeout=TIMEOUT_S)
    until(lambda: not is_running(pid))
    assert errors.count(b"Traceback") == (1 if number == signal.SIGINT else 0)  # the parent's own KeyboardInterrupt


def test_bench_engine_serve_becomes_the_engine_and_a_busy_port_is_one_clear_line() -> None:
    serve = [sys.executable, "-c", "from loadgen.cli import main; main()", "engine", "serve"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = subprocess.run([*serve, "--port", str(port)], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert re.fullmatch(rf"error: cannot listen on 127.0.0.1:{port}: .*in use\n", result.stderr)
    heed = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen([*serve, "--port", "0"], stdout=subprocess.PIPE, text=True, **heed) as server:  # type: ignore[call-overload]
        assert server.stdout is not None
        assert server.stdout.readline().startswith("listening on http://127.0.0.1:")
        server.send_signal(signal.SIGINT)
        assert server.wait(TIMEOUT_S) == 0
