"""A tiny forward proxy on 127.0.0.1: every host that it is asked for is one and the same server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from support.raw_server import serving


@dataclass
class Proxy:
    """Passes requests on to `port`; `heads` are those it was sent, the first line of each in `asked`."""

    port: int
    heads: list[bytes] = field(default_factory=list)

    @property
    def asked(self) -> list[bytes]:
        return [head.split(b"\r\n")[0] for head in self.heads]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there: asyncio.StreamWriter | None = None
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            back, there = await asyncio.open_connection("127.0.0.1", self.port)
            if head.startswith(b"CONNECT"):
                writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            else:
                there.write(head)
            await asyncio.gather(pipe(reader, there), pipe(back, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            if there is not None:
                there.close()


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def proxying(proxy: Proxy) -> AsyncIterator[str]:
    """The proxy's host and port."""
    async with serving(proxy.handle) as port:
        yield f"127.0.0.1:{port}"
