"""HTTP/2 when it is asked for: the same stream, and no hidden limit of streams."""

from __future__ import annotations

import asyncio
from pathlib import Path

import anyio
import pytest

pytest.importorskip("h2", reason="HTTP/2 needs the h2 package")
from support.certificates import make_pair
from support.h2_server import H2Server, h2_serving
from support.raw_server import answering, serving

from engine_adapters.base import PreflightError, Request, StreamOutcome
from engine_adapters.dialect import Asking, DialectAdapter
from engine_adapters.network import Network
from engine_adapters.openai import CHAT
from engine_adapters.transport import HttpClient

EVENTS = [
    b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"length"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\ndata: [DONE]\n\n',
]


async def streams(url: str, network: Network, n: int, turns: int = 1) -> list[StreamOutcome]:
    adapter = DialectAdapter(HttpClient(url, network=network), CHAT, Asking("m"))
    assert adapter.client.via.startswith("httpcore, HTTP/2")
    outcomes = [StreamOutcome() for _ in range(n * turns)]
    body = adapter.encode(Request("hi", 2))
    for turn in range(turns):
        mine = outcomes[turn * n : (turn + 1) * n]
        await asyncio.gather(*(adapter.stream(body, f"r{i}", outcome) for i, outcome in enumerate(mine)))
    await adapter.close()
    return outcomes


def test_a_stream_over_tls_is_read_event_by_event(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, "server")

    async def main() -> list[StreamOutcome]:
        async with h2_serving(H2Server(EVENTS, 0.02), pair.server(alpn=("h2",))) as port:
            network = Network(http2=True, ca_file=str(pair.cert))
            return await streams(f"https://127.0.0.1:{port}", network, 1, turns=2)

    first, second = anyio.run(main)
    assert (first.error, first.text, first.output_tokens, first.output_tokens_source) == (None, "ab", 2, "usage")
    assert len(first.read_at_ns) == 2
    assert first.read_at_ns[1] - first.read_at_ns[0] > 5_000_000
    # Connecting, TLS included, is apart from the send; the second request found the connection.
    instants = [first.tcp_connected_at_ns, first.connected_at_ns, first.sent_at_ns, first.first_token_at_ns]
    assert None not in instants
    assert instants == sorted(instants)  # type: ignore[type-var]
    assert instants[0] != instants[1]
    assert second.connected_at_ns is None
    assert second.sent_at_ns is not None


def test_more_streams_than_a_connection_takes_are_all_sent_at_once() -> None:
    async def main() -> H2Server:
        server = H2Server(EVENTS, 0.3)
        async with h2_serving(server) as port:
            outcomes = await streams(f"http://127.0.0.1:{port}", Network(http2=True), 230)
        assert all(outcome.ok for outcome in outcomes), {outcome.error for outcome in outcomes}
        return server

    server = anyio.run(main)
    assert server.peak_streams == 230
    assert server.n_connections == 3


def test_a_server_that_speaks_no_http2_is_told_so_in_one_line() -> None:
    async def main() -> None:
        async with serving(answering(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")) as port:
            client = HttpClient(f"http://127.0.0.1:{port}", network=Network(http2=True))
            try:
                await client.get("/v1/models")
            finally:
                await client.close()

    with pytest.raises(PreflightError, match="does it speak HTTP/2, as --http2 asks"):
        anyio.run(main)
