"""The wire: reads are pushed whole and stamped, connections are shared and never reused when dead, faults are named."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_adapters.base import Request, StreamOutcome
from engine_adapters.openai import OpenAIAdapter
from engine_adapters.transport import HttpClient, Timeouts
from engine_adapters.wire import Connection, Exchange, Wire, WireError

T = TypeVar("T")
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\n"
HELLO = OK + b"content-length: 5\r\n\r\nhello"
REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Run a coroutine function on either event loop."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    options = {"use_uvloop": request.param == "uvloop"}
    return lambda main, *args: anyio.run(main, *args, backend_options=options)


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server on a port of 127.0.0.1 that calls `handler` for each connection and closes it afterwards."""

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

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls, backlog=1000)
    try:
        yield server.sockets[0].getsockname()[1]
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
    return refusal or b"".join(reads)


async def fault(wire: Wire) -> str:
    with pytest.raises(WireError) as caught:
        await ask(wire)
    await wire.close()
    return caught.value.error_class


# Bytes to bodies, without a socket


class FakeTransport(asyncio.Transport):
    """Takes writes and forgets them."""

    def __init__(self) -> None:
        super().__init__({"socket": socket.socket()})
        self.closed = False
        self.get_extra_info("socket").close()
        self.get_extra_info = lambda *_: self  # type: ignore[method-assign]

    def setsockopt(self, *_: int) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: Any) -> None: ...

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


def chunked(parts: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"


def framed(how: str, parts: list[bytes]) -> bytes:
    body = b"".join(parts)
    if how == "chunked":
        return OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(parts)
    if how == "after 100":
        return b"HTTP/1.1 100 Continue\r\n\r\n" + framed("length", parts)
    if how == "length":
        return OK + b"Content-Length: %d\r\n\r\n" % len(body) + body
    return b"HTTP/1.0 200 OK\r\n\r\n" + body


async def carry(data: bytes, cuts: list[int]) -> tuple[list[tuple[int, bytes]], StreamOutcome, int]:
    """The reads of an answer that comes cut at `cuts`, its outcome, and how many reads there were in all."""
    reads: list[tuple[int, bytes]] = []
    wire, outcome = wire_to(0), StreamOutcome()
    connection = Connection(wire)
    connection.connection_made(FakeTransport())
    exchange = Exchange(
        outcome, lambda at_ns, piece: reads.append((at_ns, piece)), asyncio.get_running_loop().create_future()
    )
    connection.send(REQUEST, exchange)
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for a, b in pairwise(edges):
        connection.get_buffer(-1)[: b - a] = data[a:b]
        connection.buffer_updated(b - a)
    connection.eof_received()
    connection.connection_lost(None)
    await exchange.done
    return reads, outcome, len(edges) - 1


FRAMINGS = st.sampled_from(["chunked", "length", "after 100", "until close"])
PARTS = st.lists(st.binary(min_size=1, max_size=40), max_size=8)


@given(FRAMINGS, PARTS, st.lists(st.integers(0, 400), max_size=30))
def test_any_rechunking_gives_the_same_body_and_one_push_a_read(how: str, parts: list[bytes], cuts: list[int]) -> None:
    reads, outcome, n_reads = asyncio.run(carry(framed(how, parts), cuts))
    assert b"".join(piece for _, piece in reads) == b"".join(parts)
    assert len(reads) <= n_reads
    assert outcome.http_status == 200
    instants = [outcome.sent_at_ns, outcome.headers_at_ns, *(at_ns for at_ns, _ in reads), outcome.stream_end_at_ns]
    assert None not in instants
    assert instants == sorted(instants)  # type: ignore[type-var]


@given(FRAMINGS, PARTS.filter(bool), st.integers(1, 400))
def test_an_answer_that_ends_early_is_a_disconnect(how: str, parts: list[bytes], cut: int) -> None:
    data = framed(how, parts)
    if how == "until close":
        data, cut = data[: data.index(b"\r\n\r\n") + 4], 1 + cut % 20  # only its head can be cut
    with pytest.raises(WireError) as caught:
        asyncio.run(carry(data[: -min(cut, len(data) - 1)], []))
    assert caught.value.error_class == "disconnected"


def test_what_is_not_http_is_named() -> None:
    with pytest.raises(WireError, match="HTTP") as caught:
        asyncio.run(carry(b"SSH-2.0-OpenSSH_9.6\r\n", []))
    assert caught.value.error_class == "protocol"


# Connections


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
            assert connection._transport is not None
            connection._transport.abort()  # reported in the loop's next turn
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


def test_writes_are_not_held_back_to_be_joined(run: Callable[..., Any]) -> None:
    async def main() -> list[int]:
        async with serving(forever(HELLO)) as port:
            wire = wire_to(port)
            await ask(wire)
            options = [
                c._transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                for c in wire._open
                if c._transport
            ]
            await wire.close()
            return options

    (option,) = run(main)
    assert option


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


# Faults and ends


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

        async def never(address: str) -> Connection:
            await anyio.sleep_forever()
            raise AssertionError

        wire._open_socket = never  # type: ignore[method-assign]
        return await fault(wire)

    assert run(main) == "connect_timeout"


# Through the client


def event(text: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % text.encode()


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3}}\n\n'
STREAM = [event("a"), event("ä") + event("c"), USAGE + b"data: [DONE]\n\n"]
STREAM_HEAD = OK + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def stream_from(
    port: int, server: str = "http://127.0.0.1", timeouts: Timeouts | None = None, **options: Any
) -> StreamOutcome:
    client = HttpClient(f"{server}:{port}", {"authorization": "Bearer k"}, timeouts, **options)
    adapter = OpenAIAdapter(client, "m")
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


def test_a_name_that_does_not_resolve_is_a_connect_fault(run: Callable[..., Any]) -> None:
    async def main() -> str:
        return await fault(Wire("no-such-host.invalid", 80, None, 5.0, 5.0, 4.0))

    assert run(main) == "connect"


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
        trusting = ssl.create_default_context(cafile=str(server_tls[1]))
        async with serving(forever(STREAM_HEAD + chunked(STREAM)), server_tls[0]) as port:
            return await stream_from(port, "https://127.0.0.1", ssl_context=trusting)

    outcome = run(main)
    assert (outcome.error, outcome.text, outcome.output_tokens) == (None, "aäc", 3)


def test_a_certificate_for_another_name_is_refused(
    run: Callable[..., Any], server_tls: tuple[ssl.SSLContext, Path]
) -> None:
    async def main() -> StreamOutcome:
        trusting = ssl.create_default_context(cafile=str(server_tls[1]))
        async with serving(forever(STREAM_HEAD + chunked(STREAM)), server_tls[0]) as port:
            return await stream_from(port, "https://localhost", ssl_context=trusting)

    outcome = run(main)
    assert (outcome.error_class, (outcome.error or "")[:5]) == ("connect", "TLS: ")
