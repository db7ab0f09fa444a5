"""`mockserver.c` in Python, for where there is no C compiler: the same options, answers and log, but far slower.

It imports nothing of ours and can be started by its path.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import signal
import sys
import threading
from array import array
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

DEFAULT_TOKENS, MAX_TOKENS, MAX_PER_EVENT = 16, 1_000_000, 1024
BODY_LIMIT_BYTES = 64 << 20
WORD, CREATED = " the", 1700000000
KINDS = {True: ("chatcmpl", "chat.completion"), False: ("cmpl", "text_completion")}
USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")
COLUMNS = "request_id,answer_id,accepted_at_ns,received_at_ns,tokens_asked,tokens,first_event,n_events"
MODELS = {"object": "list", "data": [{"id": "mock", "object": "model", "created": CREATED, "owned_by": "openloop"}]}


@dataclass
class Row:
    """The truth about one request; `at_ns` is the instant before the send of each event."""

    request_id: str
    answer_id: str
    accepted_ns: int
    received_ns: int
    asked: int
    sent: int = 0
    running: bool = True
    at_ns: array[int] = field(default_factory=lambda: array("q"))


class Mock:
    """What all connections share: the options, the log and the numbering of requests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rows: list[Row] = []
        self.n_requests = 0
        self.n_open = 0
        self._random = random.Random(1)

    def gap_ns(self) -> float:
        """Until the next event."""
        spread = -math.log(1 - self._random.random()) if self.options.itl_dist == "exp" else 1.0
        return float(self.options.itl_ms * 1e6 * spread)

    def first_gap_ns(self) -> float:
        """From the request to its first event."""
        phase_ms = self._random.random() * self.options.itl_ms if self.options.phase else 0.0
        return float((self.options.ttft_ms + phase_ms) * 1e6)

    def clear(self) -> None:
        """Forget the requests that have ended."""
        self.rows = [row for row in self.rows if row.running]

    def flush(self) -> None:
        """Write the log in full or not at all, the instants before the rows that point into them."""
        name, first = self.options.log, 0
        with open(f"{name}.part", "w", encoding="utf-8") as csv, open(f"{name}.i64.part", "wb") as instants:
            csv.write(COLUMNS + "\n")
            for r in self.rows:
                ids = f"{r.request_id},{r.answer_id},{r.accepted_ns},{r.received_ns}"
                csv.write(f"{ids},{r.asked},{r.sent},{first},{len(r.at_ns)}\n")
                r.at_ns.tofile(instants)
                first += len(r.at_ns)
        os.replace(f"{name}.i64.part", f"{name}.i64")
        os.replace(f"{name}.part", name)


