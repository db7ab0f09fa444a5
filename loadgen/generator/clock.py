"""The one clock of the generator: monotonic nanoseconds, and sleeping until an absolute instant."""

from __future__ import annotations

import weakref
from time import monotonic_ns, time
from typing import Protocol

import anyio

from loadgen.generator.timer_fd import TimerFd

# What wakes us is late by some 50 to 100 us (a timer descriptor) or by a millisecond (the event loop's own timers): so
# much before a deadline we are awake and yield to the other tasks until it has come. At 200 sends a second this costs
# 3% of a core with a timer descriptor and 15% without.
SPIN_NS = 100_000
COARSE_SPIN_NS = 1_200_000


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
    """The machine's clock; one task at a time sleeps by the timer descriptor, where there is one."""

    def __init__(self) -> None:
        self._timer: TimerFd | None = None
        try:
            self._timer = TimerFd()
        except OSError:
            return
        weakref.finalize(self, self._timer.close)

    def now_ns(self) -> int:
        """Monotonic nanoseconds."""
        return monotonic_ns()

    def wall_s(self) -> float:
        """UTC epoch seconds."""
        return time()

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        """Sleep until shortly before the deadline, then yield to the other tasks until it has come."""
        timer, self._timer = self._timer, None
        try:
            if timer:
                await timer.wait_until_ns(deadline_ns - SPIN_NS)
            elif (left_ns := deadline_ns - COARSE_SPIN_NS - monotonic_ns()) > 0:
                await anyio.sleep(left_ns / 1e9)
        finally:
            self._timer = self._timer or timer
        while monotonic_ns() < deadline_ns:
            await anyio.sleep(0)

    async def sleep_coarse_until_ns(self, deadline_ns: int) -> None:
        """Leave the deadline to the event loop's timer."""
        await anyio.sleep(max(deadline_ns - monotonic_ns(), 0) / 1e9)
