"""Percentiles with the sample they need and the interval they deserve: the only way a quantile leaves this package."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.analysis.student_t import t_quantile

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Blocks = npt.NDArray[np.integer[Any]]

QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
N_RESAMPLES = 200
BOOTSTRAP_SEED = 20260101
PIECE = 2**17
BOOTSTRAP_MAX_N = 5000  # above it the interval comes from the variance between blocks: as good there, and cheap


def samples_needed(q: float) -> int:
    """Smallest n for which order statistics enclose the q-quantile with 95% confidence, 2.5% on each side.

    The largest of n values lies below the quantile with probability q^n, the smallest above it with (1-q)^n.
    """
    return math.ceil(math.log(0.025) / math.log(max(q, 1 - q)))


NEEDED = {name: samples_needed(q) for name, q in QUANTILES.items()}


def quantile(ordered: Floats, q: float) -> float:
    """The q-quantile of sorted values by linear interpolation between order statistics (numpy's default)."""
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (ordered[high] - ordered[low]) * (position - low))


def distribution(values: Sequence[float] | Floats, blocks: Blocks | None = None) -> dict[str, Any]:
    """Summarise `values` (seconds, in the order in which they happened) as the distribution of summary.json.

    A percentile below its sample is None and its need is listed. The 95% intervals allow for autocorrelation: a
    circular block bootstrap (blocks of sqrt(n) successive values, 200 resamples, fixed seed) up to 5,000 values; above
    that, and wherever `blocks` gives each value's block (ITL: a slice of time, since one stall hits all users at once),
    the variance between blocks, carried through the empirical distribution (Woodruff 1952).
    """
    data = np.asarray(values, dtype=np.float64)
    if not np.isfinite(data).all():
        raise ValueError("a missing value must be left out, not passed as NaN or infinity")
    n = len(data)
    if n == 0:
        return empty("no request has this metric")
    ordered = np.sort(data)
    known = [name for name in QUANTILES if n >= NEEDED[name]]
    result = empty(None, n)
    result["mean"] = float(data.mean())
    result.update({name: quantile(ordered, QUANTILES[name]) for name in known})
    result["ci95"].update(_intervals(data, ordered, known, blocks))
    result["needs"] = missing_samples(n)
    return result


def empty(reason: str | None, n: int = 0) -> dict[str, Any]:
    """A distribution of times in seconds without any figure, and why."""
    nothing = dict.fromkeys(QUANTILES)
    return {"unit": "s", "n": n, "mean": None, **nothing, "ci95": dict(nothing), "needs": {}, "reason": reason}


def missing_samples(n: int) -> dict[str, int]:
    """For each percentile that n values can't support, the number that would."""
    return {name: need for name, need in NEEDED.items() if n < need}


def _intervals(data: Floats, ordered: Floats, names: list[str], blocks: Blocks | None) -> dict[str, list[float] | None]:
    if not names:
        return {}
    if blocks is None and len(data) <= BOOTSTRAP_MAX_N:
        return _bootstrap(data, names)
    if blocks is None:
        blocks = np.arange(len(data)) // block_length(len(data))
    return {name: _between_blocks(data, ordered, blocks, QUANTILES[name]) for name in names}


def block_length(n: int) -> int:
    """Successive values that are resampled together: sqrt(n), long enough for queues, short enough for variety."""
    return math.ceil(math.sqrt(n))


@lru_cache(maxsize=4)
def resample_indices(n: int) -> Ints:
    """Indices of all block-bootstrap resamples, shape (N_RESAMPLES, n); the same for every sample of size n."""
    length = block_length(n)
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    starts = rng.integers(0, n, size=(N_RESAMPLES, math.ceil(n / length), 1))
    indices: Ints = ((starts + np.arange(length)) % n).reshape(N_RESAMPLES, -1)[:, :n]
    indices.setflags(write=False)
    return indices


def _bootstrap(data: Floats, names: list[str]) -> dict[str, list[float] | None]:
    positions = {name: QUANTILES[name] * (len(data) - 1) for name in names}
    ranks = {min(math.floor(p) + step, len(data) - 1) for p in positions.values() for step in (0, 1)}
    resamples = np.partition(data[resample_indices(len(data))], sorted(ranks), axis=1)
    return {name: _spread(resamples, position) for name, position in positions.items()}


def _spread(resamples: Floats, position: float) -> list[float]:
    """Middle 95% of the quantile that stands at `position` in each partitioned resample."""
    low = math.floor(position)
    high = min(low + 1, resamples.shape[1] - 1)
    estimates = np.sort(resamples[:, low] + (resamples[:, high] - resamples[:, low]) * (position - low))
    return [quantile(estimates, 0.025), quantile(estimates, 0.975)]


def _between_blocks(data: Floats, ordered: Floats, blocks: Blocks, q: float) -> list[float] | None:
    """Interval for a quantile from how much the share of values below it differs between blocks; None if it is open."""
    sizes = _count_by_block(blocks, data, math.inf)
    n_blocks = int(np.count_nonzero(sizes))
    if n_blocks < 5:
        return None
    below = _count_by_block(blocks, data, quantile(ordered, q))
    surprise = below - below.sum() / len(data) * sizes
    variance = n_blocks / (n_blocks - 1) * float(surprise @ surprise) / len(data) ** 2
    half = t_quantile(0.975, n_blocks - 1) * math.sqrt(variance)
    if q - half < 0 or q + half > 1:
        return None
    return [quantile(ordered, q - half), quantile(ordered, q + half)]


def _count_by_block(blocks: Blocks, data: Floats, limit: float) -> Floats:
    """Values up to `limit` in each block; in pieces, because numpy would widen millions of block numbers at once."""
    counts = np.zeros(int(blocks.max()) + 1)
    for i in range(0, len(data), PIECE):
        piece = slice(i, i + PIECE)
        counts += np.bincount(blocks[piece], weights=data[piece] <= limit, minlength=len(counts))
    return counts
