"""summary.json from a run's records: the contract between the analysis and whoever reads it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.analysis import admission, metrics
from loadgen.analysis.censoring import censored_distribution
from loadgen.analysis.evidence import Evidence
from loadgen.analysis.fluidity import fluidity
from loadgen.analysis.goodput import Objective, goodput
from loadgen.analysis.knee import Rung, find_knee, max_throughput
from loadgen.analysis.metrics import Since
from loadgen.analysis.percentiles import Blocks, Floats, distribution, empty
from loadgen.analysis.server_checks import cached_share
from loadgen.analysis.timeouts import e2e_with_timeouts
from loadgen.analysis.validity import Certificate, certify
from loadgen.collectors.records import PointLog, RequestRecord

SCHEMA_VERSION = 1
WITHHELD = "withheld: the queue grows (NONSTATIONARY)"
NO_ROOFLINE = "bound unknown: tell me the hardware (--hardware, --model-config)"
MULTI_TOKEN_SHARE = 0.01  # ITL is n/a when more answers than this have events that are not one token each
MESSAGE_CHARS = 300
SOURCES = ("usage", "event_counts", "tokenizer", "events")  # of token counts, best first

Point = tuple[PointLog, list[RequestRecord]]
BoundAt = Callable[[Sequence[RequestRecord], float], Mapping[str, Any]]
Latency = Callable[[RequestRecord, Since], float | None]
HasEnded = Callable[[RequestRecord], bool]


def summarize_run(
    manifest: Mapping[str, Any],
    points: Sequence[Point],
    *,
    objectives: Sequence[Objective] = (),
    conditions: Mapping[str, str] | None = None,
    roofline: Mapping[str, Any] | None = None,
    bound_at: BoundAt | None = None,
    cached_share_intended: float | None = None,
) -> dict[str, Any]:
    """Everything that summary.json holds, ready for a strict JSON writer.

    points: in the order in which they ran. bound_at(complete answers, concurrency): the roofline at a point, as the
    `bound` object of the contract.
    """
    measures = [measure(log, records, objectives, bound_at) for log, records in points]
    best_tps = max((m.row["output_tps"] for m in measures if m.row["output_tps"]), default=None)
    for each in measures:
        conclude(each, best_tps, cached_share_intended)
    rows = [each.row for each in measures]
    result = {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "openloop", "version": manifest.get("version", "unknown")} | dict(manifest.get("tool") or {}),
        "run_id": manifest.get("run_id"),
        "created_utc": manifest.get("created_utc"),
        "finished": bool(manifest.get("finished", False)) and not any(log.interrupted for log, _ in points),
        "mode": manifest.get("mode") or (points[0][0].mode if points else None),
        "scenario": manifest.get("scenario", {}),
        "schedule_id": manifest.get("schedule_id"),
        "scaled_for_cpu": bool(manifest.get("scaled_for_cpu", False)),
        "simulated": bool(manifest.get("simulated")),
        "notes": list(manifest.get("notes", [])),
        "conditions": dict(conditions or {}),
        "slo": slo(rows, objectives),
        "points": rows,
        "knee": knee(rows, roofline or {}),
        "roofline": dict(roofline) if roofline is not None else {"curve": [], "reason": NO_ROOFLINE},
        "definitions": {name: metrics.definition(each) for name, each in DEFINED.items()},
        "aliases": metrics.ALIASES,
    }
    scrubbed: dict[str, Any] = scrub(result)
    return scrubbed


DEFINED: dict[str, Callable[..., Any]] = {
    **metrics.DEFINED,
    "fluidity": fluidity,
    "goodput_rps": goodput,
    "e2e_with_timeouts": e2e_with_timeouts,
    "connecting": admission.connecting,
    "rejections": admission.rejections,
    "client_limit": admission.limited,
}


@dataclass
class Measure:
    """A point with its figures, before its verdict is known."""

    log: PointLog
    records: list[RequestRecord]
    row: dict[str, Any]


def glance(log: PointLog, records: list[RequestRecord], bound_at: BoundAt | None) -> Measure:
    """What a ladder decides by and the live line tells: a fraction of the figures, in a fraction of the time."""
    window, seconds = metrics.measured(records), metrics.window_s(log)
    throughput = metrics.output_tps(log, records)
    bound = point_bound(window, log.in_flight_mean, bound_at)
    row = {
        "index": log.point,
        "rate_rps": log.rate_rps,
        "concurrency_target": log.concurrency,
        "window_s": seconds,
        "concurrency_mean": metrics.concurrency_mean(log),
        "concurrency_max": log.in_flight_max,
        "offered_rps": metrics.n_due(log, records) / seconds if seconds else None,
        "achieved_rps": metrics.achieved_rps(log, records),
        "output_tps": throughput,
        **counts(log, records, window),
        "bound": bound,
        "bound_fraction": throughput / bound["output_tps"] if throughput and bound["output_tps"] else None,
        "metrics": {"ttft": _both(_answering(window), log.mode, *LATENCIES["ttft"])},
    }
    return Measure(log, records, row)


def measure(
    log: PointLog, records: list[RequestRecord], objectives: Sequence[Objective], bound_at: BoundAt | None
) -> Measure:
    """All figures of one load point."""
    first = glance(log, records, bound_at).row
    window = metrics.measured(records)
    good_rps, attainment = goodput(log, records, objectives)
    gaps = metrics.pooled_gaps(_answering(window), "n_events")
    row = first | {
        "running_mean": metrics.running_mean(first["output_tps"], window),
        "output_tps_ci95": metrics.output_tps_interval(log, records),
        "prompt_tps": metrics.prompt_tps(log, records),
        "metrics": first["metrics"] | distributions(window, log.mode, gaps),
        "decode_rate_tps": metrics.decode_rate_tps(log.in_flight_mean, window),
        "prefill_rate_tps": metrics.prefill_rate_tps(window),
        "goodput_rps": good_rps,
        "attainment": attainment,
        "errors": error_table(window),
        "e2e_with_timeouts": e2e_with_timeouts(window, "intended" if log.mode == "open" else "sent"),
        "connecting": admission.connecting(window),
        "rejections": admission.rejections(window),
        "client_limit": admission.limited(window),
        "tokens": token_table(window),
        "stalls": metrics.stalls(gaps[0], limit_of(objectives, "itl")),
        "fluidity": fluidity_of(window, log.mode, objectives),
        "time_line": metrics.time_line(log),
    }
    return Measure(log, records, row)


def conclude(measure: Measure, best_tps: float | None, cached_share_intended: float | None) -> Certificate:
    """Add the certificate, and withhold what a growing queue makes meaningless."""
    row = measure.row
    certificate = certify(
        Evidence(
            measure.log,
            measure.records,
            output_tps=row["output_tps"],
            bound_tps=row["bound"]["output_tps"],
            best_tps=best_tps,
            cached_share_intended=cached_share_intended,
        )
    )
    if certificate.verdict == "NONSTATIONARY":
        row |= {name: withhold(row[name]) for name in ("metrics", "e2e_with_timeouts") if name in row}  # glance has one
        row["fluidity"] = {"share": None, "reason": WITHHELD}
    row["validity"] = certificate.as_dict()
    return certificate


# --- latency ------------------------------------------------------------------------------------------------------


LATENCIES: dict[str, tuple[Latency, HasEnded]] = {
    "ttft": (metrics.ttft, lambda r: r.first_token_at_ns is not None),
    "ttfo": (metrics.ttfo, lambda r: r.first_answer_at_ns is not None),
    "e2e": (metrics.e2e, lambda r: r.status == "ok"),
}


def distributions(window: Sequence[RequestRecord], mode: str, gaps: tuple[Floats, Blocks]) -> dict[str, Any]:
    """The latency metrics of the measured requests but TTFT, which `glance` has; `gaps` are their event gaps."""
    answering = _answering(window)
    result: dict[str, Any] = {name: _both(answering, mode, *LATENCIES[name]) for name in ("ttfo", "e2e")}
    tpots = [each for r in window if r.status == "ok" and (each := metrics.tpot(r)) is not None]
    event_gap = distribution(*gaps)
    return result | {"itl": _itl(answering, event_gap), "tpot": distribution(tpots), "event_gap": event_gap}


def _answering(window: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Requests that belong into latency distributions: complete ones, and those that had not ended (censored)."""
    return [r for r in window if r.status in ("ok", "unfinished")]


