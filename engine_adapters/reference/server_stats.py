"""What the HTTP side counts: requests by route and status, how long they took, and those that were turned away."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine_adapters.reference.prometheus import Histogram

DURATION_S = (0.1, 0.5, 1.0)
CHOICES = (1, 2, 5, 10, 20)
NOT_COUNTED = ("/health", "/metrics", "/version", "/truth")  # probes; vLLM leaves them out too


class ServerStats:
    """Counters of the event loop's thread."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()  # (route, method, status class)
        self.durations: dict[tuple[str, str], Histogram] = {}  # by (route, method)
        self.rejections: Counter[str] = Counter()  # by reason; they never reached the engine
        self.choices = Histogram(CHOICES)

    def ended(self, route: str, method: str, status: int, took_s: float) -> None:
        """One HTTP exchange is over."""
        self.requests[route, method, f"{status // 100}xx"] += 1
        self.durations.setdefault((route, method), Histogram(DURATION_S)).observe(took_s)


class CountRequests:
    """ASGI middleware that counts each exchange; unknown paths count as the route "none", as in vLLM."""

    def __init__(
        self, app: ASGIApp, stats: ServerStats, routes: frozenset[str], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._app, self._stats, self._routes, self._clock = app, stats, routes, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on."""
        if scope["type"] != "http" or scope["path"] in NOT_COUNTED:
            await self._app(scope, receive, send)
            return
        route = scope["path"] if scope["path"] in self._routes else "none"
        started_s, status = self._clock(), 500

        async def passing(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, passing)
        finally:
            self._stats.ended(route, scope["method"], status, self._clock() - started_s)
