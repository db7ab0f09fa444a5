"""Both mock servers give the same answers, and bear what clients do with HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.mock_client import (
    CHAT,
    COMPLETIONS,
    HOWS,
    ask,
    body,
    connect,
    events,
    how,
    read_answer,
    read_to_end,
    request,
)

from engine_adapters.mock.process import MockServer

USAGE = {"stream_options": {"include_usage": True}}
PARTS = [{"role": "user", "content": [{"type": "text", "text": "one  two"}, {"type": "text", "text": "\nthree é"}]}]
REQUESTS = (
    (CHAT, body(5)),
    (CHAT, body(5, **USAGE)),
    (CHAT, body(1, text='a "max_tokens": 9 \\ \n b', ignore_eos=True)),
    (CHAT, body(3, stream=False)),
    (CHAT, body(7, messages=PARTS, **USAGE)),
    (CHAT, {"messages": [{"content": "x"}], "stream": True, "max_completion_tokens": 2, "max_tokens": None}),
    (COMPLETIONS, {"prompt": "one two", "stream": True, "max_tokens": 4, **USAGE}),
    (COMPLETIONS, {"prompt": [1, 22, 333], "max_tokens": 4, "stream": False}),
    (COMPLETIONS, {"prompt": "no length"}),
    (CHAT, b"not JSON"),
    ("/v1/nothing", {}),
)


@pytest.fixture(scope="module", params=HOWS)
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    with MockServer(how=how(request.param)) as mock:
        yield mock.port


@pytest.mark.parametrize("per_event", [1, 3])
def test_the_two_servers_answer_byte_by_byte_alike(per_event: int) -> None:
    answers = []
    for kind in HOWS:
        with MockServer(tokens_per_event=per_event, how=how(kind)) as mock, connect(mock.port) as sock:
            answers.append([])
            for path, data in REQUESTS:
                sock.sendall(request(path, data))
                answers[-1].append(read_answer(sock))
            sock.sendall(b"GET /v1/models HTTP/1.1\r\nHost: mock\r\n\r\n")
            answers[-1].append(read_answer(sock))
    assert answers[0] == answers[1]


def test_a_stream_has_the_asked_tokens_usage_and_done(port: int) -> None:
    answer = ask(port, request(CHAT, body(5, **USAGE)))
    role, *tokens, finish, usage = events(answer)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["choices"][0]["delta"]["content"] for event in tokens] == [" the"] * 5
    assert finish["choices"][0]["finish_reason"] == "length"
    assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert len({event["id"] for event in events(answer)}) == 1


def test_usage_comes_only_when_asked_for(port: int) -> None:
    assert not any("usage" in event for event in events(ask(port, request(CHAT, body(2)))))


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_events_of_two_tokens_add_up(n: int) -> None:
    for kind in HOWS:
        with MockServer(tokens_per_event=2, how=how(kind)) as mock:
            said = events(ask(mock.port, request(CHAT, body(n))))
            texts = [event["choices"][0]["delta"].get("content", "") for event in said]
            assert "".join(texts) == " the" * n
            assert len([text for text in texts if text]) == (n + 1) // 2


def test_a_request_may_come_in_single_bytes(port: int) -> None:
    whole = ask(port, request(CHAT, body(2)))
    with connect(port) as sock:
        for byte in request(CHAT, body(2)):
            sock.sendall(bytes([byte]))
        assert len(read_answer(sock)) == len(whole)


def test_a_large_prompt_is_counted(port: int) -> None:
    _, data = read_whole(port, body(1, text="word " * 50_000, stream=False))
    assert data["usage"]["prompt_tokens"] == 50_000


def test_a_connection_serves_one_request_after_another(port: int) -> None:
    with connect(port) as sock:
        for n in range(1, 20):
            sock.sendall(request(CHAT, body(n)))
            assert len(events(read_answer(sock))) == n + 2


def test_a_second_request_sent_early_is_answered_second() -> None:
    for kind in HOWS:
        with MockServer(ttft_ms=5, itl_ms=1, how=how(kind)) as mock, connect(mock.port) as sock:
            sock.sendall(request(CHAT, body(3)) + request(CHAT, body(4), "Connection: close"))
            first, second = read_to_end(sock).split(b"0\r\n\r\n")[:2]
            assert (len(events(first)), len(events(second))) == (5, 6)


def test_connection_close_ends_it_after_the_answer(port: int) -> None:
    with connect(port) as sock:
        sock.sendall(request(CHAT, body(3), "Connection: close"))
        answer = read_to_end(sock)
    assert b"\r\nconnection: close\r\n" in answer
    assert answer.endswith(b"0\r\n\r\n")


def test_a_client_that_waits_for_100_continue_gets_it(port: int) -> None:
    head, _, payload = request(CHAT, body(2), "Expect: 100-continue", "Connection: close").partition(b"\r\n\r\n")
    with connect(port) as sock:
        sock.sendall(head + b"\r\n\r\n")
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(payload)
        assert len(events(read_to_end(sock))) == 4


def test_a_chunked_body_is_refused_with_what_is_wanted(port: int) -> None:
    with connect(port) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        answer = sock.recv(65536)
    assert answer.startswith(b"HTTP/1.1 411 ")
    assert b"content-length" in answer


@pytest.mark.parametrize("path", ["/health", "/v1/models?x=1", "/ping"])
def test_what_clients_ask_first_is_there(port: int, path: str) -> None:
    answer = ask(port, f"GET {path} HTTP/1.1\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"A:\r\n:\r\n\r\n",
        b"GET /\0x HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        request(CHAT, {"max_tokens": "many", "stream_options": 3, "messages": None}),
        request(CHAT, b'{"content": "\\'),
        request(CHAT, b'{"prompt": [1, 2'),
    ],
)
def test_rubbish_harms_nobody_else(port: int, rubbish: bytes) -> None:
    with connect(port) as sock:
        sock.sendall(rubbish)
        sock.recv(65536)
    assert len(events(ask(port, request(CHAT, body(2))))) == 4


def test_connections_beyond_the_limit_are_closed() -> None:
    for kind in HOWS:
        with MockServer(max_conns=2, how=how(kind)) as mock, connect(mock.port) as one, connect(mock.port) as two:
            for sock in (one, two):
                sock.sendall(request(CHAT, body(1)))
                assert read_answer(sock).startswith(b"HTTP/1.1 200")
            with connect(mock.port) as third:
                assert third.recv(1) == b""


def read_whole(port: int, data: dict[str, Any]) -> tuple[bytes, Any]:
    head, _, payload = ask(port, request(CHAT, data)).partition(b"\r\n\r\n")
    return head, json.loads(payload)
