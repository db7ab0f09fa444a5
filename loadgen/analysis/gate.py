"""The regression gate: pairs of runs in, a verdict with intervals out. Pure; who runs the pairs is not its business."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from statistics import fmean, stdev
from typing import Literal

from loadgen.analysis.student_t import t_quantile, t_tail

GateVerdict = Literal["PASS", "FAIL", "INCONCLUSIVE", "EXTEND"]

LOOKS = (5, 8, 12)  # pairs after which the data is looked at
ALPHA = 0.022  # two-sided, for each look: three looks make 5% together (Pocock)


@dataclass(frozen=True, slots=True)
class Margin:
    """How much worse the candidate may be. `limit` is a share for a ratio (0.05: 5% more, or 5% less where higher is
    better) and an absolute difference for `error_rate` (0.01: one point)."""

    limit: float
    higher_is_better: bool = False
    difference: bool = False

    @property
    def tolerated(self) -> float:
        """The limit on the scale of `harm`: larger is worse."""
        if self.difference:
            return self.limit
        return -math.log1p(-self.limit) if self.higher_is_better else math.log1p(self.limit)


@dataclass(frozen=True, slots=True)
class MetricDecision:
    """One gated metric. `change` and `interval` are candidate/baseline - 1 (a difference for error_rate); the interval
    has confidence 1 - ALPHA. `p_regression` is one-sided for "worse than the margin", adjusted by Holm over the
    metrics."""

    metric: str
    verdict: GateVerdict
    n_pairs: int
    change: float | None
    interval: tuple[float, float] | None
    margin: float
    p_regression: float | None


@dataclass(frozen=True, slots=True)
class GateDecision:
    """The verdict over all metrics; `next_look` is the number of pairs to have before deciding again (EXTEND only)."""

    verdict: GateVerdict
    metrics: tuple[MetricDecision, ...]
    n_pairs: int
    next_look: int | None


def _default_margins() -> dict[str, Margin]:
    margins = {}
    for metric in ("ttft", "ttfo", "tpot", "itl", "e2e"):
        for stat in ("p50", "p90", "p95", "p99", "mean"):
            wide = stat == "p99" or metric in ("ttft", "ttfo")
            margins[f"{metric}_{stat}"] = Margin(0.10 if wide else 0.05)
    margins["goodput"] = Margin(0.05, higher_is_better=True)
    margins["output_tps"] = Margin(0.05, higher_is_better=True)
    margins["error_rate"] = Margin(0.01, difference=True)
    return margins


MARGINS: dict[str, Margin] = _default_margins()
DEFAULT_METRICS = ("ttft_p95", "tpot_p50", "tpot_p95", "e2e_p50", "e2e_p95", "goodput", "error_rate")


def parse_margin(text: str) -> tuple[str, Margin]:
    """Read "ttft_p95=10%", "goodput=-5%" or "error_rate=1" (points, with or without %); raises ValueError with
    advice."""
    name, equals, amount = (part.strip() for part in text.partition("="))
    if name not in MARGINS:
        near = get_close_matches(name, MARGINS, 1)
        raise ValueError(f"unknown metric {name!r} in {text!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    default = MARGINS[name]
    bare = amount.removesuffix("%").removesuffix("points").removesuffix("point").strip()
    if not equals or (bare == amount and not default.difference):
        raise ValueError(f"{text!r}: a margin looks like {name}={default.limit:.0%}")
    try:
        limit = float(bare) / 100
    except ValueError:
        raise ValueError(f"{text!r}: {amount!r} is not a percentage") from None
    limit = abs(limit) if default.higher_is_better else limit
    if not 0 < limit < (1 if default.higher_is_better else math.inf):
        raise ValueError(f"{text!r}: a margin is above 0%" + (" and below 100%" if default.higher_is_better else ""))
    return name, Margin(limit, default.higher_is_better, default.difference)


def effect(metric: str, baseline: float | None, candidate: float | None) -> float | None:
    """What a pair contributes: log(candidate/baseline), the plain difference for error_rate; None if it is
    undefined."""
    if baseline is None or candidate is None:
        return None
    if metric in MARGINS and MARGINS[metric].difference:
        return candidate - baseline
    return math.log(candidate / baseline) if baseline > 0 and candidate > 0 else None


def decide(pairs: Mapping[str, Sequence[float]], margins: Mapping[str, Margin] = MARGINS) -> GateDecision:
    """Decide from the per-pair effects of each metric (see `effect`).

    A metric fails if the lower bound of its Student t interval exceeds the margin (Holm over the metrics, since one
    false alarm fails the build) and passes if the upper bound is below it. The build fails with any metric and passes
    with all; else it is extended to 8, then 12 pairs, then INCONCLUSIVE. Before 5 pairs it is always EXTEND.
    """
    if not pairs:
        raise ValueError("a gate needs at least one metric")
    n_pairs = max(len(effects) for effects in pairs.values())
    next_look = next((look for look in LOOKS if look > n_pairs), None)
    undecided: GateVerdict = "EXTEND" if next_look else "INCONCLUSIVE"
    tails = {name: _p_regression(effects, margins[name]) for name, effects in pairs.items()}
    adjusted = holm({name: tail for name, tail in tails.items() if tail is not None})
    decisions = tuple(
        _metric(name, effects, margins[name], adjusted.get(name), undecided) for name, effects in pairs.items()
    )
    verdicts = {decision.verdict for decision in decisions}
    verdict: GateVerdict = "FAIL" if "FAIL" in verdicts else "PASS" if verdicts == {"PASS"} else undecided
    return GateDecision(verdict, decisions, n_pairs, next_look if verdict == "EXTEND" else None)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down adjusted p-values."""
    adjusted, running = {}, 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        running = max(running, min((len(p_values) - rank) * p, 1.0))
        adjusted[name] = running
    return adjusted


