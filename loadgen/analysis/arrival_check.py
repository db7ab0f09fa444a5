"""Did the arrivals that left the socket follow the asked process? Gap variation and dispersion against theory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from loadgen.analysis.percentiles import Floats

MIN_ARRIVALS = 30
GRAIN_S = {"warn": 0.001, "invalid": 0.004}  # timer grain that a constant stream is allowed, as standard deviation


@dataclass(frozen=True, slots=True)
class ArrivalFit:
    """CV of the gaps and index of dispersion of the counts, beside what the asked process would give.

    `cv_inside`: the CV alone is within 99.9% of its sampling error.
    """

    verdict: Literal["pass", "warn", "invalid", "n/a"]
    n: int
    cv: float | None = None
    dispersion: float | None = None
    expected_cv: float | None = None
    warn_range: str = ""
    cv_inside: bool = False


def asked_cv(arrivals: str | Mapping[str, Any]) -> float | None:
    """Coefficient of variation of the asked gaps: constant 0, poisson 1, gamma 1/sqrt(burstiness); None if unknown."""
    if isinstance(arrivals, str):
        return {"constant": 0.0, "poisson": 1.0}.get(arrivals)
    shape = (arrivals.get("gamma") or {}).get("burstiness")
    return 1 / math.sqrt(shape) if shape else None


def fit_arrivals(at_s: Floats, arrivals: str | Mapping[str, Any], start_s: float, end_s: float) -> ArrivalFit:
    """Compare send instants inside the window [start, end) with the asked process.

    A statistic outside 95% of its sampling error is a WARN, outside 99.9% INVALID, both levels shared by the two
    statistics (Bonferroni). CV of gamma gaps: delta method on its logarithm, variance (1 + c^2)/(2n). Dispersion of
    counts in m bins: chi-square with m - 1 degrees of freedom (Wilson-Hilferty) around c^2 + (1 - c^4)/(6 x mean
    count). A constant process has no sampling error: only the timer's grain is allowed.
    """
    at = np.sort(at_s[(at_s >= start_s) & (at_s < end_s)])
    expected = asked_cv(arrivals)
    if expected is None or len(at) < MIN_ARRIVALS:
        return ArrivalFit("n/a", len(at))
    gaps = np.diff(at)
    cv = float(gaps.std(ddof=1) / gaps.mean()) if gaps.mean() > 0 else math.inf
    n_bins = min(max(len(at) // 20, 5), 100)
    counts = np.histogram(at, np.linspace(start_s, end_s, n_bins + 1))[0]
    dispersion = float(counts.var(ddof=1) / counts.mean())
    if expected == 0:
        limits = {level: max(0.05, grain * math.sqrt(2) / float(gaps.mean())) for level, grain in GRAIN_S.items()}
        verdict = _worst(lambda level: cv <= limits[level] and dispersion <= 1)
        return ArrivalFit(verdict, len(at), cv, dispersion, 0.0, f"CV up to {limits['warn']:.2f}")
    cv_range = {level: _cv_range(expected, len(gaps), level) for level in GRAIN_S}
    mean_count = float(counts.mean())
    center = max(expected**2 + (1 - expected**4) / (6 * mean_count), 0.05)
    d_range = {level: _dispersion_range(center, n_bins, mean_count, level) for level in GRAIN_S}
    verdict = _worst(
        lambda level: (
            cv_range[level][0] <= cv <= cv_range[level][1] and d_range[level][0] <= dispersion <= d_range[level][1]
        )
    )
    (c0, c1), (d0, d1) = cv_range["warn"], d_range["warn"]
    shown = f"CV {c0:.2f} to {c1:.2f}, dispersion {d0:.2f} to {d1:.2f}"
    cv_inside = cv_range["invalid"][0] <= cv <= cv_range["invalid"][1]
    return ArrivalFit(verdict, len(at), cv, dispersion, expected, shown, cv_inside)


def _worst(inside: Any) -> Literal["pass", "warn", "invalid"]:
    return "pass" if inside("warn") else "warn" if inside("invalid") else "invalid"


def _z(level: str) -> float:
    """Normal quantile for one of two two-sided statistics at 5% (warn) or 0.1% (invalid) together."""
    return NormalDist().inv_cdf(1 - {"warn": 0.05, "invalid": 0.001}[level] / 4)


def _cv_range(cv: float, n: int, level: str) -> tuple[float, float]:
    """Where the CV of n gamma gaps falls; the sample CV is biased low by about its own variance."""
    variance = (1 + cv**2) / (2 * n)
    center, half = math.log(cv) - variance, _z(level) * math.sqrt(variance)
    return math.exp(center - half), math.exp(center + half)


def _dispersion_range(center: float, n_bins: int, mean_count: float, level: str) -> tuple[float, float]:
    """Where the dispersion of n_bins counts falls, by the cube-root normal approximation of chi-square."""
    df = (n_bins - 1) / (1 + center / (2 * mean_count))  # counts are a little more variable than normal ones
    mean, sd, z = 1 - 2 / (9 * df), math.sqrt(2 / (9 * df)), _z(level)
    return center * max(mean - z * sd, 0) ** 3, center * (mean + z * sd) ** 3
