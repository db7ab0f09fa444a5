"""A scripted OpenAI server over real sockets, for what a well-behaved engine never does; runs in a thread."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
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
        self.rejects: Callable[[int], tuple[int, dict[str, str]] | None] = lambda n: None  # n-th request, from 0
        self.repeats_headers = False  # in every text of its own
        self.first_token_s = 0.0
        self.holds_back = False  # as a proxy that buffers: the whole answer leaves at its end
        self.in_flight = 0
        self.peak_in_flight = 0
        self.seen: list[dict[str, Any]] = []


def handler_for(script: Script) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        held = b""

        def log_message(self, *_: object) -> None:
            pass

        def reply(self, status: int, data: Any, headers: dict[str, str] | None = None) -> None:
            body = json.dumps(data).encode()
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if script.wants_key and self.headers["authorization"] != f"Bearer {script.wants_key}":
                self.reply(401, {"error": {"message": "no key"}})
            elif self.path == "/v1/models":
                self.reply(script.models_status, script.models)
            elif self.path == "/version" and script.repeats_headers:
                self.reply(200, {"version": self.told()})
            else:
                self.reply(404, {"detail": "Not Found"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            script.seen.append(body)
            if script.fails_after is not None and len(script.seen) > script.fails_after:
                self.reply(500, {"error": {"message": f"out of luck{self.told()}"}})
                return
            if (rejected := script.rejects(len(script.seen) - 1)) is not None:
                self.reply(rejected[0], {"error": {"message": f"slow down{self.told()}"}}, rejected[1])
                return
            if script.refuses and script.refuses[0] in json.dumps(body):
                self.reply(400, {"error": {"message": script.refuses[1]}})
                return
            script.in_flight += 1
            script.peak_in_flight = max(script.peak_in_flight, script.in_flight)
            self.stream(body, len(script.seen) - 1 in script.stops_early)
            script.in_flight -= 1

        def told(self) -> str:
            told = [self.headers[name] for name in ("authorization", "x-token", "cookie")]
            return f" {told} {dict(self.headers)}" if script.repeats_headers else ""

        def stream(self, body: dict[str, Any], stops: bool) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            prompt = body["messages"][0]["content"]
            n = 1 if stops else body.get("max_tokens") or body["max_completion_tokens"]
            time.sleep(script.first_token_s + script.holds_back * n * script.token_gap_s)
            for i in range(n):
                time.sleep(0 if script.holds_back else script.token_gap_s)
                finish = ("stop" if stops else "length") if i == n - 1 else None
                self.event({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": finish}]})
            self.event({"choices": [], "usage": {"prompt_tokens": len(prompt) + 3, "completion_tokens": n}})
            self.wfile.write(self.held + b"data: [DONE]\n\n")

        def event(self, data: Any) -> None:
            payload = b"data: " + json.dumps(data).encode() + b"\n\n"
            if script.holds_back:
                self.held += payload
            else:
                self.wfile.write(payload)

    return Handler


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 500

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that distrust the certificate, or go away, are part of the tests."""


@contextmanager
def fake_server(tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, Script]]:
    """The server's URL and its script."""
    script = Script()
    server = Listener(("127.0.0.1", 0), handler_for(script))
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}", script
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
