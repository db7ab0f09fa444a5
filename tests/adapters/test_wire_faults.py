"""The wire's faults and ends: timeouts, losses and cancelled requests are named and close their sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from support.raw_server import HELLO, OK, REQUEST, ask, fault, forever, serving, take_request, wire_to

from engine_adapters.base import StreamOutcome
from engine_adapters.connection import Connection
from engine_adapters.wire import Wire


async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await take_request(reader)
    writer.write(OK + b"content-length: 9\r\n\r\nhe")
    await reader.read()


def test_a_silent_server_meets_the_read_timeout(run: Callable[..., Any]) -> None:
    async def main() -> str:
        async with serving(stall) as port:
            return await fault(wire_to(port, read_s=0.05))

    assert run(main) == "read_timeout"


def test_an_answer_longer_than_the_read_timeout_is_fine_while_bytes_come(run: Callable[..., Any]) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take_request(reader)
        writer.write(OK + b"content-length: 8\r\n\r\n")
        for _ in range(8):
            await asyncio.sleep(0.05)
            writer.write(b"x")
        await reader.read()

    async def main() -> bytes:
        async with serving(handler) as port:
            wire = wire_to(port, read_s=0.3)
            body = await ask(wire)
            await wire.close()
            return body

    assert run(main) == b"x" * 8


def test_a_stall_after_a_slow_answer_meets_the_read_timeout_too(run: Callable[..., Any]) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take_request(reader)
        writer.write(OK + b"content-length: 80\r\n\r\n")
        for _ in range(8):
            await asyncio.sleep(0.01)
            writer.write(b"x")
        await reader.read()

    async def main() -> str:
        async with serving(handler) as port:
            return await fault(wire_to(port, read_s=0.05))

    assert run(main) == "read_timeout"


def test_a_cancelled_request_closes_its_socket(run: Callable[..., Any]) -> None:
    async def main() -> tuple[bool, StreamOutcome]:
        closed = asyncio.Event()
        begun = asyncio.Event()

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await stall(reader, writer)
            finally:
                closed.set()

        async with serving(handler) as port:
            wire, outcome = wire_to(port), StreamOutcome()
            task = asyncio.ensure_future(wire.request(REQUEST, outcome, lambda *_: begun.set()))
            await begun.wait()
            task.cancel()
            await asyncio.wait_for(closed.wait(), 5)
            await wire.close()
            return task.cancelled(), outcome

    cancelled, outcome = run(main)
    assert cancelled
    assert outcome.headers_at_ns is not None  # what it had reached is kept


def test_a_bug_in_the_reader_reaches_the_caller(run: Callable[..., Any]) -> None:
    async def main() -> None:
        def on_read(*_: object) -> None:
            raise KeyError("ours")

        async with serving(forever(HELLO)) as port:
            wire = wire_to(port)
            try:
                await wire.request(REQUEST, StreamOutcome(), on_read)
            finally:
                await wire.close()

    with pytest.raises(KeyError, match="ours"):
        run(main)


def test_a_connection_that_never_opens_meets_the_connect_timeout(run: Callable[..., Any]) -> None:
    async def main() -> str:
        wire = Wire("127.0.0.1", 9, None, connect_s=0.02, read_s=1, keepalive_s=1)

        async def never(*_: object) -> Connection:
            await anyio.sleep_forever()
            raise AssertionError

        wire._open_socket = never  # type: ignore[method-assign]
        return await fault(wire)

    assert run(main) == "connect_timeout"


def test_a_name_that_does_not_resolve_is_a_connect_fault(run: Callable[..., Any]) -> None:
    async def main() -> str:
        return await fault(Wire("no-such-host.invalid", 80, None, 5.0, 5.0, 4.0))

    assert run(main) == "connect"
