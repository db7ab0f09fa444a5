"""Distributions in which some requests had not ended: censored observations count, they are not dropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.analysis.percentiles import (
    NEEDED,
    QUANTILES,
    Floats,
    distribution,
    empty,
    missing_samples,
    resample_indices,
)

Flags = npt.NDArray[np.bool_]


def censored_distribution(values: Sequence[float], censored: Sequence[bool]) -> dict[str, Any]:
    """Like `percentiles.distribution`, with censored values: "at least so long" (Kaplan and Meier 1958).

    values: seconds, in the order in which the requests were due; censored: same length. A percentile that the observed
    ends do not reach is None and `reason` says what it is at least. The mean is None, since it has no unbiased estimate
    then.
    """
    flags = np.asarray(censored, dtype=np.bool_)
    if not flags.any():
        return distribution(values)
    data, n = np.asarray(values, dtype=np.float64), len(values)
    order = np.lexsort((flags, data))  # at equal times an end comes before a censoring
    ends, times = ~flags[order], data[order]
    curve = survival(ends)
    result = empty(None, n)
    result["needs"] = missing_samples(n)
    known = [name for name in QUANTILES if n >= NEEDED[name]]
    for name in known:
        result[name] = _crossing(times, curve, QUANTILES[name])
    result["ci95"].update(_bootstrap(times, ends, order, [name for name in known if result[name] is not None]))
    result["reason"] = _reason(known, result, times, int(flags.sum()))
    return result


def survival(ends: Flags) -> Floats:
    """Share still waiting just after each of the sorted instants; the last axis is time, `ends` False is a
    censoring."""
    at_risk = ends.shape[-1] - np.arange(ends.shape[-1])
    shares: Floats = np.cumprod(1 - ends / at_risk, axis=-1)
    return shares


def _crossing(times: Floats, curve: Floats, q: float) -> float | None:
    reached = np.flatnonzero(curve <= 1 - q + 1e-12)
    return float(times[reached[0]]) if len(reached) else None


def _bootstrap(times: Floats, ends: Flags, order: npt.NDArray[np.intp], names: list[str]) -> dict[str, Any]:
    """Block-bootstrap intervals: whole blocks of successive requests, an estimate for each resample."""
    if not names:
        return {}
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    ranks = np.sort(rank[resample_indices(len(order))], axis=1)
    curves = survival(ends[ranks])
    return {name: _interval(times, ranks, curves <= 1 - QUANTILES[name] + 1e-12) for name in names}


def _interval(times: Floats, ranks: npt.NDArray[np.int64], reached: Flags) -> list[float] | None:
    """Middle 95% of the resampled quantiles; None where the upper end was not reached."""
    first = reached.argmax(axis=1)
    estimates = times[ranks[np.arange(len(ranks)), first]]
    estimates = np.sort(np.where(reached.any(axis=1), estimates, np.inf))
    low, high = estimates[int(0.025 * len(estimates))], estimates[int(np.ceil(0.975 * len(estimates))) - 1]
    return [float(low), float(high)] if np.isfinite(high) else None


def _reason(known: list[str], result: dict[str, Any], times: Floats, n_censored: int) -> str:
    unfinished = f"{n_censored} of {len(times)} requests had not ended (Kaplan-Meier; no mean)"
    beyond = [name for name in known if result[name] is None]
    return f"{beyond[0]} >= {times[-1]:.3f} s: {unfinished}" if beyond else unfinished
