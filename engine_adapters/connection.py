"""One HTTP/1.1 connection: sends a request, and pushes every read of the answer's body with its instant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Protocol

import httptools

from engine_adapters.base import ErrorClass, StreamOutcome
from engine_adapters.sockets import Link

REFUSAL_BYTES = 64 * 1024  # kept of an answer that is not 2xx
# A keep-alive race (the server closed an idle connection as we wrote) shows within a round trip. A connection that is
# lost later was lost by a server that had the request, and sending it twice would hide that.
RACE_NS = 1_000_000_000
# Reads are parsed in batches, which costs a third of parsing each as it comes, with caches that other streams have
# filled since. A read that ends with an event's blank line and a chunk's line end can't be the end of a chunked body,
# which ends with an empty line: CRLF CRLF.
EVENT_END = b"\n\n\r\n"
HELD_READS = 32
ADVICE = (b"retry-after", b"date")

OnRead = Callable[[int, bytes], None]


class WireError(Exception):
    """A request that ended in a fault of the network or the server; `error_class` is the one it is counted under."""

    def __init__(self, error_class: ErrorClass, message: str) -> None:
        super().__init__(message)
        self.error_class = error_class


class KeepAliveRace(WireError):
    """Lost soon after the write and before one byte of an answer: on a pooled connection, the request is sent again."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Of an answer that is not 2xx: the first 64 KiB of its body, and its `retry-after` and `date` headers."""

    body: bytes = b""
    advice: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Exchange:
    """One request on one connection, until `done`."""

    outcome: StreamOutcome
    on_read: OnRead
    done: asyncio.Future[None]
    refusal: bytearray = field(default_factory=bytearray)
    advice: dict[str, str] = field(default_factory=dict)  # headers of a refusal that say when to come back

    def keep_refusal(self, _instant_ns: int, data: bytes) -> None:
        """Take the place of `on_read` when the status is not 2xx."""
        if len(self.refusal) < REFUSAL_BYTES:
            self.refusal += data


class Pool(Protocol):
    """Whom a connection tells about itself."""

    read_s: float

    def take_back(self, connection: Connection) -> None:
        """The connection may carry another request."""
        ...

    def retire(self, connection: Connection) -> None:
        """The connection is closing: nobody may have it."""
        ...

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        ...


