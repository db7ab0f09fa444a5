"""Goodput: how much of what was scheduled met all objectives at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.analysis import metrics
from loadgen.analysis.metrics import Since
from loadgen.analysis.percentiles import quantile
from loadgen.collectors.records import PointLog, RequestRecord


@dataclass(frozen=True, slots=True)
class Objective:
    """One service-level objective: `stat` ("p95", "mean") of `metric` (ttft, ttfo, e2e, tpot, itl) at most
    `limit_s`."""

    metric: str
    stat: str
    limit_s: float


def goodput(
    log: PointLog, records: Sequence[RequestRecord], objectives: Sequence[Objective]
) -> tuple[float | None, float | None]:
    """Goodput: requests/s that met every objective at once, limits included, and attainment: their share of everything
    scheduled in the window. Failed, unfinished and shed requests count as misses. Null without objectives."""
    due, seconds = metrics.n_due(log, records), metrics.window_s(log)
    if not objectives or not due or not seconds:
        return None, None
    since: Since = "intended" if log.mode == "open" else "sent"
    good = sum(is_good(r, objectives, since) for r in records if r.phase == "measured")
    return good / seconds, good / due


def is_good(record: RequestRecord, objectives: Sequence[Objective], since: Since) -> bool:
    """Whether the request was answered completely and each of its values is within its limit."""
    return record.status == "ok" and all(_meets(record, objective, since) for objective in objectives)


def _meets(record: RequestRecord, objective: Objective, since: Since) -> bool:
    value = request_value(record, objective, since)
    if value is None:  # an answer of one token has no gap that could be too long; one without an answer token is a miss
        return objective.metric in ("tpot", "itl")
    return value <= objective.limit_s


def request_value(record: RequestRecord, objective: Objective, since: Since) -> float | None:
    """What an objective looks at in one request, in seconds.

    TTFT, TTFO, E2E and TPOT are the request's own value, whatever the statistic. For ITL it is the objective's
    statistic over the request's own gaps; an event of k tokens is one gap shared over its k tokens.
    """
    if objective.metric == "tpot":
        return metrics.tpot(record)
    if objective.metric == "itl":
        return _own_itl(record, objective.stat)
    return {"ttft": metrics.ttft, "ttfo": metrics.ttfo, "e2e": metrics.e2e}[objective.metric](record, since)


def _own_itl(record: RequestRecord, stat: str) -> float | None:
    gaps = metrics.event_gap(record)
    if not len(gaps):
        return None
    value = float(gaps.mean()) if stat == "mean" else quantile(np.sort(gaps), float(stat[1:]) / 100)
    return value / max((record.output_tokens or 1) / (record.n_token_events or 1), 1.0)
