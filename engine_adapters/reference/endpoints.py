"""The generating endpoints as plain ASGI apps: from a request's bytes through the engine to one write a step."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Protocol

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from engine_adapters.reference import api
from engine_adapters.reference.admission import Refused
from engine_adapters.reference.answers import Choice, Heading, OpenAIWriter, Piece, Writer
from engine_adapters.reference.api_fields import ApiError, error_body
from engine_adapters.reference.engine import EngineDead, EngineThread
from engine_adapters.reference.faults import Fault, Faults
from engine_adapters.reference.generation import Generation
from engine_adapters.reference.responses_answers import ResponsesWriter
from engine_adapters.reference.server_stats import ServerStats
from engine_adapters.reference.truth import TruthLog, TruthRecord

EVENT_STREAM: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")],
}
RESTART_S = 1  # a server that shuts down is back no earlier than after its grace time
SHUT_DOWN = "the server shut down before the answer was complete"
REFUSALS = {
    "queue_full": (429, "TooManyRequestsError"),
    "rate_limited": (429, "TooManyRequestsError"),
    "shutting_down": (503, "ServiceUnavailableError"),
}
Met = dict[str, Fault]  # the faults that a request meets, by name


class Shared(Protocol):
    """What the endpoints need of the server."""

    served: api.Served
    thread: EngineThread
    truth: TruthLog
    stats: ServerStats
    faults: Faults
    draining: bool
    grace_s: int

    def next_number(self) -> str:
        """A number for the engine; clients' ids may repeat."""
        ...


class GenerateEndpoint:
    """POST /v1/completions, /v1/chat/completions or /v1/responses."""

    def __init__(self, server: Shared, kind: api.Api) -> None:
        self.server = server
        self.kind: api.Api = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, and give up its computation when the client goes away."""
        arrived_at_ns = time.monotonic_ns()
        server = self.server
        met = server.faults.next_request() if server.faults.faults else {}
        try:
            params = await self._parse(receive)
            number = server.next_number()
            generation = self._submit(number, params, met)
        except (ApiError, Refused, EngineDead) as error:
            await refusal(error, server.stats)(scope, receive, send)
            return
        server.stats.choices.observe(params.n)
        truth = server.truth.open(_header(scope, b"x-request-id"), arrived_at_ns)
        watcher = asyncio.create_task(_watch_disconnect(receive, generation))
        answer = Answering(generation, self._writer(number, params), truth, send, met)
        try:
            await (answer.stream() if params.stream else answer.whole())
        finally:
            watcher.cancel()
            generation.abort()
            truth.done = True

    async def _parse(self, receive: Receive) -> api.GenerationParams:
        return api.parse_generation(self.kind, await read_body(receive), self.server.served)

    def _submit(self, number: str, params: api.GenerationParams, met: Met) -> Generation:
        if self.server.draining:
            raise Refused("shutting_down", self.server.grace_s + RESTART_S)
        if storm := met.get("429"):
            raise Refused("queue_full", storm.retry_after_s)
        return Generation(self.server.thread, number, params, self.server.served.tokenizer)

    def _writer(self, number: str, params: api.GenerationParams) -> Writer:
        heading = Heading(number, int(time.time()), self.server.served.name)
        if self.kind == "responses":
            return ResponsesWriter(heading, params)
        return OpenAIWriter(self.kind == "chat", heading, params, self._text_of)

    def _text_of(self, token_id: int) -> str:
        return self.server.served.tokenizer.decode([token_id])


class Answering:
    """One answer on its way to the client, with the faults that it meets."""

    def __init__(self, generation: Generation, writer: Writer, truth: TruthRecord, send: Send, met: Met) -> None:
        self._generation, self._writer = generation, writer
        self._truth, self._send, self._met = truth, send, met
        self._n_unsent: dict[int, int] = {}  # tokens of each choice whose text no event has carried yet
        self._n_sent: dict[int, int] = {}

    async def stream(self) -> None:
        """Events as the engine brings tokens. A `cut` ends it without the last chunk, which closes the connection."""
        await self._wait("slow-first-byte")
        await self._send(EVENT_STREAM)
        if opening := self._writer.opening(self._generation.usage):
            await self._send(body(opening))
        async for piece in self._generation.pieces():
            if piece.finish_reason in ("error", "abort"):
                await self._send(body(self._writer.error(self._why(piece)), more=False))
                return
            if await self._faulty(piece.index):
                return
            await self._write(piece)
        await self._send(body(self._writer.closing(self._generation.usage), more=False))

    async def whole(self) -> None:
        """The answer in one body."""
        choices = [Choice() for _ in range(len(self._generation.params.prompts) * self._generation.params.n)]
        async for piece in self._generation.pieces():
            if piece.finish_reason in ("error", "abort"):
                await send_json(failure(self._why(piece)), 500, self._send)
                return
            choices[piece.index].add(piece)
        await self._wait("slow-first-byte")
        await self._wait("stall")
        usage = self._generation.usage
        answer = self._writer.whole(choices, usage)
        if "error-in-stream" in self._met:
            await send_json(failure("a fault on purpose"), 500, self._send)
        elif "cut" in self._met:
            await self._send(json_start(200, len(answer)))
            await self._send(body(answer[: len(answer) // 2]))
        else:
            self._truth.token_at_ns.extend([time.monotonic_ns()] * usage.n_output)
            await send_json(answer, 200, self._send)

    async def _write(self, piece: Piece) -> None:
        """One event, if the step brought anything that can be told; the truth is stamped just before it leaves."""
        n_new = self._n_unsent.get(piece.index, 0) + len(piece.token_ids)
        plain = self._generation.params.is_plain and piece.finish_reason is None
        if plain and not piece.text:
            self._n_unsent[piece.index] = n_new
            return
        if plain:
            event = self._writer.plain(piece.index, piece.text)
        else:
            event = self._writer.piece(piece, self._generation.usage)
        self._n_unsent[piece.index] = 0
        self._n_sent[piece.index] = self._n_sent.get(piece.index, 0) + n_new
        now_ns = time.monotonic_ns()
        for _ in range(n_new):
            self._truth.token_at_ns.append(now_ns)
        if event:
            await self._send(body(event))

    async def _faulty(self, index: int) -> bool:
        """Before a choice's next event: stall, and whether the answer ends here."""
        if not self._met:
            return False
        n_sent = self._n_sent.get(index, 0)
        if self._is_due("stall", n_sent):
            await self._wait("stall")
            del self._met["stall"]
        if self._is_due("error-in-stream", n_sent):
            await self._send(body(self._writer.error("a fault on purpose"), more=False))
            return True
        return self._is_due("cut", n_sent)

    def _is_due(self, name: str, n_sent: int) -> bool:
        fault = self._met.get(name)
        return fault is not None and n_sent >= fault.after

    async def _wait(self, name: str) -> None:
        """Do nothing for as long as a fault says, or until the client is gone."""
        if fault := self._met.get(name):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._generation.is_cut_off.wait(), fault.seconds)

    def _why(self, piece: Piece) -> str:
        return SHUT_DOWN if piece.finish_reason == "abort" else f"the engine failed: {self._generation.error}"


