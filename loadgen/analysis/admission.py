"""What stood before a request was served: its connection, the client's own limit, and rejections by the server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from loadgen.analysis.evidence import Check, CheckVerdict, Evidence, advise
from loadgen.collectors.records import RequestRecord

# The share of requests that a token bucket holds back is how busy it is (a queue with one server). Above this the load
# is the bucket's, and a throughput that stays the same would be booked to the server.
LIMITED_SHARE = 0.8
TLS_LEAST_S = 50e-6  # no handshake is shorter; without TLS the two instants lie next to each other


def connecting(records: Iterable[RequestRecord]) -> dict[str, Any]:
    """Connecting: of the requests that opened a connection themselves, the medians of looking the name up, of TCP and
    of TLS, and of all of it with the longest; `n_reconnected` of them because the server had closed an idle one just
    then. It ends before `sent`, so it is in no latency from `sent`; latencies from `intended` include it. Null where
    nothing of the kind happened."""
    opened = [(r, r.dispatched_at_ns, r.connected_at_ns) for r in records if r.n_attempts == 1]
    cold = [(r, begun, ready) for r, begun, ready in opened if begun is not None and ready is not None]
    totals = [(ready - begun) / 1e9 for _, begun, ready in cold]
    return {
        "n": len(cold),
        "n_reconnected": sum(r.reconnected for r, _, _ in cold),
        "name_s": _median([_apart(begun, r.resolved_at_ns) for r, begun, _ in cold]),
        "tcp_s": _median([_apart(r.resolved_at_ns or begun, r.tcp_connected_at_ns) for r, begun, _ in cold]),
        "tls_s": _median(
            [tls for r, _, ready in cold if (tls := _apart(r.tcp_connected_at_ns, ready) or 0) > TLS_LEAST_S]
        ),
        "total_s": _median(totals),
        "max_s": max(totals, default=None),
    }


def rejections(records: Iterable[RequestRecord]) -> dict[str, Any]:
    """Rejections (429, or 503 with a Retry-After): requests that met any, all of them, and those of clients that had
    come back on time. `advised_s` is the median wait that the server advised at first, `needed_s` the median time from
    the first rejection until the attempt that was accepted, over requests that were accepted in the end."""
    met = [r for r in records if r.n_rejections]
    waits = [_needed_s(r) for r in met if r.n_attempts > r.n_rejections]
    return {
        "requests": len(met),
        "rejections": sum(r.n_rejections for r in met),
        "on_time_again": sum(r.n_rejections - 1 for r in met),
        "advised_s": _median([r.advised_wait_s for r in met]),
        "needed_s": _median(waits),
    }


def limited(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Client limit: requests that the client's own token bucket held back, and for how long. The delay lies between
    `intended` and `dispatched`: it is in latencies from `intended`, and never in those from `sent`."""
    delays = [r.limit_delay_ns / 1e9 for r in records if r.limit_delay_ns > 0]
    return {"n": len(delays), "p50_s": _median(delays), "max_s": max(delays, default=None)}


def _apart(begin_ns: int | None, end_ns: int | None) -> float | None:
    return None if begin_ns is None or end_ns is None else (end_ns - begin_ns) / 1e9


def _needed_s(record: RequestRecord) -> float | None:
    return _apart(record.first_rejected_at_ns, record.sent_at_ns)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


# --- the certificate's lines --------------------------------------------------------------------------------------


def check_connecting(e: Evidence) -> Check:
    """Requests that had to open a connection, and how long that took, apart from TTFT."""
    found = connecting(e.measured)
    if not found["n"]:
        return Check("connecting", "pass", 0, "", "Every request found a connection open.")
    named = (("name", "name_s"), ("TCP", "tcp_s"), ("TLS", "tls_s"))
    parts = [f"{name} {_ms(found[key])}" for name, key in named if found[key]]
    text = (
        f"{found['n']} of {len(e.measured)} requests opened a connection: {_ms(found['total_s'])} (median"
        f"{': ' if parts else ''}{', '.join(parts)}), {_ms(found['max_s'])} at worst, in no latency from sent."
    )
    if found["n_reconnected"]:
        text += f" {found['n_reconnected']} did because the server had just closed an idle one."
    return Check("connecting", "pass", found["total_s"], "", text)


def check_limit(e: Evidence) -> Check:
    """Whether the client's own limit made the load: then no figure here is the server's doing."""
    found, limit = limited(e.measured), f"warn: any held back; invalid: over {LIMITED_SHARE:.0%}"
    if not found["n"]:
        return Check("client limit", "pass", 0, limit, "The client's own limit held no request back.")
    share = found["n"] / len(e.measured)
    verdict: CheckVerdict = "invalid" if share > LIMITED_SHARE else "warn"
    text = (
        f"The client's own limit (limit) held {found['n']} of {len(e.measured)} requests back, "
        f"for {_ms(found['p50_s'])} (median), {_ms(found['max_s'])} at worst; latencies from intended include it."
    )
    advice = "The client limited the load, not the server: drive less than limit.rate, or raise it."
    return Check("client limit", verdict, share, limit, text + advise(verdict, advice))


def check_rejections(e: Evidence) -> Check:
    """Rejections, and whether the server's advice was worth following."""
    found, limit = rejections(e.measured), "warn over 0"
    if not found["requests"]:
        return Check("rejections", "pass", 0, limit, "The server turned no request away.")
    text = f"{found['requests']} requests were rejected, {found['rejections']} times in all."
    if found["advised_s"] is not None:
        text += f" Advised wait {found['advised_s']:.3g} s (median)"
        text += f", needed {found['needed_s']:.3g} s." if found["needed_s"] is not None else "."
    if found["on_time_again"]:
        text += f" {found['on_time_again']} times a client came back on time and was rejected again: bad advice."
    return Check("rejections", "warn", found["rejections"], limit, text)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
