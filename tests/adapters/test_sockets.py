"""Stamped sockets: a read carries the instant at which the kernel got the bytes, however late it is made."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.raw_server import OK, REQUEST, serving, take_request, wire_to

import engine_adapters.sockets as sockets
from engine_adapters.base import StreamOutcome
from engine_adapters.connection import WireError
from engine_adapters.network import Network
from engine_adapters.sockets import WallClock, kernel_stamps
from engine_adapters.transport import HttpClient

needs_stamps = pytest.mark.skipif(not kernel_stamps(), reason="this system does not stamp received bytes")
HEAD = OK + b"transfer-encoding: chunked\r\n\r\n"
EVENT = b"9\r\ndata: x\n\n\r\n"
MS = 1_000_000


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_of(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Run a coroutine function on either event loop."""
    if request.param == "uvloop":
        uvloop = pytest.importorskip("uvloop")
        return lambda main: asyncio.Runner(loop_factory=uvloop.new_event_loop).run(main())
    return lambda main: asyncio.run(main())


class ThreadedServer:
    """Answers one request from a thread of its own with `n` events, and keeps the instant before each send."""

    def __init__(self, n: int, gap_s: float) -> None:
        self.sent_at_ns: list[int] = []
        self._n, self._gap_s = n, gap_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        connection.recv(65536)
        connection.sendall(HEAD)
        for _ in range(self._n):
            time.sleep(self._gap_s)
            self.sent_at_ns.append(time.monotonic_ns())
            connection.sendall(EVENT)
        connection.sendall(b"0\r\n\r\n")
        connection.recv(1)
        connection.close()

    def close(self) -> None:
        self._thread.join()
        self._listener.close()


@needs_stamps
def test_an_event_that_is_read_late_keeps_the_instant_at_which_it_came(loop_of: Callable[..., Any]) -> None:
    async def main() -> tuple[list[int], list[int], StreamOutcome]:
        server = ThreadedServer(1, 0.05)
        seen: list[int] = []
        wire, outcome = wire_to(server.port), StreamOutcome()
        wire._sockets = sockets.StampedSockets()
        await asyncio.sleep(0.05)  # the kernel begins to stamp
        asking = asyncio.ensure_future(wire.request(REQUEST, outcome, lambda at_ns, _: seen.append(at_ns)))
        while outcome.sent_at_ns is None:
            await asyncio.sleep(0)
        time.sleep(0.4)  # the loop is blocked while the event comes
        await asking
        await wire.close()
        server.close()
        return seen, server.sent_at_ns, outcome

    seen, sent, outcome = loop_of(main)
    assert 0 <= seen[0] - sent[0] < 100 * MS  # the event was there 50 ms after the request and read 350 ms later
    assert outcome.read_lag_max_ns > 200 * MS
    assert outcome.reads_kernel_stamped == outcome.reads_total > 0


