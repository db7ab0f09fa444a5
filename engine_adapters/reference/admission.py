"""Decides on arrival who may queue, and tells the others when to come back so that they will then be let in.

A refusal is an appointment: each gets the instant at which a place should be free for it, by the work that is queued
and the speed of late, a little apart from the one before. So the refused do not return together, and while an
appointment is near, newcomers do not get its place. A retry is told by being the same request again.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from engine_adapters.reference.config import EngineConfig

RefusalReason = Literal["queue_full", "rate_limited", "shutting_down"]
REFUSALS: dict[RefusalReason, str] = {
    "queue_full": "the waiting queue is full",
    "rate_limited": "the rate limit is reached",
    "shutting_down": "the server is shutting down",
}
RECENT_S = 10.0  # speed is an average in which work this old counts 1/e
ENOUGH_S = 0.5  # of a full batch, before its speed is believed
ASSUMED_BATCH_S = 2.0  # how long a full batch takes, until then
SLACK = 1.1  # appointments are this much further apart than places become free
EARLY_S, LATE_S = 0.05, 1.0  # how far from its instant an appointment is still kept
MEMORY = 0.98  # of one kept or missed appointment when the next is counted


class Refused(Exception):
    """A request that was not taken on; `retry_after_s` is when to come back, as the header Retry-After says it."""

    def __init__(self, reason: RefusalReason, retry_after_s: int) -> None:
        super().__init__(REFUSALS[reason])
        self.reason: RefusalReason = reason
        self.retry_after_s = retry_after_s


def whole_seconds(wait_s: float) -> int:
    """A wait as Retry-After can say it: whole seconds (RFC 9110, 10.2.3), never too short, at least 1."""
    return max(math.ceil(wait_s), 1)


class TokenBucket:
    """At most `capacity` tokens, `rate_per_s` new ones a second, filled up whenever somebody asks."""

    def __init__(self, capacity: int, rate_per_s: float, clock: Callable[[], float]) -> None:
        self._capacity = capacity
        self._rate_per_s = rate_per_s
        self._clock = clock
        self._tokens = float(capacity)
        self._filled_at_s = clock()

    def reserve(self) -> float:
        """Take one token, if need be one that is yet to come; seconds until it is there, 0.0 when it is."""
        self._fill()
        self._tokens -= 1.0
        return max(-self._tokens / self._rate_per_s, 0.0)

    def give_back(self) -> None:
        """Return a reserved token that was not used."""
        self._fill()
        self._tokens = min(self._tokens + 1.0, self._capacity)

    def _fill(self) -> None:
        now_s = self._clock()
        self._tokens = min(self._tokens + (now_s - self._filled_at_s) * self._rate_per_s, self._capacity)
        self._filled_at_s = now_s


class Speed:
    """Work done a second, of late, while the batch was full."""

    def __init__(self) -> None:
        self._n_tokens = 0.0
        self._busy_s = 0.0

    def advance(self, busy_s: float) -> None:
        """So much more time has passed with a full batch."""
        fade = math.exp(-busy_s / RECENT_S)
        self._n_tokens *= fade
        self._busy_s = self._busy_s * fade + RECENT_S * (1.0 - fade)

    def add(self, n_tokens: int) -> None:
        """So many tokens were worked off just now."""
        self._n_tokens += n_tokens

    @property
    def tokens_per_s(self) -> float | None:
        """None until there is something to go by."""
        return self._n_tokens / self._busy_s if self._n_tokens and self._busy_s > ENOUGH_S else None


class Appointments:
    """Who was told to come when. Kept when the same request comes at its time, else missed."""

    def __init__(self) -> None:
        self._dues: list[tuple[float, int]] = []  # (due_s, number), sorted
        self._by_key: dict[Hashable, list[tuple[float, int]]] = {}
        self._key_of: dict[int, Hashable] = {}
        self._n_made = 0
        self._kept, self._missed = 1.0, 0.0

    @property
    def kept_share(self) -> float:
        """Which share of late kept its appointment; 1 until one has been missed."""
        return self._kept / (self._kept + self._missed)

    def make(self, key: Hashable, due_s: float) -> None:
        """Expect the request `key` at `due_s`."""
        due = (due_s, self._n_made)
        self._n_made += 1
        insort(self._dues, due)
        insort(self._by_key.setdefault(key, []), due)
        self._key_of[due[1]] = key

    def keep(self, key: Hashable, now_s: float) -> bool:
        """Whether `key` is expected now; if so, it is no longer."""
        due = self._by_key.get(key, [(math.inf, 0)])[0]
        if due[0] > now_s + EARLY_S:
            return False
        self._remove(due)
        self._kept, self._missed = self._kept * MEMORY + 1.0, self._missed * MEMORY
        return True

    def drop_missed(self, now_s: float) -> int:
        """Forget those whose time is over; how many there were."""
        n_missed = bisect_left(self._dues, (now_s - LATE_S, 0))
        for due in self._dues[:n_missed]:
            self._remove(due)
            self._kept, self._missed = self._kept * MEMORY, self._missed * MEMORY + 1.0
        return n_missed

    def n_until(self, at_s: float) -> int:
        """How many are expected until an instant."""
        return bisect_right(self._dues, (at_s, self._n_made))

    def _remove(self, due: tuple[float, int]) -> None:
        del self._dues[bisect_left(self._dues, due)]
        key = self._key_of.pop(due[1])
        of_key = self._by_key[key]
        of_key.remove(due)
        if not of_key:
            del self._by_key[key]


@dataclass(slots=True)
class AdmissionStats:
    """Arrivals by what was decided on them, and those who came back on time but found no place."""

    admitted: int = 0
    refused: dict[RefusalReason, int] = field(default_factory=lambda: dict.fromkeys(REFUSALS, 0))
    kept: int = 0
    kept_in_vain: int = 0


class AdmissionControl:
    """The door: at most max_num_seqs + max_waiting requests are inside.

    Work is counted in tokens asked for, prompt and output. `clock` is monotonic, in seconds.
    """

    def __init__(self, config: EngineConfig, clock: Callable[[], float]) -> None:
        self.stats = AdmissionStats()
        self._config = config
        self._clock = clock
        self._bucket = None
        if config.rate_limit_rps is not None:
            self._bucket = TokenBucket(config.rate_limit_burst, config.rate_limit_rps, clock)
        self._speed = Speed()
        self._appointments = Appointments()
        self._n_inside = 0
        self._n_tokens_inside = 0
        self._seen_at_s = clock()
        self._last_due_s = -math.inf

    def enter(self, key: Hashable, n_tokens: int) -> None:
        """Let a request in, or raise Refused. `key` is the same for the same request; `n_tokens` is what it asks."""
        now_s = self._advance()
        for _ in range(self._appointments.drop_missed(now_s)):
            if self._bucket:
                self._bucket.give_back()
        expected = self._appointments.keep(key, now_s)
        # Who is expected has its token of the bucket since it was refused.
        wait_s = self._bucket.reserve() if self._bucket and not expected else 0.0
        has_place = self._has_place(now_s, expected)
        self.stats.kept += expected
        self.stats.kept_in_vain += expected and not has_place
        if not has_place:
            self._refuse("queue_full", self._appoint(key, now_s, self._next_due_s(now_s + wait_s) - now_s))
        if wait_s:
            self._refuse("rate_limited", self._appoint(key, now_s, wait_s))
        self.stats.admitted += 1
        self._n_inside += 1
        self._n_tokens_inside += n_tokens

    def work_off(self, n_tokens: int) -> None:
        """So many tokens of those inside were computed."""
        self._advance()
        if self._is_full:
            self._speed.add(n_tokens)

    def leave(self, n_tokens: int) -> None:
        """A request that had asked for `n_tokens` has ended."""
        self._advance()
        self._n_inside -= 1
        self._n_tokens_inside -= n_tokens

    @property
    def _is_full(self) -> bool:
        """Whether all slots of the batch are taken: only then does the engine show how fast it is."""
        return self._n_inside >= self._config.max_num_seqs

    def _has_place(self, now_s: float, expected: bool) -> bool:
        """A free place that is not held for somebody else. An idle slot of the batch is held for nobody."""
        room = self._config.max_num_seqs + self._config.max_waiting - self._n_inside
        if expected or not self._is_full:
            return room > 0
        soon_s = max(self._config.max_num_seqs * self._place_s(), LATE_S)
        return room > self._appointments.kept_share * self._appointments.n_until(now_s + soon_s)

    def _place_s(self) -> float:
        """How long it takes, by queued work and recent speed, until one more place is free."""
        speed = self._speed.tokens_per_s
        if speed is None or not self._n_inside:
            return ASSUMED_BATCH_S / self._config.max_num_seqs
        return self._n_tokens_inside / self._n_inside / speed

    def _next_due_s(self, earliest_s: float) -> float:
        """When the next place should be free for somebody: one more than those that are given away already.

        The first is a batch away, because a whole batch may end at once. If only some keep theirs, they are closer.
        """
        place_s = self._place_s()
        gap_s = place_s * SLACK * max(self._appointments.kept_share, 0.1)
        batch_away_s = self._seen_at_s + self._config.max_num_seqs * place_s
        self._last_due_s = max(self._last_due_s + gap_s, batch_away_s, earliest_s)
        return self._last_due_s

    def _appoint(self, key: Hashable, now_s: float, wait_s: float) -> int:
        """Make an appointment; in how many seconds it is."""
        retry_after_s = whole_seconds(wait_s)
        self._appointments.make(key, now_s + retry_after_s)
        return retry_after_s

    def _refuse(self, reason: RefusalReason, retry_after_s: int) -> NoReturn:
        self.stats.refused[reason] += 1
        raise Refused(reason, retry_after_s)

    def _advance(self) -> float:
        now_s = self._clock()
        if self._is_full:
            self._speed.advance(now_s - self._seen_at_s)
        self._seen_at_s = now_s
        return now_s
