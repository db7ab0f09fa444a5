"""The reads of many requests laid end to end: a point of a million tokens is then a handful of array operations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadgen.collectors.records import RequestRecord

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SLICE = 1024  # requests that are laid out at once, so that the memory is the result's and not that of the steps to it


@dataclass(frozen=True)
class Reads:
    """Reads of some requests in a row: whose they are, when they came, and what was in them.

    `owner` is an index into `records`; `gap_ns` is the time since the request's previous read, 0 for its first;
    `n_tokens` is how many tokens the server said a read brought, as many as events where it did not say.
    """

    records: Sequence[RequestRecord]
    owner: Ints
    at_ns: Ints
    gap_ns: Ints
    n_events: Ints
    n_tokens: Ints


def laid_out(records: Iterable[RequestRecord]) -> Iterator[Reads]:
    """The reads of all requests that got a token, some requests at a time."""
    rows = [r for r in records if r.first_token_at_ns is not None and r.gap_events]
    for i in range(0, len(rows), SLICE):
        yield _lay_out(rows[i : i + SLICE])


def _lay_out(rows: Sequence[RequestRecord]) -> Reads:
    n_reads = np.array([len(r.gap_events) for r in rows])
    gap_ns = np.frombuffer(b"".join(r.gap_ns for r in rows), np.int64)
    n_events = np.frombuffer(b"".join(r.gap_events for r in rows), np.int32).astype(np.int64)
    n_tokens = np.frombuffer(b"".join(r.gap_tokens or r.gap_events for r in rows), np.int32).astype(np.int64)
    first_ns = np.array([r.first_token_at_ns for r in rows], dtype=np.int64)
    elapsed_ns = np.cumsum(gap_ns)
    origin_ns = first_ns - elapsed_ns[np.cumsum(n_reads) - n_reads]
    return Reads(
        rows,
        np.repeat(np.arange(len(rows)), n_reads),
        elapsed_ns + np.repeat(origin_ns, n_reads),
        gap_ns,
        n_events,
        n_tokens,
    )


def gaps(reads: Reads, n_shares: Ints) -> tuple[Floats, Ints]:
    """Gaps in seconds between what the reads brought, `n_shares` a read, and for each gap the index of its read.

    What comes in one read shares its instant, so gaps inside a read are zero; but an event of k tokens (`n_shares` =
    k times the read's events) is one gap shared over its k tokens. The first of each request has no gap.
    """
    n_each = -(-n_shares // np.maximum(reads.n_events, 1))  # tokens an event, as whole as they come
    of_read = np.repeat(np.arange(len(n_shares)), n_shares)
    position = np.arange(len(of_read)) - np.repeat(np.cumsum(n_shares) - n_shares, n_shares)
    shared = (reads.gap_ns / 1e9 / n_each)[of_read]
    values = np.where(position < n_each[of_read], shared, 0.0)
    is_first = np.zeros(len(n_shares), dtype=bool)
    is_first[np.flatnonzero(np.diff(reads.owner, prepend=-1))] = True
    kept = ~(is_first[of_read] & (position == 0))
    return values[kept], of_read[kept]


FASTEST_TPOT_NS = 50_000  # 20,000 tokens/s in one stream: faster than any server decodes
AT_ONCE_SHARE = 0.01  # of the E2E
FEWEST_TOKENS = 8  # a few tokens may well share an event


def came_at_once(sent_at_ns: int, first_token_at_ns: int, last_token_at_ns: int, n_tokens: int) -> bool | None:
    """Whether an answer was held back and delivered in one go, as by a proxy that buffers, or was never streamed.

    All its tokens came within 1% of its E2E, and faster than 50 us a token. None for fewer than 8 tokens, and for an
    answer that may well have been written so fast: one that ended within 1 ms a token.
    """
    e2e_ns, spread_ns = last_token_at_ns - sent_at_ns, last_token_at_ns - first_token_at_ns
    if n_tokens < FEWEST_TOKENS or e2e_ns < n_tokens * 1_000_000:
        return None
    return spread_ns <= AT_ONCE_SHARE * e2e_ns and spread_ns < FASTEST_TPOT_NS * n_tokens
