"""The fluidity index: how many tokens came when a reader was due them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from loadgen.analysis.metrics import Since, tokens_in, tokens_per_event
from loadgen.analysis.token_events import Floats, Ints, laid_out
from loadgen.collectors.records import RequestRecord

ROUNDING_S = 1e-9  # instants are whole nanoseconds


def fluidity(
    records: Sequence[RequestRecord], itl_limit_s: float, ttft_limit_s: float | None, since: Since
) -> float | None:
    """Fluidity index: share of token deadlines met. The first token is due at the TTFT objective (without one it sets
    the clock and has no deadline), each further token one ITL objective after the one before it, so that early tokens
    make up for later ones. A late token misses a deadline for every ITL objective begun since it was due, and the next
    deadlines count from its arrival. Over answers that had a token; null without an ITL objective (Agrawal et al.,
    Etalon, 2024)."""
    default, met, missed = tokens_per_event(records) or 1.0, 0.0, 0
    for reads in laid_out([r for r in records if _begin_ns(r, since) is not None]):
        begin_ns = np.array([_begin_ns(r, since) for r in reads.records], dtype=np.int64)
        at_s, tokens = (reads.at_ns - begin_ns[reads.owner]) / 1e9, tokens_in(reads, default)
        starts = np.flatnonzero(np.diff(reads.owner, prepend=-1))
        due_s = np.full(len(starts), ttft_limit_s or 0.0)
        if ttft_limit_s is None:
            due_s = at_s[starts] + itl_limit_s
            tokens[starts] = np.maximum(tokens[starts] - 1, 0)
        late = _late(reads.owner, starts, at_s, tokens, due_s, itl_limit_s)
        met += float(tokens[~late[reads.owner]].sum())
        for i in np.flatnonzero(late).tolist():
            own = slice(starts[i], starts[i + 1] if i + 1 < len(starts) else None)
            one_met, one_missed = deadlines(at_s[own], tokens[own], float(due_s[i]), itl_limit_s)
            met, missed = met + one_met, missed + one_missed
    return met / (met + missed) if met + missed else None


def _begin_ns(record: RequestRecord, since: Since) -> int | None:
    return record.intended_at_ns if since == "intended" else record.sent_at_ns


def _late(
    owner: Ints, starts: Ints, at_s: Floats, tokens: Floats, due_s: Floats, limit_s: float
) -> npt.NDArray[np.bool_]:
    """For each request, whether any of its tokens came after it was due."""
    ahead = np.cumsum(tokens) - tokens
    ahead -= ahead[starts][owner]
    late: npt.NDArray[np.bool_] = np.maximum.reduceat(at_s > due_s[owner] + ahead * limit_s + ROUNDING_S, starts)
    return late


def deadlines(at_s: Floats, tokens: Floats, due_s: float, limit_s: float) -> tuple[float, int]:
    """(met, missed) of one answer: `tokens[i]` came at `at_s[i]`, the first was due at `due_s`."""
    met, missed = 0.0, 0
    for at, n in zip(at_s.tolist(), tokens.tolist(), strict=True):
        late_s = at - due_s
        if late_s > ROUNDING_S and n > 0:
            missed += 1 + int(late_s / limit_s)
            due_s, n = at + limit_s, max(n - 1, 0.0)
        met += n
        due_s += n * limit_s
    return met, missed