async def read_body(receive: Receive) -> bytes:
    """The body of a request."""
    chunks = []
    while True:
        message = await receive()
        chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(chunks)


async def _watch_disconnect(receive: Receive, generation: Generation) -> None:
    """End the answer when the client goes away; the handler then aborts its requests."""
    while (await receive())["type"] != "http.disconnect":
        pass
    generation.cut_off()


def body(data: bytes, more: bool = True) -> Message:
    """A piece of a response."""
    return {"type": "http.response.body", "body": data, "more_body": more}


def json_start(status: int, n_bytes: int) -> Message:
    """The head of a JSON response."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(n_bytes).encode())]
    return {"type": "http.response.start", "status": status, "headers": headers}


async def send_json(data: bytes, status: int, send: Send) -> None:
    """A whole JSON response."""
    await send(json_start(status, len(data)))
    await send(body(data, more=False))


def failure(message: str) -> bytes:
    """The body of a 500."""
    return error_body(message, "InternalServerError", None, 500)


def refusal(error: Exception, stats: ServerStats) -> Response:
    """The response to a request that was not taken on, counted by its reason."""
    headers = {}
    if isinstance(error, Refused):
        stats.rejections[error.reason] += 1
        headers = {"retry-after": str(error.retry_after_s)}
        status, kind = REFUSALS[error.reason]
        error = ApiError(status, f"{error}, try again later", kind)
    elif isinstance(error, EngineDead):
        stats.rejections["engine_failed"] += 1
        error = ApiError(503, f"the engine failed: {error}", "ServiceUnavailableError")
    assert isinstance(error, ApiError)
    return Response(error.body, error.status, headers, "application/json")


def _header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None
