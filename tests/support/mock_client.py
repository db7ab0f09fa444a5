"""Raw HTTP to the mock server, and the ways in which that can be started on this machine."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from engine_adapters.mock.process import Build, build, twin

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HOWS = ("C", "Python")


def how(kind: str) -> Build:
    """The build of a kind; skips where there is no C compiler."""
    if kind == "Python":
        return twin("asked for by the test")
    found = build()
    if found.kind != "C":
        pytest.skip(f"no C compiler: {found.note}")
    return found


def body(n_tokens: int, **more: Any) -> dict[str, Any]:
    """The fields of a streamed request."""
    text = more.pop("text", "one two three")
    return {"stream": True, "max_tokens": n_tokens, "messages": [{"role": "user", "content": text}], **more}


def request(path: str, data: Any, *headers: str) -> bytes:
    """The bytes of a POST."""
    payload = data if isinstance(data, bytes) else json.dumps(data).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: mock", f"Content-Length: {len(payload)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


def connect(port: int) -> socket.socket:
    """A connection whose reads fail after ten seconds instead of hanging."""
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def read_answer(sock: socket.socket) -> bytes:
    """One answer, streamed or whole, by its framing; shorter only when the server closes."""
    data = b""
    while not complete(data):
        more = sock.recv(65536)
        if not more:
            break
        data += more
    return data


def complete(data: bytes) -> bool:
    """Whether the bytes hold a whole answer."""
    head, found, rest = data.partition(b"\r\n\r\n")
    if not found:
        return False
    if b"transfer-encoding: chunked" in head:
        return rest.endswith(b"0\r\n\r\n")
    length = next(row for row in head.split(b"\r\n") if row.startswith(b"content-length:"))
    return len(rest) >= int(length.split(b":")[1])


def ask(port: int, payload: bytes) -> bytes:
    """One answer on a connection of its own."""
    with connect(port) as sock:
        sock.sendall(payload)
        return read_answer(sock)


def read_to_end(sock: socket.socket) -> bytes:
    """Everything until the server closes."""
    return b"".join(iter(lambda: sock.recv(65536), b""))


def events(answer: bytes) -> list[Any]:
    """The JSON of each event of a stream, [DONE] excluded."""
    rows = [row for row in answer.split(b"\n") if row.startswith(b"data: ") and row != b"data: [DONE]"]
    return [json.loads(row[6:]) for row in rows]
