"""The knee of the curve, and the ladder of rates that finds it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

KNEE_SHARE = 0.9
SATURATED_GAIN = 1.03  # a rate that adds less throughput than this adds nothing
CONFIRM_STEP = 1.15
OVERLOAD_STEP = 1.5  # far enough above capacity for the queue's growth to show in a short window
BELOW_LIGHTEST = 1.5
CLOSEST_STEP = 1.05  # rates nearer than this tell nothing new
BELOW_CAPACITY = 0.93  # where a server should still be stable
BELOW_OVERLOAD = 0.85  # and how much lower the next try is, when it was not
MAX_BELOW = 3  # tries to find a stable load near capacity
MIN_POINTS = 6
N_RESERVED = 4  # points of the budget that come after the climb: overload, its confirmation, two to refine


@dataclass(frozen=True, slots=True)
class Rung:
    """One measured point of a ladder; `rate_rps` is None in closed loop."""

    rate_rps: float | None
    concurrency: float | None
    output_tps: float | None
    verdict: str
    achieved_rps: float | None = None


def find_knee(points: Sequence[Rung]) -> int | None:
    """Index of the knee: the smallest concurrency whose throughput is >= 0.9 X_max. X_max is taken over VALID, WARN and
    NONSTATIONARY points, an INVALID one never counts, and nothing is interpolated. None if no point counts."""
    x_max = max_throughput(points)
    if x_max is None:
        return None
    near = [i for i in _usable(points) if (points[i].output_tps or 0) >= KNEE_SHARE * x_max]
    return min(near, key=lambda i: points[i].concurrency or 0.0)


def max_throughput(points: Sequence[Rung]) -> float | None:
    """X_max: the best output tokens/s of the points that count."""
    return max((points[i].output_tps or 0.0 for i in _usable(points)), default=None)


def _usable(points: Sequence[Rung]) -> list[int]:
    return [i for i, p in enumerate(points) if p.verdict != "INVALID" and p.output_tps and p.concurrency is not None]


def plan_ladder(w0_s: float, x_est_rps: float, max_points: int) -> list[float]:
    """The rates of `rates: auto` before anything is measured, in requests/s.

    Geometric from one request in flight (1/W0, by Little's law) to 0.9 of the estimated capacity, where the knee is by
    definition; then one rate above capacity. A server that light load nearly fills (X W0 < 3) is started at a third of
    its capacity, so that there is a curve to see. w0_s: residence of a lone request; x_est_rps: completion rate of a
    flood.
    """
    if w0_s <= 0 or x_est_rps <= 0:
        raise ValueError("the probe measured no residence or no completion rate")
    top = KNEE_SHARE * x_est_rps
    light = min(1 / w0_s, x_est_rps / 3)
    n = max(max_points - N_RESERVED, 2)
    climb = [light * (top / light) ** (i / (n - 1)) for i in range(n)]
    return [*climb, top * OVERLOAD_STEP][:max_points]


def next_rate(history: Sequence[Rung], plan: Sequence[float], max_points: int = 8) -> float | None:
    """The next rate of an automatic ladder, in requests/s, or None when it is done.

    Climbs the planned rungs and, if they do not saturate the server, goes on geometrically. The climb ends after two
    rates in a row that add < 3% throughput, or with a NONSTATIONARY one that a second, 15% higher, confirms (higher,
    not the same again: if the first was a fluke, the second is still progress; if not, X_max has two witnesses), or
    after two INVALID ones in a row. What is left of the budget refines round the knee.
    """
    if len(history) >= max_points:
        return None
    n_climbed = _climb_length(history)
    if n_climbed is not None:
        return _refinement(history, n_climbed)
    if history and history[-1].verdict == "NONSTATIONARY":
        return (history[-1].rate_rps or 0.0) * CONFIRM_STEP
    done = max((p.rate_rps or 0.0 for p in history), default=0.0)
    ahead = [rate for rate in plan if rate > done * 1.02]  # rates may have been rounded
    if ahead:
        return ahead[0]
    return done * OVERLOAD_STEP


def _climb_length(history: Sequence[Rung]) -> int | None:
    """How many rungs the climb took, None while it goes on; what follows them is refinement."""
    return next((n for n in range(2, len(history) + 1) if _ends_climb(history[:n])), None)


def _ends_climb(climbed: Sequence[Rung]) -> bool:
    last_two = [p.verdict for p in climbed[-2:]]
    if last_two in (["NONSTATIONARY"] * 2, ["INVALID"] * 2):
        return True
    before = max_throughput(climbed[:-2])
    if before is None or "INVALID" in last_two:
        return False
    second = max(before, climbed[-2].output_tps or 0.0)
    return (climbed[-2].output_tps or 0.0) < SATURATED_GAIN * before and (
        climbed[-1].output_tps or 0.0
    ) < SATURATED_GAIN * second


def _refinement(history: Sequence[Rung], n_climbed: int) -> float | None:
    """The rate that resolves the knee best, and that was not driven yet: if only overloaded points reach 0.9 X_max,
    between the heaviest stable load and capacity; else the middle of the larger gap in concurrency beside the knee; if
    both are closed and points are few, of the widest gap anywhere, or a load below the lightest."""
    usable = sorted((history[i] for i in _usable(history)), key=_load)
    knee = find_knee(usable)
    if knee is None:
        return None
    stable = [p for p in usable if p.verdict != "NONSTATIONARY"]
    if usable[knee].verdict == "NONSTATIONARY" and stable and len(history) < n_climbed + MAX_BELOW:
        below = _new(_below_capacity(usable, _load(stable[-1])), history)
        if below is not None:
            return below
    beside = [(usable[i], usable[i + 1]) for i in (knee - 1, knee) if 0 <= i < len(usable) - 1]
    middle = _new(_middle_of_widest(beside, by_concurrency=True), history)
    if middle is None and len(history) < MIN_POINTS:
        middle = _new(_middle_of_widest(list(pairwise(usable)), by_concurrency=False), history)
        return middle or _load(usable[0]) / BELOW_LIGHTEST
    return middle


def _below_capacity(usable: Sequence[Rung], stable_rps: float) -> float | None:
    """A load above the heaviest stable one that the server should still bear: 7% below what it worked off at best when
    it was overloaded; if a load as low as that was overloaded too, 15% below the lowest such one; or the middle, where
    that is nearer to the top."""
    overloaded = [p for p in usable if p.verdict == "NONSTATIONARY"]
    capacity = max(p.achieved_rps or _load(p) for p in overloaded)
    lowest = min((p.rate_rps for p in overloaded if p.rate_rps and p.rate_rps > stable_rps), default=capacity)
    top, share = (capacity, BELOW_CAPACITY) if lowest >= capacity else (lowest, BELOW_OVERLOAD)
    if top <= CLOSEST_STEP**2 * stable_rps:
        return None
    return max(share * top, math.sqrt(stable_rps * top))


def _new(rate: float | None, history: Sequence[Rung]) -> float | None:
    """The rate, unless one as good as it was driven already."""
    if rate is None or any(
        abs(math.log(rate / p.rate_rps)) < math.log(CLOSEST_STEP) / 2 for p in history if p.rate_rps
    ):
        return None
    return rate


def _load(point: Rung) -> float:
    """The rate that the server really worked at: an overloaded one works at its capacity, whatever is offered."""
    rate = point.rate_rps or 0.0
    return min(rate, point.achieved_rps or rate) if point.verdict == "NONSTATIONARY" else rate


def _middle_of_widest(gaps: Sequence[tuple[Rung, Rung]], by_concurrency: bool) -> float | None:
    open_gaps = [(low, high) for low, high in gaps if _load(high) > CLOSEST_STEP**2 * _load(low) > 0]
    if not open_gaps:
        return None
    low, high = max(open_gaps, key=lambda gap: _width(gap[0], gap[1], by_concurrency))
    return math.sqrt(_load(low) * _load(high))


def _width(low: Rung, high: Rung, by_concurrency: bool) -> float:
    """A gap as a ratio, of concurrency or of rate."""
    if not by_concurrency:
        return _load(high) / _load(low)
    return (high.concurrency or 0.0) / max(low.concurrency or 0.0, 1e-9)