def _both(records: Sequence[RequestRecord], mode: str, metric: Latency, has_ended: HasEnded) -> dict[str, Any]:
    """One latency counted both ways; from `intended` only in open loop."""
    return {
        "from_intended": _latency(records, metric, has_ended, "intended") if mode == "open" else None,
        "from_sent": _latency(records, metric, has_ended, "sent"),
    }


def _latency(records: Sequence[RequestRecord], metric: Latency, has_ended: HasEnded, since: Since) -> dict[str, Any]:
    """The distribution of one latency; a request that had not come so far counts as "at least as long as it waited"."""
    values, censored = [], []
    for record in records:
        ended = has_ended(record)
        value = metric(record, since) if ended else _waited(record, since)
        if value is not None and (ended or record.status == "unfinished"):
            values.append(value)
            censored.append(not ended)
    return censored_distribution(values, censored)


def _waited(record: RequestRecord, since: Since) -> float | None:
    begin = record.intended_at_ns if since == "intended" else record.sent_at_ns
    return None if begin is None or record.stream_end_at_ns is None else (record.stream_end_at_ns - begin) / 1e9


def _itl(records: Sequence[RequestRecord], event_gap: dict[str, Any]) -> dict[str, Any]:
    placed = [r for r in records if metrics.tokens_are_placed(r)]
    if len(placed) < (1 - MULTI_TOKEN_SHARE) * len(records):
        per_event = metrics.tokens_per_event(records)
        known = f"{per_event:.2f} tokens per event" if per_event else "tokens and events differ in number"
        return empty(f"n/a: {known}; see the event gap")
    if len(placed) == len(records) and not any(r.gap_tokens for r in records):
        return event_gap | {}
    return distribution(*metrics.pooled_gaps(placed, "n_tokens"))


