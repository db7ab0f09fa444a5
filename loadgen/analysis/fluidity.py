"""The fluidity index: how many tokens came when a reader was due them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadgen.analysis.metrics import Since, token_arrivals, tokens_per_event
from loadgen.analysis.percentiles import Floats
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
    for record in records:
        at_ns, tokens = token_arrivals(record, default)
        begin_ns = record.intended_at_ns if since == "intended" else record.sent_at_ns
        if not len(at_ns) or begin_ns is None:
            continue
        at_s, due_s = (at_ns - begin_ns) / 1e9, ttft_limit_s
        if due_s is None:
            due_s, tokens[0] = float(at_s[0]) + itl_limit_s, max(tokens[0] - 1, 0)
        one_met, one_missed = deadlines(at_s, tokens, due_s, itl_limit_s)
        met, missed = met + one_met, missed + one_missed
    return met / (met + missed) if met + missed else None


def deadlines(at_s: Floats, tokens: Floats, due_s: float, limit_s: float) -> tuple[float, int]:
    """(met, missed) of one answer: `tokens[i]` came at `at_s[i]`, the first was due at `due_s`."""
    ahead = np.concatenate(([0.0], np.cumsum(tokens)[:-1]))
    if not (at_s > due_s + ahead * limit_s + ROUNDING_S).any():
        return float(tokens.sum()), 0
    met, missed = 0.0, 0
    for at, n in zip(at_s.tolist(), tokens.tolist(), strict=True):
        late_s = at - due_s
        if late_s > ROUNDING_S and n > 0:
            missed += 1 + int(late_s / limit_s)
            due_s, n = at + limit_s, max(n - 1, 0.0)
        met += n
        due_s += n * limit_s
    return met, missed
