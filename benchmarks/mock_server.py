"""`mockserver.c` for where there is no C compiler: the same answers, far slower. Usage: mock_server.py ITL_MS"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any


def chunk(payload: str) -> bytes:
    data = f"data: {payload}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(**more: Any) -> bytes:
    return chunk(json.dumps({"id": "chatcmpl-00000000", "object": "chat.completion.chunk", "model": "mock", **more}))


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = event(choices=[{"index": 0, "delta": {"content": " the"}, "logprobs": None, "finish_reason": None}])
END = event(choices=[{"index": 0, "delta": {}, "finish_reason": "length"}])
TAIL = END + event(choices=[], usage={"prompt_tokens": 8}) + chunk("[DONE]") + b"0\r\n\r\n"


async def answer(writer: asyncio.StreamWriter, n_tokens: int, itl_s: float) -> None:
    writer.write(HEAD)
    if itl_s == 0:
        writer.write(TOKEN * n_tokens)
    for _ in range(n_tokens if itl_s else 0):
        await asyncio.sleep(itl_s)
        writer.write(TOKEN)
    writer.write(TAIL)
    await writer.drain()


async def serve(itl_s: float) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
                await answer(writer, json.loads(await reader.readexactly(length))["max_tokens"], itl_s)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]) / 1000))