def limit_of(objectives: Sequence[Objective], metric: str) -> float | None:
    """The strictest limit that the objectives set on a metric, in seconds."""
    return min((o.limit_s for o in objectives if o.metric == metric), default=None)


def fluidity_of(window: Sequence[RequestRecord], mode: str, objectives: Sequence[Objective]) -> dict[str, Any]:
    """{share, reason}: the fluidity index of the measured requests, or why there is none."""
    itl_limit_s = limit_of(objectives, "itl")
    if itl_limit_s is None:
        return {"share": None, "reason": "no ITL objective: tokens have no deadlines"}
    since: Since = "intended" if mode == "open" else "sent"
    share = fluidity(_answering(window), itl_limit_s, limit_of(objectives, "ttft"), since)
    return {"share": share, "reason": None if share is not None else "no tokens: no answer had one"}


def withhold(node: dict[str, Any]) -> dict[str, Any]:
    """The same distributions without figures: under a growing queue they depend on how long one waits."""
    if "p50" in node:
        return empty(WITHHELD, node["n"])
    return {name: withhold(child) if child is not None else None for name, child in node.items()}


# --- counts, tokens, bound ----------------------------------------------------------------------------------------


def counts(log: PointLog, records: Sequence[RequestRecord], window: Sequence[RequestRecord]) -> dict[str, Any]:
    """What became of the requests that were due in the window."""
    status = Counter(r.status for r in window)
    return {
        "failed": status["failed"],
        "unfinished": status["unfinished"],
        "counts": {
            "due": metrics.n_due(log, records),
            "sent": sum(r.sent_at_ns is not None for r in window),
            **{name: status[name] for name in ("ok", "failed", "unfinished", "shed")},
        },
    }


def error_table(window: Sequence[RequestRecord]) -> list[dict[str, Any]]:
    """Errors by class and message, the most frequent first."""
    kinds = Counter(
        (r.error_class or "unknown", (r.error or "")[:MESSAGE_CHARS]) for r in window if r.status == "failed"
    )
    return [{"class": kind, "message": text, "count": n} for (kind, text), n in kinds.most_common()]


