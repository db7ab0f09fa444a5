"""A small HTTP/2 server on 127.0.0.1 that streams one answer to every request; needs the h2 package."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.raw_server import serving

h2_events = pytest.importorskip("h2.events", reason="HTTP/2 needs the h2 package")
from h2.config import H2Configuration  # noqa: E402  # only where the package is
from h2.connection import H2Connection  # noqa: E402


@dataclass
class H2Server:
    """Counts its connections and the streams that are open at once; the events of an answer leave `gap_s` apart."""

    events: Sequence[bytes]
    gap_s: float = 0.0
    n_connections: int = 0
    n_streams: int = 0
    peak_streams: int = 0
    answers: set[asyncio.Task[None]] = field(default_factory=set)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_connections += 1
        link = H2Connection(H2Configuration(client_side=False))
        link.initiate_connection()
        writer.write(link.data_to_send())
        try:
            while data := await reader.read(65536):
                for event in link.receive_data(data):
                    if isinstance(event, h2_events.StreamEnded):
                        self.begin(link, writer, event.stream_id)
                writer.write(link.data_to_send())
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            for answer in self.answers:
                answer.cancel()
            writer.close()

    def begin(self, link: Any, writer: asyncio.StreamWriter, stream_id: int) -> None:
        self.n_streams += 1
        self.peak_streams = max(self.peak_streams, self.n_streams)
        link.send_headers(stream_id, [(":status", "200"), ("content-type", "text/event-stream")])
        answer = asyncio.create_task(self.answer(link, writer, stream_id))
        self.answers.add(answer)
        answer.add_done_callback(self.answers.discard)

    async def answer(self, link: Any, writer: asyncio.StreamWriter, stream_id: int) -> None:
        for i, event in enumerate(self.events):
            await asyncio.sleep(self.gap_s)
            link.send_data(stream_id, event, end_stream=i == len(self.events) - 1)
            writer.write(link.data_to_send())
        self.n_streams -= 1


@asynccontextmanager
async def h2_serving(server: H2Server, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    async with serving(server.handle, tls) as port:
        yield port
