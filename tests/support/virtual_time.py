"""A clock that jumps: tests run minutes of schedule in milliseconds, with exact instants."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import anyio

# Turns of the event loop that let every task woken at one instant come to rest before the clock jumps on.
SETTLE_TURNS = 30


class VirtualClock:
    """Implements `loadgen.generator.clock.Clock`; use it inside `virtual_time()`."""

    def __init__(self) -> None:
        self._now_ns = 1_000_000_000
        self._sleepers: list[tuple[int, int, anyio.Event]] = []
        self._order = count()

    def now_ns(self) -> int:
        return self._now_ns

    def wall_s(self) -> float:
        return 1.7e9 + self._now_ns / 1e9

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        if deadline_ns <= self._now_ns:
            await anyio.sleep(0)
            return
        event = anyio.Event()
        heapq.heappush(self._sleepers, (deadline_ns, next(self._order), event))
        await event.wait()

    sleep_coarse_until_ns = sleep_until_ns

    async def run(self) -> None:
        while True:
            for _ in range(SETTLE_TURNS):
                await anyio.sleep(0)
            if self._sleepers:
                deadline_ns, _, event = heapq.heappop(self._sleepers)
                self._now_ns = max(self._now_ns, deadline_ns)
                event.set()


@asynccontextmanager
async def virtual_time() -> AsyncIterator[VirtualClock]:
    clock = VirtualClock()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(clock.run)
        yield clock
        tasks.cancel_scope.cancel()