class Connection(asyncio.Protocol):
    """One client: takes a request up, answers it on time, then the next one."""

    def __init__(self, mock: Mock) -> None:
        self.mock = mock
        self.buffer = bytearray()
        self.answering: Answer | None = None
        self.close_after = self.said_continue = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Beyond the limit a connection is closed at once."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.accepted_ns = monotonic_ns()
        self.mock.n_open += 1
        if self.mock.n_open > self.mock.options.max_conns:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Whatever is being answered ends here."""
        self.mock.n_open -= 1
        if self.answering is not None:
            self.answering.end()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        self.buffer += data
        self.take_requests()

    def take_requests(self) -> None:
        """Those that are complete, one after another."""
        while self.answering is None and not self.transport.is_closing() and self._take_request():
            pass

    def _take_request(self) -> bool:
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        line, headers = parse_head(bytes(self.buffer[:end]))
        length = headers.get("content-length", "")
        n_body = int(length) if length.isdigit() else 0
        if "transfer-encoding" in headers or n_body > BODY_LIMIT_BYTES - end:
            self.close_after = True
            status = "413 Content Too Large" if length else "411 Length Required"
            self.refuse(status, "a body needs a content-length of at most 64 MiB")
            return False
        whole = end + 4 + n_body
        if len(self.buffer) < whole:
            if not self.said_continue and headers.get("expect", "").lower() == "100-continue":
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.said_continue = True
            return False
        body = bytes(self.buffer[end + 4 : whole])
        del self.buffer[:whole]
        self.said_continue = False
        self.close_after = headers.get("connection", "").lower() == "close"
        self._answer(line, headers, body)
        return True

    def _answer(self, line: str, headers: dict[str, str], body: bytes) -> None:
        method, _, target = line.partition(" ")
        path = target.partition(" ")[0].partition("?")[0]
        if method == "POST" and path in ("/v1/chat/completions", "/v1/completions"):
            self.answering = Answer(self, parse_body(body), headers.get("x-request-id", ""), "chat" in path)
            self.answering.start()
        elif method == "GET" and path == "/v1/models":
            self.reply("200 OK", MODELS)
        elif (method == "GET" and path in ("/health", "/ping")) or path == "/reset":
            if path == "/reset":
                self.mock.clear()
            self.reply("200 OK", {})
        elif path == "/truth/flush":
            self._flush()
        else:
            self.refuse("404 Not Found", "no such route")

    def _flush(self) -> None:
        if not self.mock.options.log:
            self.refuse("404 Not Found", "no log: start with --log FILE")
            return
        try:
            self.mock.flush()
        except OSError as error:
            self.refuse("500 Internal Server Error", error.strerror or str(error))
        else:
            self.reply("200 OK", {})

    def reply(self, status: str, data: Any) -> None:
        """A whole answer."""
        body = compact(data)
        close = "connection: close\r\n" if self.close_after else ""
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{close}content-length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.end_answer()

    def refuse(self, status: str, why: str) -> None:
        """An error object, as OpenAI words it."""
        self.reply(status, {"error": {"message": why, "type": "mock", "code": int(status[:3])}})

    def end_answer(self) -> None:
        """The connection is free for the next request, or done."""
        self.answering = None
        if self.close_after:
            self.transport.close()


class Answer:
    """One request while it is answered."""

    def __init__(self, connection: Connection, body: dict[str, Any], request_id: str, chat: bool) -> None:
        self.connection, self.mock, self.chat = connection, connection.mock, chat
        received_ns = monotonic_ns()
        asked = body.get("max_completion_tokens") or body.get("max_tokens")
        n_tokens = asked if isinstance(asked, int) and asked > 0 else DEFAULT_TOKENS
        self.n_tokens = self.left = min(n_tokens, MAX_TOKENS)
        self.stream = body.get("stream") is True
        options = body.get("stream_options")
        self.wants_usage = isinstance(options, dict) and options.get("include_usage") is True
        n_prompt = count_words(body)
        self.usage = dict(zip(USAGE, (n_prompt, self.n_tokens, n_prompt + self.n_tokens), strict=True))
        prefix, self.kind = KINDS[chat]
        self.answer_id = f"{prefix}-{self.mock.n_requests:08x}"
        self.mock.n_requests += 1
        self.row = Row(plain(request_id), self.answer_id, connection.accepted_ns, received_ns, self.n_tokens)
        if self.mock.options.log:
            self.mock.rows.append(self.row)
        self.due_ns = received_ns + self.mock.first_gap_ns()
        self.timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Send the head of a stream, and the first event when it is due."""
        if self.stream:
            close = "connection: close\r\n" if self.connection.close_after else ""
            self.connection.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
                + f"{close}transfer-encoding: chunked\r\n\r\n".encode()
            )
        elif self.mock.options.itl_ms:
            n_gaps = math.ceil(self.n_tokens / self.mock.options.tokens_per_event) - 1
            self.due_ns += sum(self.mock.gap_ns() for _ in range(n_gaps))
        if self.due_ns <= self.row.received_ns:
            self.send_next()
        else:
            self._wait()

    def end(self) -> None:
        """Nothing more will be sent."""
        self.row.running = False
        if self.timer is not None:
            self.timer.cancel()

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self.timer = loop.call_later((self.due_ns - monotonic_ns()) / 1e9, self.send_next)

    def send_next(self) -> None:
        """One event, or with ITL 0 all of them; and what follows the last."""
        if self.stream:
            self._send_events()
        else:
            self._log([self.n_tokens])
            self.end()
            self.connection.reply("200 OK", self._whole())
        if self.connection.answering is None:
            self.connection.take_requests()

    def _send_events(self) -> None:
        options, out = self.mock.options, bytearray()
        sizes = []
        if self.chat and self.left == self.n_tokens:
            out += event(self._chunk({"role": "assistant", "content": ""}))
        while self.left:
            n = min(self.left, options.tokens_per_event)
            out += event(self._chunk({"content": WORD * n} if self.chat else WORD * n))
            sizes.append(n)
            self.left -= n
            if options.itl_ms:
                break
        if not self.left:
            out += self._tail()
        self._log(sizes)
        self.connection.transport.write(bytes(out))
        if self.left:
            self.due_ns += self.mock.gap_ns()
            self._wait()
        else:
            self.end()
            self.connection.end_answer()

    def _log(self, sizes: list[int]) -> None:
        """Events of so many tokens each are about to be sent."""
        self.row.at_ns.extend([monotonic_ns()] * len(sizes))
        self.row.sent += sum(sizes)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.answer_id, "object": kind, "created": CREATED, "model": "mock"}

    def _chunk(self, piece: Any, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, ("delta" if self.chat else "text"): piece, "logprobs": None, "finish_reason": finish}
        return {**self._head(self.kind + ".chunk" * self.chat), "choices": [choice]}

    def _tail(self) -> bytes:
        tail = event(self._chunk({} if self.chat else "", "length"))
        if self.wants_usage:
            tail += event({**self._head(self.kind + ".chunk" * self.chat), "choices": [], "usage": self.usage})
        return tail + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"

    def _whole(self) -> dict[str, Any]:
        text = WORD * self.n_tokens
        said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": "length"}
        return {**self._head(self.kind), "choices": [choice], "usage": self.usage}


