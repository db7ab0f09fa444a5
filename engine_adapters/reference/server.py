"""The engine behind HTTP: an OpenAI-compatible ASGI app that logs its own truth."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from engine_adapters.reference import api
from engine_adapters.reference.config import ModelConfig
from engine_adapters.reference.engine import EngineCore, EngineDead, EngineThread, QueueFull, TokenStream
from engine_adapters.reference.metrics import exposition
from engine_adapters.reference.request import Request
from engine_adapters.reference.truth import TruthLog, TruthRecord

VERSION = "0.1.0"

EVENT_STREAM: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")],
}


class Server:
    """What the handlers share. `thread` exists while the app runs."""

    def __init__(self, core: EngineCore, model: ModelConfig, slowdown: float = 1.0) -> None:
        self.core = core
        self.model = model
        self.slowdown = slowdown
        self.truth = TruthLog()
        self.started_s = int(time.time())
        self.thread: EngineThread
        self._ids = itertools.count()

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Keep the engine thread running as long as the app."""
        self.thread = EngineThread(self.core, asyncio.get_running_loop(), self.slowdown)
        self.thread.start()
        try:
            yield
        finally:
            self.thread.stop()

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/v1/completions", GenerateEndpoint(self, "completions"), methods=["POST"]),
            Route("/v1/chat/completions", GenerateEndpoint(self, "chat"), methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/health", self.health),
            Route("/version", self.version),
            Route("/metrics", self.metrics),
            Route("/truth", self.truth_since),
            Route("/tokenize", self.tokenize, methods=["POST"]),
        ]
        return Starlette(routes=routes, lifespan=self.lifespan)

    def next_id(self) -> str:
        """An id for the engine; clients' ids may repeat."""
        return str(next(self._ids))

    async def models(self, request: HttpRequest) -> Response:
        """GET /v1/models."""
        model = {"id": self.model.name, "object": "model", "created": self.started_s, "owned_by": "openloop"}
        model["max_model_len"] = self.core.config.max_model_len
        return JSONResponse({"object": "list", "data": [model]})

    async def health(self, request: HttpRequest) -> Response:
        """GET /health: 200, or 503 with the exception that stopped the engine."""
        if self.thread.error is not None:
            return JSONResponse({"error": self.thread.error}, 503)
        return Response()

    async def version(self, request: HttpRequest) -> Response:
        """GET /version."""
        return JSONResponse({"version": VERSION, "engine": "openloop-reference", "slowdown": self.slowdown})

    async def metrics(self, request: HttpRequest) -> Response:
        """GET /metrics."""
        return PlainTextResponse(exposition(self.core, self.model.name), media_type="text/plain; version=0.0.4")

    async def truth_since(self, request: HttpRequest) -> Response:
        """GET /truth?since=N."""
        since = request.query_params.get("since", "0")
        if not since.isdecimal():
            return _refusal(api.ApiError(400, "since must be a number", param="since"))
        return JSONResponse(self.truth.since(int(since)))

    async def tokenize(self, request: HttpRequest) -> Response:
        """POST /tokenize {"prompt": ...} or {"messages": [...]}."""
        try:
            body = api.parse_object(await request.body())
            api.check_model(body, self.model.name)
            parser = api.PROMPT_PARSERS["chat" if "messages" in body else "completions"]
            tokens = parser(body, self.model.vocab_size)
        except api.ApiError as error:
            return _refusal(error)
        return JSONResponse({"count": len(tokens), "max_model_len": self.core.config.max_model_len, "tokens": tokens})


class GenerateEndpoint:
    """POST /v1/completions and /v1/chat/completions, as a plain ASGI app: one write for each token."""

    def __init__(self, server: Server, kind: api.Api) -> None:
        self.server = server
        self.kind: api.Api = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, and give up its computation when the client goes away."""
        arrived_at_ns = time.monotonic_ns()
        server = self.server
        try:
            params = await self._parse(receive)
            request_id = server.next_id()
            request = Request(
                request_id, params.prompt_token_ids, params.max_tokens, params.ignore_eos, params.min_tokens
            )
            stream = server.thread.submit(request)
        except (api.ApiError, QueueFull, EngineDead) as error:
            await _refusal(error)(scope, receive, send)
            return
        truth = server.truth.open(_header(scope, b"x-request-id"), arrived_at_ns)
        watcher = asyncio.create_task(_watch_disconnect(receive, stream))
        try:
            respond = self._stream if params.stream else self._answer
            await respond(params, request_id, stream, truth, send)
        finally:
            watcher.cancel()
            server.thread.abort(request_id)
            truth.done = True

    async def _parse(self, receive: Receive) -> api.GenerationParams:
        body = await _read_body(receive)
        return api.parse_generation(self.kind, body, self.server.model, self.server.core.config.max_model_len)

    async def _stream(
        self, params: api.GenerationParams, request_id: str, stream: TokenStream, truth: TruthRecord, send: Send
    ) -> None:
        await send(EVENT_STREAM)
        events = api.EventEncoder(self.kind, self._answer_id(request_id), int(time.time()), self.server.model.name)
        if self.kind == "chat":
            await send(_body(events.role))
        n_output, finish_reason = 0, None
        while finish_reason is None:
            token_ids, finish_reason = await stream.next()
            if finish_reason in ("error", "abort"):
                break
            token_id = token_ids[0] if token_ids else None
            event = events.token(token_id, finish_reason)
            if token_id is not None:
                n_output += 1
                truth.token_at_ns.append(time.monotonic_ns())
            await send(_body(event))
        tail = api.DONE
        if finish_reason == "error":
            tail = api.error_event(self._error_text()) + tail
        elif params.include_usage:
            tail = events.usage(len(params.prompt_token_ids), n_output) + tail
        await send(_body(tail, more=False))

    async def _answer(
        self, params: api.GenerationParams, request_id: str, stream: TokenStream, truth: TruthRecord, send: Send
    ) -> None:
        token_ids: list[int] = []
        finish_reason = None
        while finish_reason is None:
            more, finish_reason = await stream.next()
            token_ids += more
        if finish_reason == "error":
            await _send_json(api.ApiError(500, self._error_text(), "InternalServerError").body, 500, send)
            return
        model, n_prompt = self.server.model.name, len(params.prompt_token_ids)
        answer_id = self._answer_id(request_id)
        body = api.answer(self.kind, answer_id, int(time.time()), model, n_prompt, token_ids, finish_reason)
        truth.token_at_ns.extend([time.monotonic_ns()] * len(token_ids))
        await _send_json(body, 200, send)

    def _answer_id(self, request_id: str) -> str:
        return ("chatcmpl-" if self.kind == "chat" else "cmpl-") + request_id

    def _error_text(self) -> str:
        return f"the engine failed: {self.server.thread.error}"


async def _read_body(receive: Receive) -> bytes:
    chunks = []
    while True:
        message = await receive()
        chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(chunks)


async def _watch_disconnect(receive: Receive, stream: TokenStream) -> None:
    """End the stream when the client goes away; the handler then aborts the request."""
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.push([], "abort")


def _body(data: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def _send_json(body: bytes, status: int, send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send(_body(body, more=False))


def _refusal(error: Exception) -> Response:
    """The response to a request that was not taken on."""
    headers = {}
    if isinstance(error, QueueFull):
        headers = {"retry-after": str(error.retry_after_s)}
        error = api.ApiError(429, "the waiting queue is full, try again later", "TooManyRequestsError")
    elif not isinstance(error, api.ApiError):
        error = api.ApiError(503, f"the engine failed: {error}", "ServiceUnavailableError")
    return Response(error.body, error.status, headers, "application/json")


def _header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None
