"""The connections to one server: as many as are needed, leased in O(1), the one that was used last first."""

from __future__ import annotations

import asyncio
import socket
import ssl
from time import monotonic_ns
from typing import Any

from engine_adapters.base import StreamOutcome
from engine_adapters.connection import Connection, Exchange, KeepAliveRace, OnRead, Refusal, WireError
from engine_adapters.sockets import READ_BYTES, LoopLink, StampedSockets, kernel_stamps

OPENED_AT_ONCE = 64  # below the backlog of servers that have the smallest one


class Wire:
    """HTTP/1.1 to one server.

    `read_s` is the longest silence in an answer, `connect_s` the longest wait for a connection (resolving and TLS
    included), `keepalive_s` the longest that an idle connection is trusted. The name is resolved once and the address
    that answered is kept. Reads are stamped by the kernel where it can, unless `stamps` is False. Belongs to one event
    loop.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        connect_s: float,
        read_s: float,
        keepalive_s: float,
        unix_socket: str | None = None,
        stamps: bool = True,
    ) -> None:
        self.host, self.port = host, port
        self.read_s = read_s
        self.n_opened = 0
        self._tls = tls
        # Kernel stamps where there are any: TCP, and not under TLS, whose records are the event loop's to read.
        self._stamps = stamps and tls is None and unix_socket is None and kernel_stamps()
        self._connect_s = connect_s
        self._keepalive_ns = round(keepalive_s * 1e9)
        # Address family and socket address
        self._addresses: list[tuple[int, Any]] = [(socket.AF_UNIX, unix_socket)] if unix_socket else []
        self._open: set[Connection] = set()
        self._idle: dict[Connection, None] = {}  # ordered; the last one is the one that was used last
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._sockets: StampedSockets | None = None

    async def request(self, payload: bytes, outcome: StreamOutcome, on_read: OnRead) -> Refusal:
        """Send a complete request and push the body of its answer, one call a socket read, until it has ended.

        Fills the outcome's instants and status. Calls may come a little later than the bytes, in batches, but with the
        instant of each read. Returns what came of an answer that is not 2xx, which is not pushed.
        Raises WireError; when cancelled, closes the socket.
        """
        connection = self._lease()
        if connection is not None:
            try:
                return await self._carry(connection, payload, outcome, on_read)
            except KeepAliveRace:
                outcome.reconnected = True
        connection = await self._connect(outcome)
        outcome.connected_at_ns = monotonic_ns()
        return await self._carry(connection, payload, outcome, on_read)

    async def warm(self, n_connections: int) -> None:
        """Have so many idle connections, as far as the server allows; raises WireError when it allows none."""
        self._drop_stale()
        while (missing := n_connections - len(self._idle)) > 0:
            opening = (self._connect(StreamOutcome()) for _ in range(min(missing, OPENED_AT_ONCE)))
            results = await asyncio.gather(*opening, return_exceptions=True)
            opened = [result for result in results if isinstance(result, Connection)]
            for connection in opened:
                connection.idle_since_ns = monotonic_ns()
                self.take_back(connection)
            errors = [result for result in results if isinstance(result, BaseException)]
            if errors and (not self._idle or not isinstance(errors[0], WireError)):
                raise errors[0]
            if errors:
                return  # the load will show what it needs

    def cool(self) -> None:
        """Close the idle connections, so that the next requests open their own."""
        for connection in list(self._idle):
            connection.abort()

    async def close(self) -> None:
        """Close all connections and wait until they are gone."""
        for connection in list(self._open):
            connection.abort()
        while self._open:  # the loop reports the end of each in one of its next turns
            await asyncio.sleep(0)
        if self._sockets is not None:
            self._sockets.close()
            self._sockets = None

    def retire(self, connection: Connection) -> None:
        """The connection is closing: nobody may have it."""
        self._idle.pop(connection, None)

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        self._idle.pop(connection, None)
        self._open.discard(connection)

    def take_back(self, connection: Connection) -> None:
        """The connection may carry another request."""
        if connection.usable:
            self._idle[connection] = None

    def _lease(self) -> Connection | None:
        while self._idle:
            connection, _ = self._idle.popitem()
            if monotonic_ns() - connection.idle_since_ns >= self._keepalive_ns:
                connection.abort()
                self._drop_stale()
            elif connection.usable:
                return connection
        return None

    def _drop_stale(self) -> None:
        """Close what has been idle for too long: the oldest stand first."""
        now_ns = monotonic_ns()
        while self._idle:
            connection = next(iter(self._idle))
            if now_ns - connection.idle_since_ns < self._keepalive_ns:
                return
            connection.abort()

    async def _carry(self, connection: Connection, payload: bytes, outcome: StreamOutcome, on_read: OnRead) -> Refusal:
        exchange = Exchange(outcome, on_read, asyncio.get_running_loop().create_future())
        try:
            connection.send(payload, exchange)
            await exchange.done
        except BaseException:
            connection.give_up(exchange)
            raise
        return Refusal(bytes(exchange.refusal), exchange.advice)

    async def _connect(self, outcome: StreamOutcome) -> Connection:
        try:
            async with asyncio.timeout(self._connect_s):
                connection = await self._connect_any(outcome)
        except TimeoutError as error:
            raise WireError("connect_timeout", "timed out") from error
        except OSError as error:  # refused, unresolvable, TLS
            raise WireError("connect", str(error)) from error
        return connection

    async def _connect_any(self, outcome: StreamOutcome) -> Connection:
        """Try the server's addresses in turn, each with its share of the time; the one that answers is kept."""
        if not self._addresses:
            found = await asyncio.get_running_loop().getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            self._addresses = [(int(family), address) for family, _, _, _, address in found]
            outcome.resolved_at_ns = monotonic_ns()
        addresses = self._addresses
        last: OSError | None = None
        for address in addresses:
            try:
                async with asyncio.timeout(self._connect_s / len(addresses)):
                    connection = await self._open_socket(*address, outcome)
            except ssl.SSLError:
                raise  # it was reached, and is not to be trusted
            except OSError as error:
                last = error
            else:
                self._addresses = [address]
                return connection
        if addresses[:1] and addresses[0][0] != socket.AF_UNIX:
            self._addresses = []  # the name may lead elsewhere by now
        raise last or OSError("the name has no address")

    async def _open_socket(self, family: int, address: Any, outcome: StreamOutcome) -> Connection:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(sock, address)
            outcome.tcp_connected_at_ns = monotonic_ns()
            connection = Connection(self)
            await self._link(sock, connection)
            if self._tls is None:
                outcome.tcp_connected_at_ns = monotonic_ns()  # what came since is ours, and no TLS
        except BaseException:
            sock.close()
            raise
        self.n_opened += 1
        self._open.add(connection)
        return connection

    async def _link(self, sock: socket.socket, connection: Connection) -> None:
        if self._stamps:
            self._sockets = self._sockets or StampedSockets()
            connection.link = self._sockets.add(sock, connection)
            return
        loop = asyncio.get_running_loop()
        create = loop.create_unix_connection if sock.family == socket.AF_UNIX else loop.create_connection
        _, connection.link = await create(
            lambda: LoopLink(connection, self._buffer),
            sock=sock,
            ssl=self._tls,
            server_hostname=self.host if self._tls else None,
        )
