"""Checks of the client: did the generator send what was asked, when it was asked?"""

from __future__ import annotations

import numpy as np

from loadgen.analysis import metrics
from loadgen.analysis.arrival_check import ArrivalFit, fit_arrivals
from loadgen.analysis.evidence import Check, CheckVerdict, Evidence, advise, grade, start_ns

VERY_LATE_S, VERY_LATE_SHARE = 0.050, 0.01
WRITER_LAG_LIMIT_S = 1.0
CPU_LIMIT = 0.8
STALL_WARN_S, STALL_LIMIT_S = 0.100, 0.250
GC_WARN_S = 0.010
STAMP_SOURCES_MIXED = 0.01
LAG_WARN_S = 0.020  # in half of the requests
LAG_TAIL_WARN_S, LAG_TAIL_LIMIT_S = 0.100, 0.250  # in a tenth of them


def lateness(e: Evidence) -> Check:
    """p99 of send - intended against the larger of a floor and a share of TTFT; and very late sends."""
    limit = f"warn {e.lateness_limit_s * 500:.1f} ms, invalid {e.lateness_limit_s * 1000:.1f} ms"
    if not len(e.lateness_s):
        return Check("lateness", "n/a", None, limit, "No measured request was sent.")
    p99 = float(np.percentile(e.lateness_s, 99))
    late = float((e.lateness_s > VERY_LATE_S).mean())
    verdict = "invalid" if late > VERY_LATE_SHARE else grade(p99, e.lateness_limit_s / 2, e.lateness_limit_s)
    text = (
        f"99% of {len(e.lateness_s)} sends left within {p99 * 1000:.2f} ms of their time; {late:.1%} over 50 ms late."
    )
    advice = "Give the client more CPU, lower the rate, or move it off the server's machine."
    return Check("lateness", verdict, p99, limit, text + advise(verdict, advice))


def offered_load(e: Evidence) -> Check:
    """Sends made over sends due; a request whose connection failed was made."""
    limit = "warn below 0.999, invalid below 0.99"
    due = metrics.n_due(e.log, e.records)
    if not due:
        return Check("offered load", "invalid", None, limit, "Nothing was due in the window: measure longer.")
    if e.log.interrupted:
        return Check("offered load", "warn", None, limit, f"The point was interrupted after {due} requests came due.")
    made = sum(r.sent_at_ns is not None or r.status == "failed" for r in e.measured)
    verdict = grade(1 - made / due, 1 - 0.999 + 1e-12, 1 - 0.99 + 1e-12)
    advice = "The client did not deliver its schedule: lower the rate or raise load.max_in_flight."
    return Check(
        "offered load", verdict, made / due, limit, f"{made} of {due} due sends were made." + advise(verdict, advice)
    )


def loop_lag(e: Evidence) -> Check:
    """p99 lag of a probe that wants to wake every 10 ms, against the lateness limit; and its longest lag.

    For so long nothing was sent and nothing was read. A single stall is too rare for a p99, and still makes a hole.
    """
    limit = f"warn {e.lateness_limit_s * 500:.1f} ms, invalid {e.lateness_limit_s * 1000:.1f} ms, once 250 ms"
    lag = e.log.loop_lag_p99_s
    if lag is None:
        return Check("loop lag", "n/a", None, limit, "The event loop was not probed.")
    stall = e.log.loop_stall_max_s or 0.0
    usual, worst = grade(lag, e.lateness_limit_s / 2, e.lateness_limit_s), grade(stall, STALL_WARN_S, STALL_LIMIT_S)
    verdict: CheckVerdict = usual if SEVERITY[usual] >= SEVERITY[worst] else worst
    text = f"The client's event loop woke {lag * 1000:.2f} ms late (p99), {stall * 1000:.0f} ms at worst."
    advice = "The client is short of CPU, or something blocked its event loop."
    return Check("loop lag", verdict, lag, limit, text + advise(verdict, advice))


def garbage_collection(e: Evidence) -> Check:
    """Pauses by Python's garbage collector, which is switched off while a point runs."""
    limit, longest = f"warn {GC_WARN_S * 1000:.0f} ms", e.log.gc_pause_max_s
    if longest is None:
        return Check("garbage collection", "n/a", None, limit, "Pauses were not recorded.")
    verdict: CheckVerdict = "warn" if longest > GC_WARN_S else "pass"
    text = f"{e.log.gc_pauses} garbage collections, the longest {longest * 1000:.2f} ms."
    advice = "Something collects garbage while sends are due."
    return Check("garbage collection", verdict, longest, limit, text + advise(verdict, advice))


