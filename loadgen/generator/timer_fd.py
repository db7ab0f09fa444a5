"""Linux's timer descriptors (timerfd_create(2)): they wake an event loop on the microsecond, not the millisecond."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress

import anyio

CLOCK_MONOTONIC = 1
ABSOLUTE = 1  # TFD_TIMER_ABSTIME
FLAGS = os.O_NONBLOCK | os.O_CLOEXEC if sys.platform == "linux" else 0


class _Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class TimerFd:
    """One alarm at an absolute instant of the monotonic clock; for one waiter at a time.

    Raises OSError where the system has none, which is everywhere but on Linux.
    """

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise OSError("timer descriptors are Linux's")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._checked(self._libc.timerfd_create(CLOCK_MONOTONIC, FLAGS))

    async def wait_until_ns(self, instant_ns: int) -> None:
        """Return at the instant, some 50 to 100 us late; when it has passed, at once."""
        seconds, nanoseconds = divmod(max(instant_ns, 1), 1_000_000_000)
        when = _Itimerspec(_Timespec(0, 0), _Timespec(seconds, nanoseconds))
        self._checked(self._libc.timerfd_settime(self._fd, ABSOLUTE, ctypes.byref(when), None))
        await anyio.wait_readable(self._fd)
        with suppress(BlockingIOError):
            os.read(self._fd, 8)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)

    @staticmethod
    def _checked(result: int) -> int:
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result
