"""The engine behind HTTP: an OpenAI-compatible ASGI app that logs its own truth and shuts down in order."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine_adapters.reference import api
from engine_adapters.reference.api_fields import ApiError, check_model, flag, parse_object
from engine_adapters.reference.endpoints import GenerateEndpoint, refusal
from engine_adapters.reference.engine import EngineCore, EngineThread
from engine_adapters.reference.engine_stats import EngineStats
from engine_adapters.reference.faults import Faults
from engine_adapters.reference.metrics import Ceilings, Scrape, exposition
from engine_adapters.reference.prometheus import CONTENT_TYPE
from engine_adapters.reference.server_stats import CountRequests, ServerStats
from engine_adapters.reference.tokenizer import BYTES, Tokenizer
from engine_adapters.reference.truth import TruthLog

VERSION = "0.1.0"
LOOK_AGAIN_S = 0.02


class Server:
    """What the handlers share. `thread` exists while the app runs."""

    def __init__(
        self,
        core: EngineCore,
        name: str,
        vocab_size: int,
        slowdown: float = 1.0,
        *,
        tokenizer: Tokenizer = BYTES,
        faults: Faults | None = None,
        ceilings: Ceilings | None = None,
        grace_s: int = 3,
    ) -> None:
        self.core = core
        self.slowdown = slowdown
        self.served = api.Served(name, vocab_size, core.config.max_model_len, tokenizer)
        self.truth = TruthLog()
        self.stats = ServerStats()
        self.engine_stats = EngineStats(core)
        self.faults = faults or Faults()
        self.ceilings = ceilings
        self.grace_s = grace_s
        self.draining = False
        self.hurried = False  # the grace time is over, whatever the clock says
        self.started_s = int(time.time())
        self.thread: EngineThread
        self._numbers = itertools.count()

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
            Route("/v1/responses", GenerateEndpoint(self, "responses"), methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/reset_prefix_cache", self.reset_prefix_cache, methods=["POST"]),
            Route("/health", self.health),
            Route("/version", self.version),
            Route("/metrics", self.metrics),
            Route("/truth", self.truth_since),
        ]
        counted = Middleware(CountRequests, stats=self.stats, routes=frozenset(route.path for route in routes))
        refusals = {ApiError: self._refuse, HTTPException: _http_error}
        return Starlette(routes=routes, lifespan=self.lifespan, middleware=[counted], exception_handlers=refusals)

    async def drain(self) -> str:
        """Take on nothing more, let what runs end within `grace_s`, abort the rest; one line of what became of all."""
        self.draining = True
        started_s = time.monotonic()
        n_running = self.thread.n_unfinished
        while self.thread.n_unfinished and not self.hurried and time.monotonic() < started_s + self.grace_s:
            await asyncio.sleep(LOOK_AGAIN_S)
        n_aborted = self.thread.abort_all()
        await asyncio.sleep(LOOK_AGAIN_S)  # the handlers write the end, the engine's thread counts it
        ends = ", ".join(f"{n} {reason}" for reason, n in self.core.scheduler.stats.finished.items())
        turned_away = ", ".join(f"{n} {reason}" for reason, n in sorted(self.stats.rejections.items())) or "none"
        return (
            f"shut down in {time.monotonic() - started_s:.1f} s; in flight at the signal: {n_running}, aborted: "
            f"{n_aborted}; all requests by their end: {ends}; turned away: {turned_away}"
        )

    def next_number(self) -> str:
        """A number for the engine; clients' ids may repeat."""
        return str(next(self._numbers))

    async def models(self, request: HttpRequest) -> Response:
        """GET /v1/models."""
        name = self.served.name
        model = {"id": name, "object": "model", "created": self.started_s, "owned_by": "openloop", "root": name}
        model |= {"parent": None, "max_model_len": self.served.max_model_len, "permission": []}
        return JSONResponse({"object": "list", "data": [model]})

    async def health(self, request: HttpRequest) -> Response:
        """GET /health: 200, or 503 with the exception that stopped the engine, or because it is shutting down."""
        why = self.thread.error or ("the server is shutting down" if self.draining else None)
        return Response() if why is None else JSONResponse({"error": why}, 503)

    async def version(self, request: HttpRequest) -> Response:
        """GET /version."""
        return JSONResponse({"version": VERSION, "engine": "openloop-reference", "slowdown": self.slowdown})

    async def metrics(self, request: HttpRequest) -> Response:
        """GET /metrics."""
        scrape = Scrape(self.served.name, self.core, self.engine_stats, self.stats, self.ceilings)
        return Response(exposition(scrape), headers={"content-type": CONTENT_TYPE})

    async def truth_since(self, request: HttpRequest) -> Response:
        """GET /truth?since=N."""
        since = request.query_params.get("since", "0")
        if not since.isdecimal():
            raise ApiError(400, "since must be a number", param="since")
        return JSONResponse(self.truth.since(int(since)))

    async def tokenize(self, request: HttpRequest) -> Response:
        """POST /tokenize {"prompt": ...} or {"messages": [...]}."""
        body = parse_object(await request.body())
        check_model(body, self.served.name)
        parser = api.PROMPT_PARSERS["chat" if "messages" in body else "completions"]
        tokens = parser(body, self.served)[0]
        texts = [self.served.tokenizer.decode([token]) for token in tokens] if flag(body, "return_token_strs") else None
        counted = {"count": len(tokens), "max_model_len": self.served.max_model_len, "tokens": tokens}
        return JSONResponse(counted | {"token_strs": texts})

    async def detokenize(self, request: HttpRequest) -> Response:
        """POST /detokenize {"tokens": [...]}."""
        body = parse_object(await request.body())
        check_model(body, self.served.name)
        tokens = api.completion_prompts({"prompt": body.get("tokens")}, self.served)[0] if body.get("tokens") else []
        return JSONResponse({"prompt": self.served.tokenizer.decode(tokens)})

    async def reset_prefix_cache(self, request: HttpRequest) -> Response:
        """POST /reset_prefix_cache: nothing that was computed before is found again."""
        self.thread.reset_prefix_cache()
        return Response()

    async def _refuse(self, request: HttpRequest, error: Exception) -> Response:
        return refusal(error, self.stats)


async def _http_error(request: HttpRequest, error: Exception) -> Response:
    """An unknown path or method, in vLLM's words."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)