def receive_stamps(e: Evidence) -> Check:
    """Where the instants of reads come from, and how long received bytes waited until the client read them.

    With the kernel's stamps a wait by itself changes no instant; but tokens that wait together are read together, and
    share the instant of the last. Two sources in one point are not comparable with each other.
    """
    limit = (
        f"warn: mixed over {STAMP_SOURCES_MIXED:.0%}, waits of {LAG_WARN_S * 1000:.0f} ms in half or "
        f"{LAG_TAIL_WARN_S * 1000:.0f} ms in a tenth of the requests; "
        f"invalid: {LAG_TAIL_LIMIT_S * 1000:.0f} ms in a tenth"
    )
    n_reads = sum(r.reads_total for r in e.measured)
    if not n_reads:
        return Check("receive stamps", "n/a", None, limit, "The source of the instants was not recorded.")
    share = sum(r.reads_kernel_stamped for r in e.measured) / n_reads
    if share <= STAMP_SOURCES_MIXED:
        text = "Instants are those of the reads: the kernel gives no receive stamps here (TLS, a proxy or the system)."
        return Check("receive stamps", "pass", share, limit, text)
    lags = [r.read_lag_max_ns / 1e9 for r in e.measured if r.reads_kernel_stamped]
    p50, p90, p99 = np.percentile(lags, [50, 90, 99])
    verdict = grade(p90, LAG_TAIL_WARN_S, LAG_TAIL_LIMIT_S)
    if verdict == "pass" and (share < 1 - STAMP_SOURCES_MIXED or p50 > LAG_WARN_S):
        verdict = "warn"
    text = (
        f"{share:.1%} of {n_reads:,} reads carry the kernel's receive stamp. The longest that a request's bytes waited "
        f"to be read was {p50 * 1000:.2f} ms (p50), {p90 * 1000:.2f} ms (p90), {p99 * 1000:.2f} ms (p99)."
    )
    advice = "The client is short of CPU: tokens that waited together share one instant."
    return Check("receive stamps", verdict, share, limit, text + advise(verdict, advice))


SEVERITY: dict[CheckVerdict, int] = {"pass": 0, "warn": 1, "invalid": 2}


def client_cpu(e: Evidence) -> Check:
    """CPU of the client's process, of the one core it can use."""
    share = e.log.client_cpu_share
    if share is None:
        return Check("client CPU", "n/a", None, "warn over 80%", "The client's CPU time is unknown.")
    verdict: CheckVerdict = "warn" if share > CPU_LIMIT else "pass"
    text = f"The client used {share:.0%} of a core." + advise(verdict, "Latencies near its limit include the client.")
    return Check("client CPU", verdict, share, "warn over 80%", text)


def shed(e: Evidence) -> Check:
    """Requests that max_in_flight held back: with any, this is not the open loop that was asked."""
    n = sum(r.status == "shed" for r in e.records)
    verdict: CheckVerdict = "invalid" if n else "pass"
    advice = (
        "The server could not take the load and the safety stop hid it: lower the rate or raise load.max_in_flight."
    )
    return Check("shed", verdict, n, "0", f"{n} requests were held back by max_in_flight." + advise(verdict, advice))


def records_writing(e: Evidence) -> Check:
    """The queue to the disk: full, or a record that waited over a second."""
    log = e.log
    full = log.writer_backlog_max >= max(log.writer_backlog_limit, 1)
    verdict: CheckVerdict = "invalid" if full or log.writer_lag_max_s > WRITER_LAG_LIMIT_S else "pass"
    text = f"At worst {log.writer_backlog_max} records waited for the disk, one for {log.writer_lag_max_s:.2f} s."
    limit = f"backlog {log.writer_backlog_limit}, lag {WRITER_LAG_LIMIT_S:.0f} s"
    advice = "Write to a faster disk (--out)."
    return Check("records writing", verdict, log.writer_lag_max_s, limit, text + advise(verdict, advice))


def arrivals(e: Evidence) -> Check:
    """CV and dispersion of the sends against the asked process; open loop only.

    A seed may draw counts that are unusual for the process. Where the plan itself has them and its CV is the
    process's, that is no fault of the sends, and the verdict is one level milder.
    """
    log = e.log
    if log.mode == "closed":
        return Check("arrivals", "n/a", None, "", "Closed loop: the server's answers make the arrivals.")
    if any(r.limit_delay_ns for r in e.measured):
        return Check("arrivals", "n/a", None, "", "The client's own limit made the arrivals.")
    fit = _fit(e, [start for r in e.measured if (start := start_ns(r)) is not None])
    limit = "warn outside 95%, invalid outside 99.9% of the sampling error"
    if fit.cv is None or fit.dispersion is None:
        return Check("arrivals", "n/a", None, limit, f"{fit.n} sends are too few, or the process is unknown.")
    name = log.arrivals if isinstance(log.arrivals, str) else next(iter(log.arrivals))
    text = (
        f"{fit.n} sends: gap CV {fit.cv:.2f}, dispersion {fit.dispersion:.2f}; 95% range for {name}: {fit.warn_range}."
    )
    planned = _fit(e, [r.intended_at_ns for r in e.measured])
    verdict: CheckVerdict = fit.verdict
    if fit.cv_inside and planned.cv_inside and planned.verdict == verdict and verdict in MILDER:
        verdict = MILDER[verdict]
        text += " The schedule itself was drawn so; the sends kept to it."
    advice = "One schedule in twenty falls outside by chance; another seed tells."
    return Check("arrivals", verdict, fit.cv, limit, text + advise(verdict, advice))


MILDER: dict[CheckVerdict, CheckVerdict] = {"invalid": "warn", "warn": "pass"}


def _fit(e: Evidence, at_ns: list[int]) -> ArrivalFit:
    begin_ns, end_ns = metrics.window_ns(e.log)
    at_s = (np.array(at_ns, dtype=np.int64) - begin_ns) / 1e9
    return fit_arrivals(at_s, e.log.arrivals, 0.0, (end_ns - begin_ns) / 1e9)
