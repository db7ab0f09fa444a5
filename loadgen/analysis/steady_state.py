"""Was the point in a steady state: does the queue grow, and was the warm-up long enough?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from loadgen.analysis.percentiles import Floats, block_length

N_BATCHES = 10
MIN_BATCHES = 6  # with fewer, even a perfect order is not significant at 1%


State = Literal["steady", "drifting", "growing", "unknown"]


@dataclass(frozen=True, slots=True)
class Trend:
    """What in-flight did over the window. `p` is two-sided; `first` and `last` are means over its outer thirds;
    `climbs`: upwards with p < .05; `rises`: materially, significant or not."""

    state: State
    n_batches: int = 0
    batch_s: float = 0.0
    p: float | None = None
    first: float | None = None
    last: float | None = None
    climbs: bool = False
    rises: bool = False
    short: bool = False  # the batches are shorter than two residences, so only a strong rise counts


def in_flight_trend(bins: Sequence[float], bin_s: float, residence_s: float | None) -> Trend:
    """Test the in-flight averages of the window for a trend.

    bins: averages over consecutive bins of `bin_s` seconds, exactly the window's; residence_s: mean residence while the
    queue was still short. Ten batches, each of two residences or more, fewer if the window is too short, at least six;
    Kendall's tau with its exact null distribution. `growing` needs p < .01 upwards and a material rise: by a quarter,
    and by twice the Poisson noise of the outer thirds, because near saturation in-flight stays correlated for longer
    than two residences. A window that can't hold six such batches is tested with ten short ones and calls only a rise
    by half `growing`: under overload residence itself may exceed the window.
    """
    fitting = int(len(bins) * bin_s / (2 * residence_s)) if residence_s else N_BATCHES
    short = fitting < MIN_BATCHES
    n = N_BATCHES if short else min(N_BATCHES, fitting)
    if len(bins) < n:
        return Trend("unknown")
    batches = np.array([part.mean() for part in np.array_split(np.asarray(bins, dtype=np.float64), n)])
    tau, p = kendall(batches)
    third = max(n // 3, 1)
    first, last = float(batches[:third].mean()), float(batches[-third:].mean())
    climbs = tau > 0 and p < 0.05
    rises = last >= 1.25 * first and last - first >= 2 * math.sqrt(first + last)
    state: State = "drifting" if p < 0.05 else "steady"
    if climbs and p < 0.01 and rises and (not short or last >= 1.5 * first):
        state = "growing"
    elif short:
        state = "unknown"
    return Trend(state, n, len(bins) * bin_s / n, p, first, last, climbs, rises, short)


def kendall(values: Floats) -> tuple[float, float]:
    """Kendall's tau of `values` against time, and its two-sided p from the exact distribution (values without ties;
    ties count as neither up nor down, which makes p larger)."""
    n = len(values)
    later, earlier = np.triu_indices(n, 1)[::-1]
    score = int(np.sign(values[later] - values[earlier]).sum())
    pairs = n * (n - 1) // 2
    discordant = (pairs - abs(score)) // 2 + (pairs - abs(score)) % 2
    tail = sum(_inversions(n)[: discordant + 1]) / math.factorial(n)
    return score / pairs, min(2 * tail, 1.0)


@lru_cache(maxsize=16)
def _inversions(n: int) -> tuple[int, ...]:
    """How many permutations of n have 0, 1, 2, ... inversions."""
    counts = [1]
    for size in range(2, n + 1):
        counts = [sum(counts[max(k - size + 1, 0) : k + 1]) for k in range(len(counts) + size - 1)]
    return tuple(counts)


def mser5(values: Sequence[float]) -> int:
    """How many first values MSER-5 would cut as warm-up: the cut that minimises the squared standard error of the mean
    of what is left, over means of five, in the first half (White 1997). It checks the warm-up; it does not choose
    it."""
    n = len(values) // 5
    if n < 4:
        return 0
    means = np.asarray(values[: 5 * n], dtype=np.float64).reshape(n, 5).mean(axis=1)
    scores = [float(means[cut:].var()) / (n - cut) for cut in range(n // 2)]
    return 5 * int(np.argmin(scores))


def differ(start: Floats, rest: Floats) -> bool:
    """Whether the mean of a series' start is off that of its rest by over 25% and over 6 standard errors, which are
    taken between blocks of successive values, since latencies are autocorrelated."""
    length = block_length(len(rest))
    if len(start) < length or len(rest) < 4 * length:
        return False
    blocks = rest[: len(rest) // length * length].reshape(-1, length).mean(axis=1)
    error = float(blocks.std(ddof=1)) * math.sqrt(length / len(start) + length / len(rest))
    return abs(float(start.mean() - rest.mean())) > max(0.25 * float(rest.mean()), 6 * error)
