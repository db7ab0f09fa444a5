"""A second reader: a relay in a thread of its own between client and server, which stamps and keeps all bytes.

A request counts from the instant at which the kernel received its last byte; an answer's bytes were handed on between
two instants, which are far apart when the relay got no CPU. All are instants of this machine's monotonic clock.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic_ns, time_ns
from urllib.parse import urlsplit

from support.streams import naive_text

SO_TIMESTAMPNS = 35  # Linux; Python's socket module has no name for it


@dataclass
class Tape:
    """One connection, which a test uses for one request: when its request came, and what the server then wrote."""

    request: bytes = b""
    asked_at_ns: int = 0
    reads: list[bytes] = field(default_factory=list)
    handed_on_ns: list[tuple[int, int]] = field(default_factory=list)  # of each read: before and after
    client_left: bool = False

    @property
    def body(self) -> bytes:
        """The answer's body, without HTTP's framing."""
        return unframed(b"".join(self.reads))

    def first_text(self) -> int:
        """The number, from 0, of the read that completed the first event with text, of whichever choice."""
        for n in range(len(self.reads)):
            body = unframed(b"".join(self.reads[: n + 1]))
            complete = body[: body.rfind(b"\n\n") + 2]
            if naive_text(complete.replace(b'"index":1', b'"index":0')):
                return n
        raise AssertionError("no text came")

    def last_of(self, n_bytes: int) -> int:
        """Which of the reads was the last in a read of the client's that had `n_bytes` of body and the first text."""
        ends = [len(unframed(b"".join(self.reads[:n]))) for n in range(len(self.reads) + 1)]
        first = self.first_text()
        found = (n for n in range(first, len(self.reads)) if ends[n + 1] - n_bytes in ends[: first + 1])
        last = next(found, None)
        assert last is not None, (n_bytes, first, ends)
        return last


def unframed(raw: bytes) -> bytes:
    """What an HTTP/1.1 answer's bytes carry, as far as they have come."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return rest
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        n = int(size or b"0", 16)
        body += rest[:n]
        rest = rest[n + 2 :] if n else b""
    return body


@contextmanager
def relay(url: str) -> Iterator[tuple[str, list[Tape]]]:
    """The relay's own URL, and a tape for each connection made to it."""
    tapes: list[Tape] = []
    keeper = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)  # the kernel stamps from a moment after the first asks
    ask_for_stamps(keeper)
    listener = socket.create_server(("127.0.0.1", 0))
    there = urlsplit(url)
    address = (there.hostname or "127.0.0.1", there.port or 80)
    threading.Thread(target=_accept, args=(listener, address, tapes), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", tapes
    finally:
        listener.close()
        keeper.close()


def ask_for_stamps(sock: socket.socket) -> None:
    """Have the kernel stamp what the socket receives, on Linux."""
    if sys.platform == "linux":
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


def _accept(listener: socket.socket, address: tuple[str, int], tapes: list[Tape]) -> None:
    with suppress(OSError):  # closed
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(address)
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ask_for_stamps(client)
            tapes.append(Tape())
            for pump in (_to_server, _to_client):
                threading.Thread(target=pump, args=(client, server, tapes[-1]), daemon=True).start()


def _to_server(client: socket.socket, server: socket.socket, tape: Tape) -> None:
    with suppress(OSError):
        while received := received_at(client):
            tape.asked_at_ns, data = received
            tape.request += data
            server.sendall(data)
    tape.client_left = True
    with suppress(OSError):
        server.shutdown(socket.SHUT_RDWR)
    for one in (client, server):
        one.close()


def received_at(client: socket.socket) -> tuple[int, bytes] | None:
    """The next bytes and when the kernel received them, on Linux; elsewhere when they were read."""
    data, ancillary, _, _ = client.recvmsg(65536, 64)
    now_ns = monotonic_ns()
    if ancillary:
        seconds, nanoseconds = struct.unpack_from("qq", ancillary[0][2])
        now_ns += seconds * 10**9 + nanoseconds - time_ns()
    return (now_ns, data) if data else None


def _to_client(client: socket.socket, server: socket.socket, tape: Tape) -> None:
    with suppress(OSError):
        while data := server.recv(65536):
            tape.reads.append(data)
            before_ns = monotonic_ns()
            try:
                client.sendall(data)
            finally:
                tape.handed_on_ns.append((before_ns, monotonic_ns()))
    with suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)  # unlike close, wakes the other pump
