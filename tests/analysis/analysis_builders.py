"""Hand-made records, logs and queues for the tests of the analysis."""

from __future__ import annotations

import heapq
from array import array
from typing import Any

import numpy as np

from loadgen.collectors.records import PointLog, RequestRecord

S = 1_000_000_000
T0_NS = 5_000 * S


def record(
    at_s: float = 0.0,
    ttft_s: float | None = 0.1,
    gaps_s: tuple[float, ...] = (),
    *,
    events: tuple[int, ...] | None = None,
    late_s: float = 0.0,
    phase: Any = "measured",
    status: Any = "ok",
    index: int = 0,
    end_s: float | None = None,
    **changes: Any,
) -> RequestRecord:
    """A request intended at `at_s` after T0, whose first token came `ttft_s` after its send and the others at `gaps_s`.

    `end_s` counts from the send; by default the stream ends with its last token.
    """
    intended = T0_NS + round(at_s * S)
    sent = intended + round(late_s * S)
    result = RequestRecord(0, index, phase, status, intended, 1.8e9 + at_s, dispatched_at_ns=sent, sent_at_ns=sent)
    if ttft_s is not None:
        reads = [0, *(round(gap * S) for gap in gaps_s)]
        result.gap_ns, result.gap_events = array("q", reads), array("i", events or [1] * len(reads))
        result.gap_bytes = array("i", [40] * len(reads))
        result.first_token_at_ns = result.first_answer_at_ns = sent + round(ttft_s * S)
        result.last_token_at_ns = result.first_token_at_ns + sum(reads)
        result.n_token_events = sum(result.gap_events)
        result.output_tokens, result.output_tokens_source = result.n_token_events, "events"
        result.finish_reason = "length" if status == "ok" else None
    result.stream_end_at_ns = sent + round(end_s * S) if end_s is not None else result.last_token_at_ns
    for name, value in changes.items():
        setattr(result, name, value)
    return result


def log(records: list[RequestRecord], window_s: tuple[float, float] = (0.0, 10.0), **changes: Any) -> PointLog:
    """The log of a healthy open-loop point, window `window_s` after T0; in-flight is integrated from the records."""
    start, end = (T0_NS + round(edge * S) for edge in window_s)
    closed = max([end, *(r.stream_end_at_ns or 0 for r in records)])
    values: dict[str, Any] = {
        "point": 0,
        "mode": "open",
        "rate_rps": 1.0,
        "concurrency": None,
        "t0_ns": T0_NS,
        "t0_wall_s": 1.8e9,
        "window_start_ns": start,
        "window_end_ns": end,
        "closed_at_ns": closed,
        "due_measured": sum(r.phase == "measured" for r in records),
        "in_flight_mean": in_flight(records, np.array([start, end]))[0] if end > start else None,
        "in_flight_max": 1,
        "bin_s": 0.1,
        "in_flight_bins": in_flight(records, np.arange(T0_NS, closed + 1, S // 10)).tolist(),
        "loop_lag_p99_s": 0.001,
        "client_cpu_share": 0.2,
        "writer_backlog_max": 1,
        "writer_backlog_limit": 5000,
        "writer_lag_max_s": 0.01,
        "arrivals": "poisson",
    }
    return PointLog(**{**values, **changes})


def in_flight(records: list[RequestRecord], edges_ns: np.ndarray) -> np.ndarray:
    """Time averages of the number in flight between successive edges."""
    spans = [(r.sent_at_ns, r.stream_end_at_ns) for r in records if r.sent_at_ns and r.stream_end_at_ns]
    starts, ends = (
        (np.sort(np.array(side, dtype=np.float64)) for side in zip(*spans, strict=True)) if spans else ([], [])
    )

    def area(instants: np.ndarray) -> np.ndarray:
        """Integral of (instant - start)+ over requests minus that of (instant - end)+."""
        return _ramp(np.asarray(starts), instants) - _ramp(np.asarray(ends), instants)

    return np.diff(area(edges_ns.astype(np.float64))) / np.diff(edges_ns)


def _ramp(at: np.ndarray, instants: np.ndarray) -> np.ndarray:
    origin = float(T0_NS)
    sums = np.concatenate(([0.0], np.cumsum(at - origin)))
    n = np.searchsorted(at, instants)
    return n * (instants - origin) - sums[n]


def queue(
    rate_rps: float,
    service_s: Any,
    n_servers: int,
    seconds: float,
    rng: np.random.Generator,
    warmup_s: float = 5.0,
    patience_s: float = 60.0,
) -> tuple[PointLog, list[RequestRecord]]:
    """A load point against a FIFO queue with `n_servers`; service_s is a number, or a function of the generator.

    Whatever has not ended `patience_s` after the window is unfinished.
    """
    total, closed = warmup_s + seconds, warmup_s + seconds + patience_s
    n = int(rate_rps * total + 10 * np.sqrt(rate_rps * total) + 10)
    arrivals = np.cumsum(rng.exponential(1 / rate_rps, n))
    free = [0.0] * n_servers
    records = []
    for index, at in enumerate(arrivals[arrivals < total]):
        service = float(service_s(rng) if callable(service_s) else service_s)
        begin = max(at, heapq.heappop(free))
        heapq.heappush(free, begin + service)
        phase = "warmup" if at < warmup_s else "measured"
        first = begin + 0.2 * service - at
        gaps = (0.4 * service, 0.4 * service)
        made = record(at, first, gaps, phase=phase, index=index)
        if begin + service > closed:
            seen = first if at + first < closed else None
            made = record(at, seen, phase=phase, status="unfinished", index=index, end_s=closed - at)
        records.append(made)
    window = (warmup_s, total)
    return log(records, window, rate_rps=rate_rps, closed_at_ns=T0_NS + round(closed * S)), records