def parse_head(head: bytes) -> tuple[str, dict[str, str]]:
    """The request line, and the headers by lower-case name."""
    line, *rows = head.decode("latin-1").split("\r\n")
    return line, {name.lower(): value.strip() for name, _, value in (row.partition(":") for row in rows)}


def parse_body(body: bytes) -> dict[str, Any]:
    """The request's fields; none of what can't be read."""
    try:
        data = json.loads(body)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def count_words(node: Any, named: bool = False) -> int:
    """Words between spaces of all texts under content, prompt or text; a list of token ids counts each of them."""
    if isinstance(node, str):
        return sum(map(bool, node.split(" "))) if named else 0
    if isinstance(node, list):
        if named and node and isinstance(node[0], int):
            return len(node)
        return sum(count_words(each) for each in node)
    if isinstance(node, dict):
        return sum(count_words(each, key in ("content", "prompt", "text")) for key, each in node.items())
    return 0


def plain(text: str) -> str:
    """The text as it can stand in a CSV field."""
    return "".join("_" if c in ',"' or c < " " else c for c in text)


def compact(data: Any) -> bytes:
    """JSON without spaces."""
    return json.dumps(data, separators=(",", ":")).encode()


def chunk(data: bytes) -> bytes:
    """One chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(data: Any) -> bytes:
    """One SSE event in one chunk."""
    return chunk(b"data: " + compact(data) + b"\n\n")


def parse(argv: list[str]) -> argparse.Namespace:
    """The options of `mockserver.c`."""
    parser = argparse.ArgumentParser(prog="mock_server.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one, which is printed")
    parser.add_argument("--ttft-ms", type=float, default=0.0, help="from the request to its first event")
    parser.add_argument("--itl-ms", type=float, default=0.0, help="between events; 0 sends all of them at once")
    parser.add_argument("--itl-dist", choices=["fixed", "exp"], default="fixed")
    parser.add_argument("--phase", action="store_true", help="delay the first event by up to one ITL, at random")
    parser.add_argument("--tokens-per-event", type=int, default=1)
    parser.add_argument("--log", metavar="FILE", help="write the truth here")
    parser.add_argument("--max-conns", type=int, default=20000)
    parser.add_argument("--die-with-stdin", action="store_true", help="end when stdin is closed")
    options = parser.parse_args(argv)
    if options.ttft_ms < 0 or options.itl_ms < 0:
        parser.error("--ttft-ms and --itl-ms can't be negative")
    if not 1 <= options.tokens_per_event <= MAX_PER_EVENT:
        parser.error(f"--tokens-per-event must be from 1 to {MAX_PER_EVENT}")
    return options


async def serve(options: argparse.Namespace) -> None:
    """Listen, print the port, and end on SIGTERM, SIGINT or with stdin."""
    loop, ending, mock = asyncio.get_running_loop(), asyncio.Event(), Mock(options)
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, ending.set)
    if options.die_with_stdin:
        threading.Thread(target=wait_for_stdin, args=(loop, ending), daemon=True).start()
    server = await loop.create_server(lambda: Connection(mock), "127.0.0.1", options.port, backlog=16384)
    print(server.sockets[0].getsockname()[1], flush=True)
    await ending.wait()
    server.close()
    if options.log:
        mock.flush()


def wait_for_stdin(loop: asyncio.AbstractEventLoop, ending: asyncio.Event) -> None:
    """Read until the other end is gone, then end."""
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(ending.set)


def main() -> None:
    """Serve; a port that can't be had is one line and exit code 2."""
    options = parse(sys.argv[1:])
    try:
        asyncio.run(serve(options))
    except OSError as error:
        print(f"mock_server.py: can't listen on port {options.port}: {error.strerror}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
