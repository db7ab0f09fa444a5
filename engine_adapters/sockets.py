"""Sockets under a connection: kernel-stamped ones that are read in batches when busy, and the event loop's own."""

from __future__ import annotations

import asyncio
import platform
import select
import socket
import struct
import sys
from functools import cache
from time import monotonic_ns, time_ns
from typing import Protocol, cast

READ_BYTES = 256 * 1024
# After so much reading the event loop's other work, such as a send that is due, has its turn.
TURN_NS = 2_000_000
READS_A_LOOK = 32

# Linux; Python's socket module has no names for them (linux/net_tstamp.h, asm-generic/socket.h).
SO_TIMESTAMPING = 37
RX_SOFTWARE, REPORT_SOFTWARE = 1 << 3, 1 << 4
STAMP_BYTES = 48  # three struct timespec, of which the first is the software stamp
SECONDS_AND_NS = struct.Struct("qq").unpack_from

# Above BUSY reads in LOOK_NS, sockets are looked at once a tick: the kernel has stamped the bytes, so nothing is lost
# by reading them a millisecond later, and waking for each read is most of its price. The remedy is a network card's
# "interrupt moderation", and the remedy's price is that the end of an answer is noticed up to a tick or two later.
TICK_S = 0.001
LOOK_NS = 16_000_000
BUSY, CALM = 48, 24
CLOCK_STEP_NS = 200_000  # wall minus monotonic clock moved by more than this: the wall clock was set
BRACKET_NS = 20_000  # an offset between the clocks is believed when both were read within this


class Reader(Protocol):
    """What a socket tells about; a `Connection`."""

    def received(self, instant_ns: int, lag_ns: int, data: bytes) -> None:
        """Bytes came at `instant_ns`; `lag_ns` later they were read, or -1 when the read is what stamped them."""
        ...

    def lost(self, at_ns: int, error: Exception | None) -> None:
        """The socket is closed; `error` is None when the other side had said that it was done."""
        ...


class Link(Protocol):
    """An open socket, to whoever writes to it."""

    @property
    def usable(self) -> bool:
        """Not closed, and not about to be."""
        ...

    def write(self, payload: bytes) -> None:
        """Hand the bytes to the kernel now, and what it does not take as soon as it does."""
        ...

    def abort(self) -> None:
        """Close at once; `Reader.lost` follows."""
        ...


@cache
def kernel_stamps() -> bool:
    """Whether this system stamps received bytes in a way that is known here: Linux on 64 bits, where it is allowed."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64") or sys.maxsize < 2**32:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        try:
            ask_for_stamps(trial)
        except OSError:  # a sandbox may refuse it
            return False
    return True


def ask_for_stamps(sock: socket.socket) -> None:
    """Have the kernel stamp what the socket receives."""
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, RX_SOFTWARE | REPORT_SOFTWARE)


class WallClock:
    """Maps the kernel's stamps, which are wall-clock time, to the monotonic clock."""

    def __init__(self) -> None:
        self._offset_ns: int | None = None

    def offset_ns(self) -> int | None:
        """Wall minus monotonic time now; None when the wall clock has been set since the last call."""
        before_ns = monotonic_ns()
        offset_ns = time_ns() - before_ns
        last_ns, interrupted = self._offset_ns, monotonic_ns() - before_ns > BRACKET_NS
        if last_ns is not None and interrupted:
            return last_ns
        self._offset_ns = offset_ns
        return offset_ns if last_ns is None or abs(offset_ns - last_ns) < CLOCK_STEP_NS else None