def token_table(window: Sequence[RequestRecord]) -> dict[str, Any]:
    """Where the token counts come from, and what they are on average, over complete answers."""
    answers = [r for r in window if r.status == "ok"]
    source = Counter(r.output_tokens_source for r in answers)
    return {
        "source": {name: source[name] for name in SOURCES if source[name] or name in ("usage", "events")},
        "per_event": metrics.tokens_per_event(answers),
        "prompt_mean": _mean([r.prompt_tokens for r in answers]),
        "output_mean": _mean([r.output_tokens for r in answers]),
        "cached_share": cached_share(answers),
    }


def _mean(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def point_bound(window: Sequence[RequestRecord], concurrency: float | None, bound_at: BoundAt | None) -> dict[str, Any]:
    """The roofline for the lengths that were really served, at the concurrency that was really there."""
    nothing = dict.fromkeys(("output_tps", "limiter", "bandwidth_tps", "compute_tps", "latency_tps"))
    answers = [r for r in window if r.status == "ok" and r.output_tokens]
    if bound_at is None:
        return {**nothing, "reason": NO_ROOFLINE}
    if not answers or not concurrency:
        return {**nothing, "reason": "no complete answer to compute a bound for"}
    return {**nothing, "reason": None, **bound_at(answers, concurrency)}


# --- the sweep ----------------------------------------------------------------------------------------------------


def slo(rows: Sequence[dict[str, Any]], objectives: Sequence[Objective]) -> dict[str, Any]:
    """The objectives, and the point with the highest throughput that met all of them and is VALID or WARN."""
    stated = [{"metric": o.metric, "stat": o.stat, "limit_s": o.limit_s} for o in objectives]
    if not objectives:
        return {"objectives": [], "best_point": None, "reason": "the scenario states no objective"}
    counted = [i for i, row in enumerate(rows) if row["validity"]["verdict"] in ("VALID", "WARN") and row["output_tps"]]
    meeting = [i for i in counted if all(_point_meets(rows[i], o) for o in objectives)]
    if meeting:
        return {"objectives": stated, "best_point": max(meeting, key=lambda i: rows[i]["output_tps"]), "reason": None}
    met = [[_point_meets(rows[i], o) for o in objectives] for i in counted]
    # A point that lacks a figure and misses nothing else may have met them all.
    undecided = any(None in point and False not in point for point in met)
    reason = "no VALID point met every objective"
    if undecided:
        reason = "some points lack the figure (see their needs and reasons)"
    return {"objectives": stated, "best_point": None, "reason": reason, "undecided": undecided}


def _point_meets(row: dict[str, Any], objective: Objective) -> bool | None:
    """Whether a point's statistic is within the limit; None if it has no such statistic."""
    found = row["metrics"][objective.metric]
    found = found if "p50" in found else found["from_intended"] or found["from_sent"]
    value = found.get(objective.stat)
    return None if value is None else value <= objective.limit_s


def rungs(rows: Sequence[dict[str, Any]]) -> list[Rung]:
    """The points as `knee` reads them."""
    return [
        Rung(r["rate_rps"], r["concurrency_mean"], r["output_tps"], r["validity"]["verdict"], r["achieved_rps"])
        for r in rows
    ]


def knee(rows: Sequence[dict[str, Any]], roofline: Mapping[str, Any]) -> dict[str, Any]:
    """The measured knee beside the model's (`knee_concurrency` of the roofline)."""
    points = rungs(rows)
    found = find_knee(points)
    model = roofline.get("knee_concurrency")
    measured = None
    if found is not None:
        measured = {
            "point": found,
            "concurrency": points[found].concurrency,
            "output_tps": points[found].output_tps,
            "x_max_tps": max_throughput(points),
        }
    return {
        "measured": measured,
        "model": {"concurrency": model} if model is not None else None,
        "reason": None if measured else "no point that counts (all INVALID or without a token)",
    }


def scrub(node: Any) -> Any:
    """Plain JSON values only: NaN and infinities become None, -0.0 becomes 0.0, numpy values and tuples become
    Python's."""
    if isinstance(node, Mapping):
        return {str(key): scrub(value) for key, value in node.items()}
    if isinstance(node, np.ndarray | list | tuple):
        return [scrub(value) for value in node]
    if isinstance(node, np.generic):
        node = node.item()
    if isinstance(node, float):
        return node + 0.0 if math.isfinite(node) else None
    return node