@needs_stamps
def test_without_kernel_stamps_the_same_event_bears_the_clients_delay(
    loop_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine_adapters.wire.kernel_stamps", lambda: False)

    async def main() -> tuple[int, StreamOutcome]:
        server = ThreadedServer(1, 0.05)
        seen: list[int] = []
        wire, outcome = wire_to(server.port), StreamOutcome()
        asking = asyncio.ensure_future(wire.request(REQUEST, outcome, lambda at_ns, _: seen.append(at_ns)))
        while outcome.sent_at_ns is None:
            await asyncio.sleep(0)
        time.sleep(0.4)
        await asking
        await wire.close()
        server.close()
        return seen[0] - server.sent_at_ns[0], outcome

    late_ns, outcome = loop_of(main)
    assert late_ns > 200 * MS
    assert (outcome.reads_kernel_stamped, outcome.read_lag_max_ns) == (0, 0)


@needs_stamps
def test_busy_sockets_are_read_in_batches_and_calm_ones_at_once(
    loop_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handler(reader: Any, writer: Any) -> None:
        await take_request(reader)
        writer.write(HEAD)
        for _ in range(60):
            await asyncio.sleep(0.002)
            writer.write(EVENT)
        writer.write(b"0\r\n\r\n")
        await reader.read()

    ticks: list[int] = []
    tick = sockets.StampedSockets._tick

    def counted(self: sockets.StampedSockets) -> None:
        ticks.append(1)
        tick(self)

    monkeypatch.setattr(sockets.StampedSockets, "_tick", counted)

    async def main() -> tuple[list[StreamOutcome], bool]:
        async with serving(handler) as port:
            wire, outcomes = wire_to(port), [StreamOutcome() for _ in range(60)]
            await asyncio.gather(*(wire.request(REQUEST, outcome, lambda *_: None) for outcome in outcomes))
            while wire._sockets is not None and wire._sockets._ticking is not None:
                await asyncio.sleep(0.005)
            calm = wire._sockets is not None
            await wire.close()
            return outcomes, calm

    outcomes, calm = loop_of(main)
    n_reads = sum(outcome.reads_total for outcome in outcomes)
    assert calm
    assert len(ticks) > 2
    assert n_reads > 5 * len(ticks)
    assert all(outcome.stream_end_at_ns for outcome in outcomes)


def test_a_request_larger_than_the_kernel_takes_at_once_arrives_whole(loop_of: Callable[..., Any]) -> None:
    body = bytes(range(256)) * 40_000

    async def main() -> bool:
        got = []

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.05)  # let the buffers fill up
            got.append(await reader.readexactly(len(body)))
            writer.write(OK + b"content-length: 0\r\n\r\n")
            assert head
            await reader.read()

        async with serving(handler) as port:
            wire = wire_to(port)
            head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
            await wire.request(head + body, StreamOutcome(), lambda *_: None)
            await wire.close()
        return got == [body]

    assert loop_of(main)


def test_a_wall_clock_that_is_set_makes_stamps_unbelievable_for_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = {"mono": 0, "wall": 10**18}
    monkeypatch.setattr(sockets, "monotonic_ns", lambda: now["mono"])
    monkeypatch.setattr(sockets, "time_ns", lambda: now["wall"])
    clock = WallClock()
    assert clock.offset_ns() == 10**18
    now["mono"], now["wall"] = 5 * MS, 10**18 + 5 * MS
    assert clock.offset_ns() == 10**18
    now["wall"] -= 40 * MS
    assert clock.offset_ns() is None
    assert clock.offset_ns() == 10**18 - 40 * MS


def test_an_interruption_between_the_two_clocks_does_not_shift_the_instants(monkeypatch: pytest.MonkeyPatch) -> None:
    instants = iter([0, 0, 100, 3_000_100])  # the second look takes 3 ms
    monkeypatch.setattr(sockets, "monotonic_ns", lambda: next(instants))
    walls = iter([10**18, 10**18 + 3_000_100])
    monkeypatch.setattr(sockets, "time_ns", lambda: next(walls))
    clock = WallClock()
    assert clock.offset_ns() == clock.offset_ns() == 10**18


@needs_stamps
@pytest.mark.parametrize(
    ("url", "network", "expected"),
    [
        ("http://127.0.0.1:9", Network(), True),
        ("https://127.0.0.1:9", Network(), False),
        ("http://127.0.0.1:9", Network(unix_socket="/tmp/no.sock"), False),
        ("http://127.0.0.1:9", Network(http2=True), False),
    ],
)
def test_a_client_knows_whether_its_reads_can_have_kernel_stamps(url: str, network: Network, expected: bool) -> None:
    if network.http2:
        pytest.importorskip("h2")
    assert HttpClient(url, network=network).kernel_stamped is expected


@needs_stamps
@pytest.mark.parametrize("wanted", [True, False])
def test_a_client_can_be_told_to_stamp_when_it_reads(wanted: bool) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take_request(reader)
        writer.write(OK + b"content-length: 5\r\n\r\nhello")
        await reader.read()

    async def main() -> StreamOutcome:
        async with serving(handler) as port:
            client, outcome = HttpClient(f"http://127.0.0.1:{port}"), StreamOutcome()
            if not wanted:
                client.stamp_when_read()
            await client.warm("/", 1)
            await asyncio.sleep(0.05)  # the kernel begins to stamp
            await client.stream("/", b"{}", "id", outcome, lambda *_: None)
            await client.close()
            return outcome

    outcome = asyncio.run(main())
    assert outcome.reads_total == 1
    assert outcome.reads_kernel_stamped == int(wanted)


@needs_stamps
def test_one_answer_that_breaks_its_reader_ends_the_reading_of_no_other(
    loop_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = sockets.StampedLink.ready
    broken: list[sockets.StampedLink] = []

    def breaking(self: sockets.StampedLink, mask: int, offset_ns: int | None) -> None:
        broken[:] = broken or [self]
        if self is broken[0]:
            raise KeyError("ours")
        ready(self, mask, offset_ns)

    monkeypatch.setattr(sockets.StampedLink, "ready", breaking)

    async def handler(reader: Any, writer: Any) -> None:
        await take_request(reader)
        writer.write(HEAD)
        for _ in range(40):
            await asyncio.sleep(0.002)
            writer.write(EVENT)
        writer.write(b"0\r\n\r\n")
        await reader.read()

    async def main() -> list[str | None]:
        async with serving(handler) as port:
            wire = wire_to(port)
            asking = (wire.request(REQUEST, StreamOutcome(), lambda *_: None) for _ in range(40))
            results = await asyncio.gather(*asking, return_exceptions=True)
            await wire.close()
            return [str(result) for result in results if isinstance(result, BaseException)]

    assert len(loop_of(main)) == 1


def test_where_the_kernel_refuses_to_stamp_reads_are_stamped_when_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(_: socket.socket) -> None:
        raise OSError(92, "Protocol not available")

    monkeypatch.setattr(sockets, "ask_for_stamps", refusing)
    sockets.kernel_stamps.cache_clear()
    try:
        assert not sockets.kernel_stamps()
    finally:
        monkeypatch.undo()
        sockets.kernel_stamps.cache_clear()


def test_connections_are_opened_before_they_are_needed(run: Callable[..., Any]) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await take_request(reader)
            writer.write(OK + b"content-length: 0\r\n\r\n")

    async def main() -> tuple[int, int, list[int | None]]:
        async with serving(handler) as port:
            wire = wire_to(port)
            await wire.warm(100)
            opened, outcomes = wire.n_opened, [StreamOutcome() for _ in range(100)]
            await asyncio.gather(*(wire.request(REQUEST, outcome, lambda *_: None) for outcome in outcomes))
            await wire.warm(100)
            await wire.close()
            return opened, wire.n_opened, [outcome.connected_at_ns for outcome in outcomes]

    assert run(main) == (100, 100, [None] * 100)


def test_a_server_that_is_not_there_fails_the_warming_too(run: Callable[..., Any]) -> None:
    async def main() -> str:
        wire = wire_to(1)
        with pytest.raises(WireError) as caught:
            await wire.warm(3)
        await wire.close()
        return caught.value.error_class

    assert run(main) == "connect"
