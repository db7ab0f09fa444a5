"""The one clock of the generator: monotonic nanoseconds, and sleeping until an absolute instant."""

from __future__ import annotations

from time import monotonic_ns, time
from typing import Protocol

import anyio

# Event-loop timers are rounded to whole milliseconds: the last stretch before a deadline is spent in short yields.
COARSE_NS = 1_200_000


class Clock(Protocol):
    """Injected, so that tests run a schedule in no time and with exact instants."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds."""
        ...

    def wall_s(self) -> float:
        """UTC epoch seconds, only to line records up with other logs; durations never come from it."""
        ...

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        """Return at `deadline_ns` or, when that has passed, at once."""
        ...

    async def sleep_coarse_until_ns(self, deadline_ns: int) -> None:
        """The same by the event loop's timer alone: a millisecond late, and free."""
        ...


class MonotonicClock:
    """The machine's clock."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds."""
        return monotonic_ns()

    def wall_s(self) -> float:
        """UTC epoch seconds."""
        return time()

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        """Sleep coarsely, then yield to the other tasks until the deadline has come."""
        remaining_ns = deadline_ns - monotonic_ns()
        if remaining_ns > COARSE_NS:
            await anyio.sleep((remaining_ns - COARSE_NS) / 1e9)
        while monotonic_ns() < deadline_ns:
            await anyio.sleep(0)

    async def sleep_coarse_until_ns(self, deadline_ns: int) -> None:
        """Leave the deadline to the event loop's timer."""
        await anyio.sleep(max(deadline_ns - monotonic_ns(), 0) / 1e9)
