"""A scripted OpenAI server over real sockets, for what a well-behaved engine never does; runs in a thread."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Script:
    """How the server behaves; tests change it while it runs. `seen` collects the bodies it was sent."""

    def __init__(self) -> None:
        self.models: Any = {"object": "list", "data": [{"id": "fake", "owned_by": "fake"}]}
        self.models_status = 200
        self.fails_after: int | None = None  # requests answered before every later one gets a 500
        self.wants_key: str | None = None
        self.token_gap_s = 0.001
        self.refuses: tuple[str, str] | None = None  # a word in a body that gets a 400, and the sentence of the 400
        self.stops_early: set[int] = set()  # requests, counted from 0, that end by themselves after one token
        self.seen: list[dict[str, Any]] = []


def handler_for(script: Script) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def reply(self, status: int, data: Any) -> None:
            body = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if script.wants_key and self.headers["authorization"] != f"Bearer {script.wants_key}":
                self.reply(401, {"error": {"message": "no key"}})
            elif self.path == "/v1/models":
                self.reply(script.models_status, script.models)
            else:
                self.reply(404, {"detail": "Not Found"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            script.seen.append(body)
            if script.fails_after is not None and len(script.seen) > script.fails_after:
                self.reply(500, {"error": {"message": "out of luck"}})
                return
            if script.refuses and script.refuses[0] in json.dumps(body):
                self.reply(400, {"error": {"message": script.refuses[1]}})
                return
            self.stream(body, len(script.seen) - 1 in script.stops_early)

        def stream(self, body: dict[str, Any], stops: bool) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            prompt = body["messages"][0]["content"]
            n = 1 if stops else body.get("max_tokens") or body["max_completion_tokens"]
            for i in range(n):
                time.sleep(script.token_gap_s)
                finish = ("stop" if stops else "length") if i == n - 1 else None
                self.event({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": finish}]})
            self.event({"choices": [], "usage": {"prompt_tokens": len(prompt) + 3, "completion_tokens": n}})
            self.wfile.write(b"data: [DONE]\n\n")

        def event(self, data: Any) -> None:
            self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")

    return Handler


@contextmanager
def fake_server() -> Iterator[tuple[str, Script]]:
    """The server's URL and its script."""
    script = Script()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_for(script))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", script
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
