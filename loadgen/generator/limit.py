"""The client's own limit: a token bucket that requests pass before they are sent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TokenBucket:
    """`burst` requests may leave at once, and `rate_rps` a second in the long run; O(1) a request.

    Capacity and refill are two things: a bucket that was left alone fills up to `burst`, and no further. It keeps one
    instant instead of a count of tokens: when a request would find its token if none came before it
    (`_ready_at_ns`, the "theoretical arrival time" of the generic cell rate algorithm). Turns are given in the order
    in which they are asked for.
    """

    rate_rps: float
    burst: int
    _ready_at_ns: int = 0

    def __post_init__(self) -> None:
        self._refill_ns = round(1e9 / self.rate_rps)

    def turn_ns(self, now_ns: int) -> int:
        """The monotonic instant at which a request that asks at `now_ns` may leave; its token is taken."""
        self._ready_at_ns = max(self._ready_at_ns, now_ns) + self._refill_ns
        return max(now_ns, self._ready_at_ns - self.burst * self._refill_ns)
