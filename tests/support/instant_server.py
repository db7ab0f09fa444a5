"""A server of its own process that answers one token at once and logs when each request arrived.

`instant_server()` gives its URL and a function that returns the arrival instants (monotonic ns) so far.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic_ns
from urllib.request import urlopen

EVENTS = (
    b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"length"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":1}}\n\n'
    b"data: [DONE]\n\n"
)
HEAD = "HTTP/1.1 200 OK\r\ncontent-type: {}\r\ncontent-length: {}\r\n\r\n"
ANSWER = HEAD.format("text/event-stream", len(EVENTS)).encode() + EVENTS


async def serve() -> None:
    arrived: list[int] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                arrived.append(monotonic_ns())
                if head.startswith(b"GET"):
                    arrived.pop()
                    body = json.dumps(arrived).encode()
                    writer.write(HEAD.format("application/json", len(body)).encode() + body)
                    continue
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.split(b":")[1]))
                writer.write(ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)  # ends with the parent
    sys.exit()


@contextmanager
def instant_server() -> Iterator[tuple[str, Callable[[], list[int]]]]:
    child = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    url = f"http://127.0.0.1:{child.stdout.readline().strip()}"

    def arrivals() -> list[int]:
        with urlopen(f"{url}/log") as reply:
            found: list[int] = json.load(reply)
            return found

    try:
        yield url, arrivals
    finally:
        child.stdin.close()
        child.wait()
        child.stdout.close()


if __name__ == "__main__":
    asyncio.run(serve())