class StampedSockets:
    """All sockets of one `Wire`, behind one epoll that the event loop watches, or looks at once a tick when busy."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._links: dict[int, StampedLink] = {}
        self._clock = WallClock()
        self._n_reads = 0
        self._since_ns = 0
        self._ticking: asyncio.Handle | None = None
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.vector = [self.buffer]
        self._loop.add_reader(self._epoll.fileno(), self._wake)
        # The kernel stamps while any socket asks for it, and begins a moment after the first one does.
        self._keeper = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        ask_for_stamps(self._keeper)

    def add(self, sock: socket.socket, reader: Reader) -> StampedLink:
        """Take over a connected, non-blocking socket."""
        ask_for_stamps(sock)
        link = StampedLink(self, sock, reader)
        self._links[sock.fileno()] = link
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        return link

    def drop(self, sock: socket.socket) -> None:
        """Stop watching a socket and close it."""
        del self._links[sock.fileno()]
        self._epoll.unregister(sock.fileno())
        sock.close()

    def watch_for_room(self, sock: socket.socket, wanted: bool) -> None:
        """Also tell the link when the kernel takes more bytes, or no longer."""
        self._epoll.modify(sock.fileno(), select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def close(self) -> None:
        """Stop watching; links must have been closed before."""
        if self._ticking is not None:
            self._ticking.cancel()
        else:
            self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        self._keeper.close()

    def _read_ready(self) -> bool:
        """Read what is ready, for a turn at most; whether more was left."""
        until_ns = monotonic_ns() + TURN_NS
        offset_ns = self._clock.offset_ns()
        while True:
            ready = self._epoll.poll(0, READS_A_LOOK)
            for fd, mask in ready:
                link = self._links.get(fd)
                if link is not None:  # else closed by what a link before it in this turn led to
                    try:
                        link.ready(mask, offset_ns)
                    except Exception as error:  # one answer's, which must not end the reading of all others
                        link.lose(error)
            self._n_reads += len(ready)
            if len(ready) < READS_A_LOOK:
                return False
            if monotonic_ns() > until_ns:
                return True

    def _wake(self) -> None:
        self._read_ready()
        now_ns = monotonic_ns()
        if now_ns - self._since_ns < LOOK_NS:
            return
        if self._n_reads > BUSY and now_ns - self._since_ns < 2 * LOOK_NS:
            self._loop.remove_reader(self._epoll.fileno())
            self._ticking = self._loop.call_later(TICK_S, self._tick)
        self._since_ns, self._n_reads = now_ns, 0

    def _tick(self) -> None:
        more = self._read_ready()
        now_ns = monotonic_ns()
        if now_ns - self._since_ns >= LOOK_NS:
            calm = self._n_reads < CALM
            self._since_ns, self._n_reads = now_ns, 0
            if calm:
                self._ticking = None
                self._loop.add_reader(self._epoll.fileno(), self._wake)
                return
        if more:
            self._ticking = self._loop.call_soon(self._tick)
        else:
            self._ticking = self._loop.call_later(TICK_S, self._tick)


class StampedLink:
    """A socket whose reads carry the instant at which the kernel received the last of their bytes."""

    def __init__(self, sockets: StampedSockets, sock: socket.socket, reader: Reader) -> None:
        self._sockets = sockets
        self._sock = sock
        self._recvmsg_into = sock.recvmsg_into
        self._reader = reader
        self._received = reader.received
        self._loop = asyncio.get_running_loop()
        self._unsent = b""
        self.usable = True

    def write(self, payload: bytes) -> None:
        """See `Link.write`."""
        if self._unsent:
            self._unsent += payload
            return
        try:
            n_sent = self._sock.send(payload)
        except BlockingIOError:
            n_sent = 0
        except OSError as error:
            self.lose(error)
            return
        if n_sent < len(payload):
            self._unsent = payload[n_sent:]
            self._sockets.watch_for_room(self._sock, True)

    def abort(self) -> None:
        """See `Link.abort`."""
        self.lose(None)

    def ready(self, mask: int, offset_ns: int | None) -> None:
        """One read, and what waits to be written. `offset_ns` takes stamps to monotonic time; None: believe none."""
        if mask & select.EPOLLOUT and self._unsent:
            self._write_on()
        if mask == select.EPOLLOUT or not self.usable:
            return
        try:
            n_bytes, ancillary, _, _ = self._recvmsg_into(self._sockets.vector, 64)
        except BlockingIOError:
            return
        except OSError as error:
            self.lose(error)
            return
        now_ns = monotonic_ns()
        if not n_bytes:
            self.lose(None)
            return
        instant_ns, lag_ns = now_ns, -1
        if ancillary and offset_ns is not None:
            seconds, nanoseconds = SECONDS_AND_NS(ancillary[0][2])
            stamp_ns = seconds * 1_000_000_000 + nanoseconds - offset_ns
            if seconds and stamp_ns <= now_ns:
                instant_ns, lag_ns = stamp_ns, now_ns - stamp_ns
        self._received(instant_ns, lag_ns, bytes(self._sockets.buffer[:n_bytes]))

    def _write_on(self) -> None:
        unsent, self._unsent = self._unsent, b""
        self.write(unsent)
        if self.usable and not self._unsent:
            self._sockets.watch_for_room(self._sock, False)

    def lose(self, error: Exception | None) -> None:
        """Close now and tell in the next turn, so that whoever writes or reads is not called while it does."""
        if self.usable:
            self.usable = False
            self._sockets.drop(self._sock)
            self._loop.call_soon(self._reader.lost, monotonic_ns(), error)


class LoopLink(asyncio.BufferedProtocol):
    """A socket of the event loop's, for TLS and where the kernel does not stamp: reads are stamped here, at once."""

    def __init__(self, reader: Reader, buffer: memoryview) -> None:
        self._reader = reader
        self._buffer = buffer
        self._transport: asyncio.Transport | None = None
        self._ended_at_ns: int | None = None

    @property
    def usable(self) -> bool:
        """The loop reports a loss one turn after it has seen it."""
        return self._transport is not None and not self._transport.is_closing()

    def write(self, payload: bytes) -> None:
        """See `Link.write`."""
        if self._transport is not None:
            self._transport.write(payload)

    def abort(self) -> None:
        """See `Link.abort`."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Every write leaves at once: asyncio sends right away, uvloop only above its high-water mark."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The loop reads into it and calls `buffer_updated` before it does anything else, so that all share one."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """One read."""
        self._reader.received(monotonic_ns(), -1, bytes(self._buffer[:nbytes]))

    def eof_received(self) -> None:
        """The server has said all it will say; the loop closes the socket."""
        self._ended_at_ns = monotonic_ns()

    def connection_lost(self, exc: Exception | None) -> None:
        """The loop has closed the socket."""
        self._reader.lost(self._ended_at_ns or monotonic_ns(), exc)
