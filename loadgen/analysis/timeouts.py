"""Latency with the requests that timed out: without them only the survivors are seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadgen.analysis import metrics
from loadgen.analysis.censoring import censored_distribution
from loadgen.analysis.metrics import Since
from loadgen.collectors.records import RequestRecord

TIMEOUTS = ("connect_timeout", "read_timeout", "total_timeout")


def e2e_with_timeouts(records: Sequence[RequestRecord], since: Since) -> dict[str, Any]:
    """E2E with timeouts: complete answers, and every request that timed out or had not ended counted as at least as
    long as it was waited for. Stands beside E2E, which leaves failed requests out."""
    values, censored = [], []
    for record in records:
        waited = metrics.e2e(record, since) if record.status == "ok" else _waited(record, since)
        if waited is not None:
            values.append(waited)
            censored.append(record.status != "ok")
    return censored_distribution(values, censored)


def timed_out(record: RequestRecord) -> bool:
    """Whether the client gave the request up."""
    return record.status == "failed" and record.error_class in TIMEOUTS


def _waited(record: RequestRecord, since: Since) -> float | None:
    begin_ns = record.intended_at_ns if since == "intended" else record.sent_at_ns
    if record.stream_end_at_ns is None or begin_ns is None or not (record.status == "unfinished" or timed_out(record)):
        return None
    return (record.stream_end_at_ns - begin_ns) / 1e9


def timeouts_text(records: Sequence[RequestRecord], since: Since) -> str:
    """A sentence for the certificate; empty without timeouts."""
    n = sum(timed_out(record) for record in records)
    if not n:
        return ""
    found = e2e_with_timeouts(records, since)
    known = [f"{name} {found[name]:.3g} s" for name in ("p50", "p90", "p95", "p99") if found[name] is not None]
    reason = (found["reason"] or "").split(": ")[0]
    parts = [*known, *([reason] if ">=" in reason else [])]
    return f" With {n} timeouts as at least their limit E2E is {', '.join(parts) or 'n/a, too few samples'}."