class Connection:
    """Carries one exchange at a time over a link and goes back to the pool when the answer allows it."""

    def __init__(self, pool: Pool) -> None:
        self.idle_since_ns = monotonic_ns()
        self.link: Link | None = None
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._held: list[tuple[int, int, bytes]] = []  # reads that are not parsed yet: instant, lag, bytes
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # httptools looks its callbacks up here, once
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._push: OnRead | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._reset(0)

    def _reset(self, now_ns: int) -> None:
        self._active_at_ns = now_ns  # last write or read
        self._parsed_at_ns = now_ns  # instant of the read that is being parsed
        self._heard = False  # a byte came back
        self._chunked = False
        self._may_hold = False  # headers are complete and the body is chunked
        self._framed = False  # the answer says where it ends
        self._complete = False
        self._n_pieces = 0  # of the last read; what comes after the end of the answer is not its body
        self._reusable = False
        self._push = None

    # What the pool calls

    @property
    def usable(self) -> bool:
        """Open, and not about to be closed."""
        return self.link is not None and self.link.usable

    def send(self, payload: bytes, exchange: Exchange) -> None:
        """Write a request now; its answer goes to `exchange`."""
        if self.link is None or not self.link.usable:
            raise WireError("disconnected", "the server closed the connection without an answer")
        self._exchange = exchange
        now_ns = monotonic_ns()
        self._reset(now_ns)
        exchange.outcome.sent_at_ns = now_ns
        self.link.write(payload)
        if self._silence is None:
            self._silence = self._loop.call_later(self._pool.read_s, self._check_silence)

    def give_up(self, exchange: Exchange) -> None:
        """Close the socket if it still carries `exchange`: nobody waits for the answer any more."""
        if self._exchange is exchange:
            self._parse_held()  # what has come belongs to the record
            self._exchange = None
            self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._pool.retire(self)
        if self.link is not None:
            self.link.abort()

    # What the link calls

    def received(self, instant_ns: int, lag_ns: int, data: bytes) -> None:
        """One socket read: keep it, and parse when it may be the last one or enough are kept."""
        if self._exchange is None:  # a server that speaks unasked, such as a 408 before it closes
            self.abort()
            return
        if instant_ns < self._active_at_ns:  # a stamp from before a step of the wall clock
            instant_ns = self._active_at_ns
        self._active_at_ns = instant_ns
        held = self._held
        held.append((instant_ns, lag_ns, data))
        if not (self._may_hold and len(held) < HELD_READS and data.endswith(EVENT_END)):
            self._parse_held()

    def lost(self, at_ns: int, error: Exception | None) -> None:
        """The end of a body without a length, or a fault."""
        self._parse_held()
        self._pool.forget(self)
        if self._silence is not None:
            self._silence.cancel()
        if self._exchange is None:
            return
        if error is None and self._push is not None and not self._framed:
            self._finish(at_ns)
        else:
            self._fail(self._loss(), error)

    # What the parser calls

    def on_message_begin(self) -> None:
        """More than was asked for leaves the connection in a state that no later request should meet."""
        self._reusable = self._framed = self._chunked = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """How the body is framed, and with a refusal when to come back."""
        name = name.lower()
        if name == b"transfer-encoding" and b"chunked" in value.lower():
            self._framed = self._chunked = True
        elif name == b"content-length":
            self._framed = True
        elif name in ADVICE and self._exchange is not None and self._parser.get_status_code() >= 400:
            self._exchange.advice[name.decode()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Status and instant; 1xx answers go before the real one and are skipped."""
        exchange = self._exchange
        status = self._parser.get_status_code()
        if status < 200 or exchange is None or self._push is not None:
            return
        exchange.outcome.http_status = status
        exchange.outcome.headers_at_ns = self._parsed_at_ns
        self._push = exchange.on_read if status < 300 else exchange.keep_refusal
        self._may_hold = self._chunked

    def on_message_complete(self) -> None:
        """The body is whole."""
        if self._push is not None and not self._complete:
            self._complete = True
            self._may_hold = False
            self._n_pieces = len(self._pieces)
            self._reusable = bool(self._parser.should_keep_alive())

    # Ends of an exchange

    def _parse_held(self) -> None:
        """Parse what is kept, and push the body's part of each read."""
        if not self._held:
            return
        held, self._held = self._held, []
        exchange = self._exchange
        if exchange is None:
            return
        self._heard = True
        outcome = exchange.outcome
        outcome.reads_total += len(held)
        for instant_ns, lag_ns, data in held:
            if lag_ns >= 0:
                outcome.reads_kernel_stamped += 1
                if lag_ns > outcome.read_lag_max_ns:
                    outcome.read_lag_max_ns = lag_ns
            error = self._parse(instant_ns, data)
            if error is not None:
                self._fail(error)
                return
            if self._complete:
                self._finish(instant_ns)
                return

    def _parse(self, instant_ns: int, data: bytes) -> Exception | None:
        self._parsed_at_ns = instant_ns
        error: Exception | None = None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as fault:
            error = WireError("protocol", f"the answer is not HTTP/1.1: {fault}")
        pieces = self._pieces
        if self._complete:  # what comes behind an answer is no part of it, but spoils the connection
            del pieces[self._n_pieces :]
            self._reusable = self._reusable and error is None
            error = None
        if pieces and self._push is None:
            error = WireError("protocol", "the answer has a body before a status")
            pieces.clear()
        if pieces:
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            try:
                self._push(instant_ns, body)  # type: ignore[misc]  # set with the headers, which come before any body
            except Exception as fault:  # ours, not the server's: it must reach whoever waits
                error = fault
        return error

    def _finish(self, at_ns: int) -> None:
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        exchange.outcome.stream_end_at_ns = at_ns
        if self._reusable:
            self.idle_since_ns = monotonic_ns()
            self._pool.take_back(self)
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
        left_s = self._pool.read_s - (monotonic_ns() - self._active_at_ns) / 1e9
        if left_s <= 0:
            self._parse_held()
            self._fail(WireError("read_timeout", "timed out"))
        else:
            self._silence = self._loop.call_later(left_s, self._check_silence)