def _harms(effects: Sequence[float], margin: Margin) -> list[float]:
    """Effects turned so that larger is worse."""
    if not all(math.isfinite(each) for each in effects):
        raise ValueError("an undefined effect must be left out, not passed as NaN or infinity")
    return [-each if margin.higher_is_better else each for each in effects]


def _center_and_error(harms: Sequence[float]) -> tuple[float, float]:
    return fmean(harms), stdev(harms) / math.sqrt(len(harms))


def _p_regression(effects: Sequence[float], margin: Margin) -> float | None:
    """One-sided p for "the harm exceeds the margin"."""
    harms = _harms(effects, margin)
    if len(harms) < LOOKS[0]:
        return None
    center, error = _center_and_error(harms)
    excess = center - margin.tolerated
    if error == 0:
        return 0.0 if excess > 0 else 1.0
    return t_tail(excess / error, len(harms) - 1)


def _metric(
    name: str, effects: Sequence[float], margin: Margin, p_adjusted: float | None, undecided: GateVerdict
) -> MetricDecision:
    harms = _harms(effects, margin)
    if len(harms) < 2:
        return MetricDecision(name, undecided, len(harms), None, None, margin.limit, None)
    center, error = _center_and_error(harms)
    half = t_quantile(1 - ALPHA / 2, len(harms) - 1) * error
    verdict = undecided
    if p_adjusted is not None and p_adjusted < ALPHA / 2:
        verdict = "FAIL"
    elif p_adjusted is not None and center + half < margin.tolerated:
        verdict = "PASS"
    low, high = sorted((_change(center - half, margin), _change(center + half, margin)))
    return MetricDecision(name, verdict, len(harms), _change(center, margin), (low, high), margin.limit, p_adjusted)


def _change(harm: float, margin: Margin) -> float:
    """A harm as people read it: +0.05 is 5% more of the metric, in whichever direction that is good."""
    if margin.difference:
        return harm
    return math.expm1(-harm if margin.higher_is_better else harm)
