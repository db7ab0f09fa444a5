"""uvicorn around the server: a signal drains it while the port still answers, a second one ends the wait."""

from __future__ import annotations

import asyncio
import socket
import sys
from types import FrameType

import uvicorn

from engine_adapters.reference.server import Server

KEEP_ALIVE_S = 75
CLOSING_S = 2  # what handlers get to write their last words, once all requests have ended


class DrainingServer(uvicorn.Server):
    """uvicorn's own handling of signals closes the port first, so that nobody could be told 503."""

    def __init__(self, server: Server) -> None:
        super().__init__(
            uvicorn.Config(
                server.app(),
                loop="auto",  # uvloop where it is installed
                http="httptools",
                ws="none",
                access_log=False,
                log_level="warning",
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=CLOSING_S,
            )
        )
        self._server = server
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's; from now on a signal drains."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains; the second one aborts what is still in flight."""
        if self._loop is None:
            self.should_exit = True
        elif self._server.draining:
            self._server.hurried = True
        else:
            self._server.draining = True
            self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self._drain()))

    async def _drain(self) -> None:
        print(await self._server.drain(), file=sys.stderr, flush=True)
        self.should_exit = True
