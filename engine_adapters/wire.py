"""HTTP/1.1 to one server over pooled sockets of our own: every read is stamped first, then parsed and pushed."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import cast

import httptools

from engine_adapters.base import ErrorClass, StreamOutcome

READ_BYTES = 256 * 1024
REFUSAL_BYTES = 64 * 1024  # kept of an answer that is not 2xx
# A keep-alive race (the server closed an idle connection as we wrote) shows within a round trip. A connection that is
# lost later was lost by a server that had the request, and sending it twice would hide that.
RACE_NS = 1_000_000_000

OnRead = Callable[[int, bytes], None]


class WireError(Exception):
    """A request that ended in a fault of the network or the server; `error_class` is the one it is counted under."""

    def __init__(self, error_class: ErrorClass, message: str) -> None:
        super().__init__(message)
        self.error_class = error_class


class KeepAliveRace(WireError):
    """Lost soon after the write and before one byte of an answer: on a pooled connection, the request is sent again."""


@dataclass(slots=True)
class Exchange:
    """One request on one connection, until `done`."""

    outcome: StreamOutcome
    on_read: OnRead
    done: asyncio.Future[None]
    refusal: bytearray = field(default_factory=bytearray)

    def keep_refusal(self, _instant_ns: int, data: bytes) -> None:
        """Take the place of `on_read` when the status is not 2xx."""
        if len(self.refusal) < REFUSAL_BYTES:
            self.refusal += data


class Connection(asyncio.BufferedProtocol):
    """One socket; carries one exchange at a time and goes back to the pool when the answer allows it."""

    def __init__(self, wire: Wire) -> None:
        self.idle_since_ns = 0
        self._wire = wire
        self._buffer = wire.buffer
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # httptools looks its callbacks up here, once
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._push: OnRead | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._reset(0)

    def _reset(self, now_ns: int) -> None:
        self._active_at_ns = now_ns  # last write or read
        self._heard = False  # a byte came back
        self._framed = False  # the answer says where it ends
        self._complete = False
        self._n_pieces = 0  # of the last read; what comes after the end of the answer is not its body
        self._reusable = False
        self._eof_at_ns: int | None = None
        self._push = None

    # What the pool calls

    def send(self, payload: bytes, exchange: Exchange) -> None:
        """Write a request now; its answer goes to `exchange`."""
        if self._transport is None or not self.usable:
            raise WireError("disconnected", "the server closed the connection without an answer")
        self._exchange = exchange
        now_ns = monotonic_ns()
        self._reset(now_ns)
        exchange.outcome.sent_at_ns = now_ns
        self._transport.write(payload)
        if self._silence is None:
            self._silence = self._loop.call_later(self._wire.read_s, self._check_silence)

    def give_up(self, exchange: Exchange) -> None:
        """Close the socket if it still carries `exchange`: nobody waits for the answer any more."""
        if self._exchange is exchange:
            self._exchange = None
            self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._wire.retire(self)
        if self._transport is not None:
            self._transport.abort()

    @property
    def usable(self) -> bool:
        """Not closed, and not about to be: the loop reports a loss one turn after it has seen it."""
        return self._transport is not None and not self._transport.is_closing()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Every write leaves at once: asyncio sends right away, uvloop only above its high-water mark."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._wire.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The loop reads into it and calls `buffer_updated` before it does anything else, so that all share one."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """One socket read: stamp, parse, push."""
        now_ns = monotonic_ns()
        exchange = self._exchange
        if exchange is None:  # a server that speaks unasked, such as a 408 before it closes
            self.abort()
            return
        self._active_at_ns = now_ns
        self._heard = True
        error: Exception | None = None
        try:
            self._parser.feed_data(self._buffer[:nbytes])
        except httptools.HttpParserError as fault:
            error = WireError("protocol", f"the answer is not HTTP/1.1: {fault}")
        pieces = self._pieces
        if self._complete:
            del pieces[self._n_pieces :]
        if pieces:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            try:
                self._push(now_ns, data)  # type: ignore[misc]  # set with the headers, which come before any body
            except Exception as fault:  # ours, not the server's: it must reach whoever waits
                error = fault
        if error is not None:
            self._fail(error)
        elif self._complete:
            self._finish(now_ns)

    def eof_received(self) -> None:
        """The server has said all it will say; the loop closes the socket."""
        self._eof_at_ns = monotonic_ns()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of a body without a length, or a fault."""
        self._wire.forget(self)
        if self._silence is not None:
            self._silence.cancel()
        if self._exchange is None:
            return
        if exc is None and self._push is not None and not self._framed:
            self._finish(self._eof_at_ns or monotonic_ns())
        else:
            self._fail(self._loss(), exc)

    # What the parser calls

    def on_message_begin(self) -> None:
        """More than was asked for leaves the connection in a state that no later request should meet."""
        self._reusable = self._framed = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Only how the body is framed is of interest."""
        name = name.lower()
        if name == b"content-length" or (name == b"transfer-encoding" and b"chunked" in value.lower()):
            self._framed = True

    def on_headers_complete(self) -> None:
        """Status and instant; 1xx answers go before the real one and are skipped."""
        exchange = self._exchange
        status = self._parser.get_status_code()
        if status < 200 or exchange is None or self._push is not None:
            return
        exchange.outcome.http_status = status
        exchange.outcome.headers_at_ns = self._active_at_ns
        self._push = exchange.on_read if status < 300 else exchange.keep_refusal

    def on_message_complete(self) -> None:
        """The body is whole."""
        if self._push is not None and not self._complete:
            self._complete = True
            self._n_pieces = len(self._pieces)
            self._reusable = bool(self._parser.should_keep_alive())

    # Ends of an exchange

    def _finish(self, now_ns: int) -> None:
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        exchange.outcome.stream_end_at_ns = now_ns
        if self._reusable:
            self.idle_since_ns = now_ns
            self._wire.take_back(self)
        else:
            self.abort()
        if not exchange.done.done():
            exchange.done.set_result(None)

    def _fail(self, error: Exception, cause: Exception | None = None) -> None:
        exchange, self._exchange = self._exchange, None
        self.abort()
        if exchange is not None and not exchange.done.done():
            error.__cause__ = cause
            exchange.done.set_exception(error)

    def _loss(self) -> WireError:
        if self._heard:
            return WireError("disconnected", "the server closed the connection before the answer was complete")
        sentence = "the server closed the connection without an answer"
        if monotonic_ns() - self._active_at_ns < RACE_NS:
            return KeepAliveRace("disconnected", sentence)
        return WireError("disconnected", sentence)

    def _check_silence(self) -> None:
        """One timer for each connection, re-armed when it fires, instead of one for each read."""
        self._silence = None
        if self._exchange is None:
            return
        left_s = self._wire.read_s - (monotonic_ns() - self._active_at_ns) / 1e9
        if left_s <= 0:
            self._fail(WireError("read_timeout", "timed out"))
        else:
            self._silence = self._loop.call_later(left_s, self._check_silence)


class Wire:
    """The connections to one server: as many as are needed, the one that was used last is used first.

    `read_s` is the longest silence in an answer, `connect_s` the longest wait for a connection (resolving and TLS
    included), `keepalive_s` the longest that an idle connection is trusted. The name is resolved once and the address
    that answered is kept. Belongs to one event loop.
    """

    def __init__(
        self, host: str, port: int, tls: ssl.SSLContext | None, connect_s: float, read_s: float, keepalive_s: float
    ) -> None:
        self.host, self.port = host, port
        self.read_s = read_s
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.n_opened = 0
        self._tls = tls
        self._connect_s = connect_s
        self._keepalive_ns = round(keepalive_s * 1e9)
        self._addresses: list[str] = []
        self._open: set[Connection] = set()
        self._idle: dict[Connection, None] = {}  # ordered; the last one is the one that was used last

    async def request(self, payload: bytes, outcome: StreamOutcome, on_read: OnRead) -> bytes:
        """Send a complete request and push the body of its answer, one call a socket read, until it has ended.

        Fills the outcome's instants and status as they come. Returns the body of an answer that is not 2xx (its
        first 64 KiB), which is not pushed. Raises WireError; when cancelled, closes the socket.
        """
        connection = self._lease()
        if connection is not None:
            try:
                return await self._carry(connection, payload, outcome, on_read)
            except KeepAliveRace:
                pass
        connection = await self._connect()
        outcome.connected_at_ns = monotonic_ns()
        return await self._carry(connection, payload, outcome, on_read)

    async def close(self) -> None:
        """Close all connections and wait until they are gone."""
        leaving = list(self._open)
        for connection in leaving:
            connection.abort()
        while self._open:  # the loop reports the end of each in one of its next turns
            await asyncio.sleep(0)

    def opened(self, connection: Connection) -> None:
        """A connection is ready."""
        self.n_opened += 1
        self._open.add(connection)

    def retire(self, connection: Connection) -> None:
        """The connection is closing: nobody may have it."""
        self._idle.pop(connection, None)

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        self._idle.pop(connection, None)
        self._open.discard(connection)

    def take_back(self, connection: Connection) -> None:
        """The connection may carry another request."""
        self._idle[connection] = None

    def _lease(self) -> Connection | None:
        if not self._idle:
            return None
        connection, _ = self._idle.popitem()
        if monotonic_ns() - connection.idle_since_ns < self._keepalive_ns:
            return connection if connection.usable else self._lease()
        for stale in (connection, *self._idle):  # the others have been idle for longer
            stale.abort()
        return None

    async def _carry(self, connection: Connection, payload: bytes, outcome: StreamOutcome, on_read: OnRead) -> bytes:
        exchange = Exchange(outcome, on_read, asyncio.get_running_loop().create_future())
        try:
            connection.send(payload, exchange)
            await exchange.done
        except BaseException:
            connection.give_up(exchange)
            raise
        return bytes(exchange.refusal)

    async def _connect(self) -> Connection:
        try:
            async with asyncio.timeout(self._connect_s):
                connection = await self._connect_any()
        except TimeoutError as error:
            raise WireError("connect_timeout", "timed out") from error
        except OSError as error:  # refused, unresolvable, TLS
            raise WireError("connect", str(error)) from error
        return connection

    async def _connect_any(self) -> Connection:
        """Try the server's addresses in turn, each with its share of the time; the one that answers is kept."""
        if not self._addresses:
            found = await asyncio.get_running_loop().getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            self._addresses = [str(address[0]) for *_, address in found]
        addresses = self._addresses
        last: OSError | None = None
        for address in addresses:
            try:
                async with asyncio.timeout(self._connect_s / len(addresses)):
                    connection = await self._open_socket(address)
            except ssl.SSLError:
                raise  # it was reached, and is not to be trusted
            except OSError as error:
                last = error
            else:
                self._addresses = [address]
                return connection
        self._addresses = []
        raise last or OSError("the name has no address")

    async def _open_socket(self, address: str) -> Connection:
        server_name = self.host if self._tls else None
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self), address, self.port, ssl=self._tls, server_hostname=server_name
        )
        return connection
