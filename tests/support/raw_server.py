"""A raw HTTP server on 127.0.0.1 whose bytes a test writes itself, and the wire that asks it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from engine_adapters.base import StreamOutcome
from engine_adapters.connection import WireError
from engine_adapters.wire import Wire

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\n"
HELLO = OK + b"content-length: 5\r\n\r\nhello"
REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None, path: str | None = None) -> AsyncIterator[int]:
    """A server on a port of 127.0.0.1, or on a unix socket, that calls `handler` for each connection and closes it
    afterwards."""

    running: set[asyncio.Task[None] | None] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running.add(asyncio.current_task())
        try:
            await handler(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            running.discard(asyncio.current_task())

    if path is None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls, backlog=1000)
    else:
        server = await asyncio.start_unix_server(handle, path)
    try:
        yield 0 if path is not None else server.sockets[0].getsockname()[1]
    finally:
        server.close()
        while running:  # clients have closed their sockets, which ends the handlers
            await asyncio.sleep(0.001)
        await server.wait_closed()


async def take_request(reader: asyncio.StreamReader) -> bytes:
    """Head and body of the next request."""
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return head + await reader.readexactly(int(lengths[0].split(b":")[1]) if lengths else 0)


def answering(*answers: bytes) -> Handler:
    """Gives the answers in turn, each to one request of a connection; then closes."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await take_request(reader)
            writer.write(answer)
        await writer.drain()

    return handler


def forever(answer: bytes) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await take_request(reader)
            writer.write(answer)

    return handler


def wire_to(port: int, read_s: float = 10.0, keepalive_s: float = 4.0, tls: ssl.SSLContext | None = None) -> Wire:
    return Wire("127.0.0.1", port, tls, connect_s=5.0, read_s=read_s, keepalive_s=keepalive_s)


async def ask(wire: Wire, outcome: StreamOutcome | None = None) -> bytes:
    """The body of one answer."""
    reads: list[bytes] = []
    refusal = await wire.request(REQUEST, outcome or StreamOutcome(), lambda _, data: reads.append(data))
    return refusal.body or b"".join(reads)


async def fault(wire: Wire) -> str:
    with pytest.raises(WireError) as caught:
        await ask(wire)
    await wire.close()
    return caught.value.error_class


def chunked(parts: list[bytes]) -> bytes:
    """The parts, each as one chunk of a body."""
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"
