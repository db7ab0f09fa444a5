"""The wire: connections are shared, leased in O(1) and never reused when dead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.raw_server import HELLO, OK, Handler, answering, ask, fault, forever, serving, take_request, wire_to

from engine_adapters.base import StreamOutcome


def test_requests_in_turn_share_one_connection(run: Callable[..., Any]) -> None:
    async def main() -> tuple[int, list[bool]]:
        async with serving(forever(HELLO)) as port:
            wire = wire_to(port)
            outcomes = [StreamOutcome() for _ in range(3)]
            for outcome in outcomes:
                assert await ask(wire, outcome) == b"hello"
            await wire.close()
            return wire.n_opened, [outcome.connected_at_ns is not None for outcome in outcomes]

    assert run(main) == (1, [True, False, False])


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"connection: close\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        HELLO + HELLO,
    ],
)
def test_a_connection_that_should_end_with_the_answer_is_not_used_again(run: Callable[..., Any], answer: bytes) -> None:
    async def main() -> int:
        async with serving(forever(answer)) as port:
            wire = wire_to(port)
            assert await ask(wire) == b"hello"
            assert await ask(wire) == b"hello"
            await wire.close()
            return wire.n_opened

    assert run(main) == 2


def test_an_idle_connection_that_the_server_closed_is_dropped(run: Callable[..., Any]) -> None:
    async def main() -> int:
        async with serving(answering(HELLO)) as port:
            wire = wire_to(port)
            await ask(wire)
            while wire._open:
                await asyncio.sleep(0.001)
            assert not wire._idle
            await ask(wire)
            await wire.close()
            return wire.n_opened

    assert run(main) == 2


def test_a_connection_whose_loss_is_not_reported_yet_is_passed_over(run: Callable[..., Any]) -> None:
    async def main() -> int:
        async with serving(forever(HELLO)) as port:
            wire = wire_to(port)
            await ask(wire)
            (connection,) = wire._idle
            assert connection.link is not None
            connection.link.abort()  # reported in the loop's next turn
            await ask(wire)
            await wire.close()
            return wire.n_opened

    assert run(main) == 2


def test_an_idle_connection_is_not_trusted_for_long(run: Callable[..., Any]) -> None:
    async def main() -> int:
        async with serving(forever(HELLO)) as port:
            wire = wire_to(port, keepalive_s=0.0)
            await ask(wire)
            await ask(wire)
            await wire.close()
            return wire.n_opened

    assert run(main) == 2


def race(n_bytes: int) -> tuple[Handler, list[int]]:
    """Each connection's second request meets a close after `n_bytes` of an answer; also the log of requests."""
    log: list[int] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take_request(reader)
        log.append(1)
        writer.write(HELLO)
        await take_request(reader)
        log.append(2)
        writer.write(HELLO[:n_bytes])

    return handler, log


def test_a_keep_alive_race_is_sent_again_on_a_fresh_connection(run: Callable[..., Any]) -> None:
    async def main() -> tuple[list[int], bytes, bool, int]:
        handler, log = race(0)
        async with serving(handler) as port:
            wire, outcome = wire_to(port), StreamOutcome()
            await ask(wire)
            body = await ask(wire, outcome)
            await wire.close()
            assert outcome.sent_at_ns is not None
            assert outcome.connected_at_ns is not None
            assert outcome.reconnected
            return log, body, outcome.connected_at_ns <= outcome.sent_at_ns, wire.n_opened

    assert run(main) == ([1, 2, 1], b"hello", True, 2)


def test_an_answer_that_has_begun_is_never_asked_for_again(run: Callable[..., Any]) -> None:
    async def main() -> tuple[list[int], str]:
        handler, log = race(10)
        async with serving(handler) as port:
            wire = wire_to(port)
            await ask(wire)
            return log, await fault(wire)

    assert run(main) == ([1, 2], "disconnected")


def test_a_fresh_connection_that_gives_nothing_is_a_fault_at_once(run: Callable[..., Any]) -> None:
    async def main() -> str:
        async with serving(answering(b"")) as port:
            return await fault(wire_to(port))

    assert run(main) == "disconnected"


def test_500_streams_at_once_all_complete(run: Callable[..., Any]) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take_request(reader)
        writer.write(OK + b"transfer-encoding: chunked\r\n\r\n")
        for _ in range(3):
            await asyncio.sleep(0.01)
            writer.write(b"5\r\nhello\r\n")
        writer.write(b"0\r\n\r\n")
        await reader.read()

    async def main() -> tuple[set[bytes], int]:
        async with serving(handler) as port:
            wire = wire_to(port)
            bodies = await asyncio.gather(*(ask(wire) for _ in range(500)))
            await wire.close()
            return set(bodies), wire.n_opened

    assert run(main) == ({b"hello" * 3}, 500)
