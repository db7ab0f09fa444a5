"""Recorded and reported streams over real sockets: our wire and stock httpx make the same records of them."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from itertools import pairwise
from typing import Any

import anyio
import httpx
import pytest
from support.raw_server import Handler, serving, take_request
from support.streams import MS, raw_streams, record_of, recorded, recorded_servers, writes_of

from engine_adapters.apis import find_dialect
from engine_adapters.base import Request, StreamOutcome
from engine_adapters.dialect import Asking, DialectAdapter
from engine_adapters.transport import HttpClient

REASONS = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 503: b"Service Unavailable"}
CASES = [(server, name) for server in recorded_servers() for name in recorded(server)["cases"]]
# What depends on when bytes came and on how they were cut, and not on what they say.
OF_TIME = ("gap_ns", "gap_events", "gap_bytes", "gap_tokens", "reads_total", "reads_kernel_stamped", "read_lag_max_ns")


def playing(pieces: list[bytes], status: int) -> Handler:
    """A server that answers with the pieces, each one chunk and one write, a moment apart."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take_request(reader)
        head = b"HTTP/1.1 %d %b\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head % (status, REASONS[status]))
        for piece in pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    return handler


async def ask(port: int, api: str, streamed: bool, transport: httpx.AsyncBaseTransport | None) -> StreamOutcome:
    client = HttpClient(f"http://127.0.0.1:{port}", transport=transport)
    adapter = DialectAdapter(client, find_dialect(api), Asking("m", stream=streamed))
    outcome = StreamOutcome()
    try:
        await adapter.stream(adapter.encode(Request("hi", 8)), "the-id", outcome)
    finally:
        await adapter.close()
    return outcome


def record_of_answer(pieces: list[bytes], api: str, status: int, streamed: bool, stock: bool) -> dict[str, Any]:
    """The record without what depends on time, the answer's text, and the totals over its reads."""

    async def main() -> StreamOutcome:
        async with serving(playing(pieces, status)) as port:
            return await ask(port, api, streamed, httpx.AsyncHTTPTransport() if stock else None)

    outcome = anyio.run(main)
    record = record_of(outcome)
    kept = {f.name: getattr(record, f.name) for f in fields(record) if f.name not in OF_TIME}
    told = {name: value is not None if name.endswith("_at_ns") else value for name, value in kept.items()}
    told |= {"connected_at_ns": None, "tcp_connected_at_ns": None, "resolved_at_ns": None}  # httpx does not tell
    return told | {
        "text": outcome.text,
        "hidden_text": outcome.hidden_text,
        "events": sum(record.gap_events),
    }


@pytest.mark.parametrize(("server", "name"), CASES, ids=[f"{server}-{name}" for server, name in CASES])
def test_a_recorded_answer_gives_the_same_record_by_either_way(server: str, name: str) -> None:
    case = recorded(server)["cases"][name]
    body, sizes = case["body"].encode(), [size for _, size in case["reads"]]
    edges = [0, *(sum(sizes[: i + 1]) for i in range(len(sizes)))]
    pieces = [body[a:b] for a, b in pairwise(edges) if b > a]
    streamed = bool(case["request"].get("stream"))
    ours, stock = (record_of_answer(pieces, case["api"], case["http"], streamed, stock) for stock in (False, True))
    assert ours == stock


@pytest.mark.parametrize("case", raw_streams(), ids=lambda case: case["id"])
def test_a_reported_stream_gives_the_same_record_by_either_way(case: dict[str, Any]) -> None:
    pieces = [data for _, data in writes_of(case) if data]
    api = case["protocol"].removesuffix("-native")
    ours, stock = (record_of_answer(pieces, api, 200, True, stock) for stock in (False, True))
    assert ours == stock


@pytest.mark.parametrize("id_", ["B01", "B07", "B20"])
def test_instants_of_a_reported_stream_are_those_of_its_writes(id_: str) -> None:
    (case,) = [case for case in raw_streams() if case["id"] == id_]
    wrote: list[int] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take_request(reader)
        began = asyncio.get_running_loop().time()
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for at_ms, data in writes_of(case):
            await asyncio.sleep(max(0.0, began + at_ms / 1000 - asyncio.get_running_loop().time()))
            wrote.append(round(asyncio.get_running_loop().time() * 1e9))
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def main() -> StreamOutcome:
        async with serving(handler) as port:
            return await ask(port, case["protocol"], True, None)

    outcome = anyio.run(main)
    assert outcome.first_token_at_ns is not None
    # Each instant is one of the writes', within 25 ms; the loop's clock is the monotonic one.
    for at_ns in outcome.read_at_ns:
        assert min(abs(at_ns - instant_ns) for instant_ns in wrote) < 25 * MS
