"""Through the client: the wire and stock httpx send the same requests and give the same records, also over TLS."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.raw_server import OK, answering, chunked, forever, serving, take_request

from engine_adapters.base import Request, StreamOutcome
from engine_adapters.dialect import Asking, DialectAdapter
from engine_adapters.network import Network
from engine_adapters.openai import CHAT
from engine_adapters.transport import HttpClient, Timeouts


def event(text: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % text.encode()


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3}}\n\n'
STREAM = [event("a"), event("ä") + event("c"), USAGE + b"data: [DONE]\n\n"]
STREAM_HEAD = OK + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def stream_from(
    port: int, server: str = "http://127.0.0.1", timeouts: Timeouts | None = None, **options: Any
) -> StreamOutcome:
    client = HttpClient(f"{server}:{port}", {"authorization": "Bearer k"}, timeouts, **options)
    adapter = DialectAdapter(client, CHAT, Asking("m"))
    outcome = StreamOutcome()
    try:
        await adapter.stream(adapter.encode(Request("hi", 3)), "the-id", outcome)
    finally:
        await adapter.close()
    return outcome


def gist(outcome: StreamOutcome) -> tuple[Any, ...]:
    """All that is not an instant."""
    counts = (outcome.n_token_events, outcome.output_tokens, outcome.prompt_tokens, outcome.text)
    reads = list(zip(outcome.read_events, outcome.read_bytes, strict=True))
    return (*counts, reads, outcome.http_status, outcome.finish_reason, outcome.error_class, outcome.error)


@pytest.mark.parametrize(
    "answer",
    [
        STREAM_HEAD + chunked(STREAM),
        OK + b"connection: close\r\n\r\n" + b"".join(STREAM),
        STREAM_HEAD + chunked([event("a"), b'data: {"error": {"message": "out of memory"}}\n\n']),
        STREAM_HEAD + chunked([event("a")]),
        b"HTTP/1.1 503 Busy\r\ncontent-length: 38\r\n\r\n" + b'{"error": {"message": "overloaded"}}\r\n',
        b"HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n",
    ],
)
def test_the_wire_and_stock_httpx_give_the_same_outcome(run: Callable[..., Any], answer: bytes) -> None:
    async def main() -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        async with serving(answering(answer)) as port:
            stock = await stream_from(port, transport=httpx.AsyncHTTPTransport())
            ours = await stream_from(port)
            return gist(stock), gist(ours)

    stock, ours = run(main)
    if "transfer-encoding" in answer.decode():  # httpx gives one read a chunk, however many came at once
        joined = [tuple(map(sum, zip(*stock[4], strict=True)))]
        assert ours[:4] + ours[5:] == stock[:4] + stock[5:]
        assert ours[4][0][0] == joined[0][0]
    else:
        assert ours == stock


def test_the_request_is_the_one_that_httpx_makes(run: Callable[..., Any]) -> None:
    async def main() -> list[bytes]:
        seen: list[bytes] = []

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(await take_request(reader))
            writer.write(STREAM_HEAD + chunked(STREAM))

        async with serving(handler) as port:
            await stream_from(port, transport=httpx.AsyncHTTPTransport())
            await stream_from(port)
        return seen

    stock, ours = run(main)
    assert b"Bearer k" in ours
    assert b"x-request-id: the-id\r\n" in ours
    assert normal(ours) == normal(stock)


def normal(request: bytes) -> tuple[bytes, list[bytes], bytes]:
    head, _, body = request.partition(b"\r\n\r\n")
    first, *headers = head.split(b"\r\n")
    return first, sorted(name.lower() + b":" + value for name, _, value in (h.partition(b":") for h in headers)), body


def test_the_total_timeout_ends_a_stream_that_still_gives_bytes(run: Callable[..., Any]) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take_request(reader)
        writer.write(STREAM_HEAD)
        while not reader.at_eof():
            writer.write(b"f\r\n: keepalive\r\n\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    async def main() -> StreamOutcome:
        async with serving(handler) as port:
            return await stream_from(port, timeouts=Timeouts(total_s=0.1))

    outcome = run(main)
    assert outcome.error_class == "total_timeout"
    assert outcome.stream_end_at_ns is not None


def test_a_refused_connection_is_named_by_the_system(run: Callable[..., Any]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    outcome = run(stream_from, port)
    assert (outcome.error_class, outcome.error) == ("connect", "Connection refused")
    assert outcome.sent_at_ns is None


@pytest.fixture(scope="module")
def server_tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    """A context with a certificate that nobody has signed but itself, and the certificate's file."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=a-test -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context, folder / "cert.pem"


def test_a_certificate_that_nobody_vouches_for_is_refused(
    run: Callable[..., Any], server_tls: tuple[ssl.SSLContext, Path]
) -> None:
    async def main() -> StreamOutcome:
        async with serving(answering(STREAM_HEAD + chunked(STREAM)), server_tls[0]) as port:
            return await stream_from(port, "https://127.0.0.1")

    outcome = run(main)
    assert outcome.error_class == "connect"
    assert (outcome.error or "").startswith("TLS: ")


def test_a_trusted_certificate_gives_the_same_stream(
    run: Callable[..., Any], server_tls: tuple[ssl.SSLContext, Path]
) -> None:
    async def main() -> StreamOutcome:
        async with serving(forever(STREAM_HEAD + chunked(STREAM)), server_tls[0]) as port:
            return await stream_from(port, "https://127.0.0.1", network=Network(ca_file=str(server_tls[1])))

    outcome = run(main)
    assert (outcome.error, outcome.text, outcome.output_tokens) == (None, "aäc", 3)


def test_a_certificate_for_another_name_is_refused(
    run: Callable[..., Any], server_tls: tuple[ssl.SSLContext, Path]
) -> None:
    async def main() -> StreamOutcome:
        async with serving(forever(STREAM_HEAD + chunked(STREAM)), server_tls[0]) as port:
            return await stream_from(port, "https://localhost", network=Network(ca_file=str(server_tls[1])))

    outcome = run(main)
    assert (outcome.error_class, (outcome.error or "")[:5]) == ("connect", "TLS: ")
