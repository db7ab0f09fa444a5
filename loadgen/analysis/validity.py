"""The validity certificate: is the point what it claims to be? Every check carries its evidence, and advice if it
fails."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from loadgen.analysis import metrics
from loadgen.analysis.arrival_check import fit_arrivals
from loadgen.analysis.percentiles import Floats
from loadgen.analysis.steady_state import Trend, in_flight_trend, mser5
from loadgen.collectors.records import PointLog, RequestRecord

CheckVerdict = Literal["pass", "warn", "invalid", "nonstationary", "n/a"]
Verdict = Literal["VALID", "WARN", "INVALID", "NONSTATIONARY"]

LATENESS_FLOOR_S, LATENESS_SHARE = 0.010, 0.05  # INVALID above either, whichever is larger; WARN at half of it
VERY_LATE_S, VERY_LATE_SHARE = 0.050, 0.01
WRITER_LAG_LIMIT_S = 1.0
CPU_LIMIT = 0.8


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the certificate. `limit` and `text` are for people; `value` is the figure that was judged."""

    name: str
    verdict: CheckVerdict
    value: float | str | None
    limit: str
    text: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """The verdict of a load point with all its checks."""

    verdict: Verdict
    checks: tuple[Check, ...]

    def as_dict(self) -> dict[str, Any]:
        """As it stands in summary.json."""
        return {"verdict": self.verdict, "checks": [asdict(check) for check in self.checks]}


@dataclass(frozen=True)
class Evidence:
    """What the checks look at. `bound_tps` is the roofline's at this point; `best_tps` the best throughput of the
    sweep; `cached_share_intended` what the scenario wants from the prefix cache (None: it does not say)."""

    log: PointLog
    records: Sequence[RequestRecord]
    output_tps: float | None = None
    bound_tps: float | None = None
    best_tps: float | None = None
    cached_share_intended: float | None = None

    @cached_property
    def measured(self) -> list[RequestRecord]:
        """Requests of the window, in the order in which they were due."""
        return metrics.measured(self.records)

    @cached_property
    def lateness_s(self) -> Floats:
        """Send - intended; for a request that opened its own connection, dispatch - intended (connecting is not
        ours)."""
        starts = [(_start_ns(r), r.intended_at_ns) for r in self.measured]
        return np.array([(start - intended) / 1e9 for start, intended in starts if start is not None])

    @cached_property
    def lateness_limit_s(self) -> float:
        """p99 lateness that makes the point INVALID: max(10 ms, 5% of the median TTFT from sent)."""
        ttfts = [each for r in self.measured if (each := metrics.ttft(r, "sent")) is not None]
        return max(LATENESS_FLOOR_S, LATENESS_SHARE * float(np.median(ttfts)) if ttfts else 0.0)

    @cached_property
    def residences_s(self) -> Floats:
        """Time in flight of each measured request that was sent, in the order in which they were due."""
        return np.array([each for r in self.measured if (each := metrics.residence(r)) is not None])

    @cached_property
    def trend(self) -> Trend:
        """What in-flight did; open loop only. Batches are sized by the first quarter's residence: under overload it
        grows."""
        if self.log.mode == "closed" or not len(self.residences_s):
            return Trend("unknown")
        first = self.residences_s[: max(len(self.residences_s) // 4, 1)]
        return in_flight_trend(window_bins(self.log), self.log.bin_s, float(first.mean()))

    @property
    def grows(self) -> bool:
        """The queue grows: unfinished requests and a broken Little's law are its consequence, not faults of their
        own."""
        return self.trend.state == "growing"

    def count(self, status: str) -> int:
        """Measured requests with this status."""
        return sum(r.status == status for r in self.measured)


def certify(evidence: Evidence) -> Certificate:
    """Run all checks. INVALID (the measurement is not what it claims) comes before NONSTATIONARY (the queue grows),
    that before WARN: an overloaded server is only seen as such by a client that kept its schedule."""
    checks = tuple(check(evidence) for check in CHECKS)
    seen = {check.verdict for check in checks}
    for mark, verdict in _PRECEDENCE:
        if mark in seen:
            return Certificate(verdict, checks)
    return Certificate("VALID", checks)


_PRECEDENCE: tuple[tuple[CheckVerdict, Verdict], ...] = (
    ("invalid", "INVALID"),
    ("nonstationary", "NONSTATIONARY"),
    ("warn", "WARN"),
)


def window_bins(log: PointLog) -> list[float]:
    """The in-flight averages of the bins that lie inside the measured window."""
    start, end = metrics.window_ns(log)
    first = math.ceil(round((start - log.t0_ns) / 1e9 / log.bin_s, 6))
    last = math.floor(round((end - log.t0_ns) / 1e9 / log.bin_s, 6))
    return log.in_flight_bins[max(first, 0) : max(last, 0)]


def _start_ns(record: RequestRecord) -> int | None:
    return record.dispatched_at_ns if record.connected_at_ns is not None else record.sent_at_ns


def _grade(value: float, warn: float, invalid: float) -> CheckVerdict:
    return "invalid" if value > invalid else "warn" if value > warn else "pass"


def _advice(verdict: CheckVerdict, advice: str) -> str:
    return f" {advice}" if verdict in ("warn", "invalid", "nonstationary") else ""


# --- the client --------------------------------------------------------------------------------------------------


def lateness(e: Evidence) -> Check:
    """p99 of send - intended against the larger of a floor and a share of TTFT; and very late sends."""
    limit = f"warn {e.lateness_limit_s * 500:.1f} ms, invalid {e.lateness_limit_s * 1000:.1f} ms"
    if not len(e.lateness_s):
        return Check("lateness", "n/a", None, limit, "No measured request was sent.")
    p99 = float(np.percentile(e.lateness_s, 99))
    late = float((e.lateness_s > VERY_LATE_S).mean())
    verdict = "invalid" if late > VERY_LATE_SHARE else _grade(p99, e.lateness_limit_s / 2, e.lateness_limit_s)
    text = (
        f"99% of {len(e.lateness_s)} sends left within {p99 * 1000:.2f} ms of their time; {late:.1%} over 50 ms late."
    )
    advice = "Give the client more CPU, lower the rate, or move it off the server's machine."
    return Check("lateness", verdict, p99, limit, text + _advice(verdict, advice))


def offered_load(e: Evidence) -> Check:
    """Sends made over sends due; a request whose connection failed was made."""
    limit = "warn below 0.999, invalid below 0.99"
    due = metrics.n_due(e.log, e.records)
    if not due:
        return Check("offered load", "n/a", None, limit, "Nothing was due in the window.")
    if e.log.interrupted:
        return Check("offered load", "warn", None, limit, f"The point was interrupted after {due} requests came due.")
    made = sum(r.sent_at_ns is not None or r.status == "failed" for r in e.measured)
    verdict = _grade(1 - made / due, 1 - 0.999 + 1e-12, 1 - 0.99 + 1e-12)
    advice = "The client did not deliver its schedule: lower the rate or raise load.max_in_flight."
    return Check(
        "offered load", verdict, made / due, limit, f"{made} of {due} due sends were made." + _advice(verdict, advice)
    )


def loop_lag(e: Evidence) -> Check:
    """p99 lag of a probe that wants to wake every 10 ms, against the lateness limit."""
    limit = f"warn {e.lateness_limit_s * 500:.1f} ms, invalid {e.lateness_limit_s * 1000:.1f} ms"
    lag = e.log.loop_lag_p99_s
    if lag is None:
        return Check("loop lag", "n/a", None, limit, "The event loop was not probed.")
    verdict = _grade(lag, e.lateness_limit_s / 2, e.lateness_limit_s)
    text = f"The client's event loop woke up to {lag * 1000:.2f} ms late (p99)."
    return Check("loop lag", verdict, lag, limit, text + _advice(verdict, "The client is short of CPU."))


def client_cpu(e: Evidence) -> Check:
    """CPU of the client's process, of the one core it can use."""
    share = e.log.client_cpu_share
    if share is None:
        return Check("client CPU", "n/a", None, "warn over 80%", "The client's CPU time is unknown.")
    verdict: CheckVerdict = "warn" if share > CPU_LIMIT else "pass"
    text = f"The client used {share:.0%} of a core." + _advice(verdict, "Latencies near its limit include the client.")
    return Check("client CPU", verdict, share, "warn over 80%", text)


def shed(e: Evidence) -> Check:
    """Requests that max_in_flight held back: with any, this is not the open loop that was asked."""
    n = sum(r.status == "shed" for r in e.records)
    verdict: CheckVerdict = "invalid" if n else "pass"
    advice = (
        "The server could not take the load and the safety stop hid it: lower the rate or raise load.max_in_flight."
    )
    return Check("shed", verdict, n, "0", f"{n} requests were held back by max_in_flight." + _advice(verdict, advice))


def records_writing(e: Evidence) -> Check:
    """The queue to the disk: full, or a record that waited over a second."""
    log = e.log
    full = log.writer_backlog_max >= max(log.writer_backlog_limit, 1)
    verdict: CheckVerdict = "invalid" if full or log.writer_lag_max_s > WRITER_LAG_LIMIT_S else "pass"
    text = f"At worst {log.writer_backlog_max} records waited for the disk, one for {log.writer_lag_max_s:.2f} s."
    limit = f"backlog {log.writer_backlog_limit}, lag {WRITER_LAG_LIMIT_S:.0f} s"
    advice = "Write to a faster disk (--out)."
    return Check("records writing", verdict, log.writer_lag_max_s, limit, text + _advice(verdict, advice))


def arrivals(e: Evidence) -> Check:
    """CV and dispersion of the sends against the asked process; open loop only."""
    log = e.log
    if log.mode == "closed":
        return Check("arrivals", "n/a", None, "", "Closed loop: the server's answers make the arrivals.")
    at_ns = [start for r in e.measured if (start := _start_ns(r)) is not None]
    start_ns, end_ns = metrics.window_ns(log)
    at_s = (np.array(at_ns, dtype=np.int64) - start_ns) / 1e9
    fit = fit_arrivals(at_s, log.arrivals, 0.0, (end_ns - start_ns) / 1e9)
    limit = "warn outside 95%, invalid outside 99.9% of the sampling error"
    if fit.cv is None or fit.dispersion is None:
        return Check("arrivals", "n/a", None, limit, f"{fit.n} sends are too few, or the process is unknown.")
    name = log.arrivals if isinstance(log.arrivals, str) else next(iter(log.arrivals))
    text = (
        f"{fit.n} sends: gap CV {fit.cv:.2f}, dispersion {fit.dispersion:.2f}; 95% range for {name}: {fit.warn_range}."
    )
    advice = "One schedule in twenty falls outside by chance; another seed tells."
    return Check("arrivals", fit.verdict, fit.cv, limit, text + _advice(fit.verdict, advice))


# --- the server and the load -------------------------------------------------------------------------------------


def little(e: Evidence) -> Check:
    """Little's law: in-flight mean of the generator's counter against arrival rate x mean residence of the records."""
    log, waits = e.log, e.residences_s
    seconds = (min(log.window_end_ns, log.closed_at_ns) - log.window_start_ns) / 1e9
    if e.grows or log.in_flight_mean is None or not len(waits) or seconds <= 0 or log.in_flight_mean <= 0:
        reason = "The queue grows: the law holds for a steady state." if e.grows else "In-flight was not counted."
        return Check("Little's law", "n/a", None, "", reason)
    rate, wait = len(waits) / seconds, float(waits.mean())
    tolerance = little_tolerance(waits, rate, seconds, log.mode)
    off = abs(log.in_flight_mean - rate * wait) / log.in_flight_mean
    verdict = _grade(off, tolerance, 2 * tolerance)
    text = f"In flight {log.in_flight_mean:.2f}; {rate:.2f}/s x {wait:.3f} s = {rate * wait:.2f}: {off:.1%} apart."
    limit = f"warn {tolerance:.1%}, invalid {2 * tolerance:.1%}"
    advice = "Counter and records disagree, or the window is too short for its residences: measure longer."
    return Check("Little's law", verdict, off, limit, text + _advice(verdict, advice))


def little_tolerance(residences_s: Floats, rate_rps: float, seconds: float, mode: str) -> float:
    """max(2%, 3 sqrt(2 E[W^3] / (3 rate mean(W)^2)) / T): three standard deviations of what is in flight at both edges
    of the window. In closed loop users move in step, so an edge may hold a whole wave: at least mean(W)/T there."""
    mean = float(residences_s.mean())
    edges = 3 * math.sqrt(2 * float((residences_s**3).mean()) / (3 * rate_rps * mean**2)) / seconds if mean else 0.0
    return max(0.02, edges, mean / seconds if mode == "closed" else 0.0)


def answer_lengths(e: Evidence) -> Check:
    """Answers shorter than asked, over complete answers. Without usage only the finish reason tells."""
    limit = "warn 1%, invalid 10% of answers"
    answers = [r for r in e.measured if r.status == "ok" and r.output_tokens_asked]
    if not answers:
        return Check("tokens", "n/a", None, limit, "No complete answer.")
    share = sum(_is_short(r) for r in answers) / len(answers)
    verdict = _grade(share, 0.01, 0.10)
    text = f"{share:.1%} of {len(answers)} answers were shorter than asked."
    advice = "The server stops early: make it ignore the end token (ignore_eos) or shorten the outputs."
    return Check("tokens", verdict, share, limit, text + _advice(verdict, advice))


def _is_short(record: RequestRecord) -> bool:
    if record.output_tokens_source == "usage":
        return (record.output_tokens or 0) < record.output_tokens_asked
    return record.finish_reason != "length" and record.n_token_events < record.output_tokens_asked


def prompt_lengths(e: Evidence) -> Check:
    """Prompt tokens that the server counted against the asked input length."""
    limit = "warn 1%, invalid 5%"
    pairs = [(r.prompt_tokens, r.prompt_tokens_asked) for r in e.measured if r.prompt_tokens and r.prompt_tokens_asked]
    if not pairs:
        return Check("prompt tokens", "n/a", None, limit, "The server does not report prompt tokens.")
    counted, asked = sum(p for p, _ in pairs), sum(a for _, a in pairs)
    off = abs(counted - asked) / asked
    verdict = _grade(off, 0.01, 0.05)
    text = (
        f"The server counted {counted / len(pairs):.1f} prompt tokens a request, asked were {asked / len(pairs):.1f}."
    )
    advice = (
        "Prompts are sized by another tokenizer than the server's: the input length on the label is not what was sent."
    )
    return Check("prompt tokens", verdict, off, limit, text + _advice(verdict, advice))


def prefix_cache(e: Evidence) -> Check:
    """Prefix-cache hit share against what the scenario intends."""
    limit = "warn 5 points, invalid 20 points"
    share = cached_share(e.measured)
    if share is None or e.cached_share_intended is None:
        seen = "the server does not report it" if share is None else f"{share:.1%} of prompt tokens were cached"
        return Check("prefix cache", "n/a", share, limit, f"Not judged: {seen}.")
    off = abs(share - e.cached_share_intended)
    verdict = _grade(off, 0.05, 0.20)
    text = f"{share:.1%} of prompt tokens came from the cache, {e.cached_share_intended:.1%} were intended."
    return Check("prefix cache", verdict, off, limit, text + _advice(verdict, "Flush the cache or change the seed."))


def cached_share(records: Sequence[RequestRecord]) -> float | None:
    """Cached prompt tokens / prompt tokens, by usage."""
    known = [(r.cached_tokens, r.prompt_tokens) for r in records if r.cached_tokens is not None and r.prompt_tokens]
    return sum(c for c, _ in known) / sum(p for _, p in known) if known else None


def stationarity(e: Evidence) -> Check:
    """Trend of in-flight over the window (open loop)."""
    limit = "warn p < .05, nonstationary p < .01 and a material rise"
    t = e.trend
    if e.log.mode == "closed":
        return Check("stationarity", "n/a", None, limit, "Closed loop: in-flight is fixed.")
    if t.p is None or t.first is None or t.last is None:
        return Check("stationarity", "n/a", None, limit, "The window is too short for a trend test.")
    verdict: CheckVerdict = {"growing": "nonstationary", "drifting": "warn", "steady": "pass"}.get(t.state, "n/a")  # type: ignore[assignment]
    text = f"In flight went from {t.first:.1f} to {t.last:.1f} over {t.n_batches} batches of {t.batch_s:.1f} s (p = {t.p:.3g})"
    text += ", each shorter than two residences." if t.short else "."
    advice = "Load goes on faster than the server works it off; its latencies depend on how long one waits."
    if verdict == "warn":
        advice = "Measure longer or warm up longer."
    return Check("stationarity", verdict, t.p, limit, text + _advice(verdict, advice))


def warmup(e: Evidence) -> Check:
    """Whether MSER-5 would cut well into the measured window, and the cut part differs materially."""
    limit = "cut within 10% of the window, or means within 10%"
    sent = sorted((r for r in e.records if r.phase != "cooldown"), key=lambda r: r.intended_at_ns)
    waits = [(r.phase, each) for r in sent if (each := metrics.residence(r)) is not None]
    n_warm = sum(phase == "warmup" for phase, _ in waits)
    if e.grows or len(waits) - n_warm < 40:
        return Check("warm-up", "n/a", None, limit, "The queue grows." if e.grows else "Too few requests to tell.")
    values = np.array([each for _, each in waits])
    extra = mser5(values.tolist()) - n_warm
    rest = float(values[n_warm + max(extra, 0) :].mean())
    differs = (
        extra > 0.1 * (len(waits) - n_warm) and abs(float(values[n_warm : n_warm + extra].mean()) / rest - 1) > 0.1
    )
    verdict: CheckVerdict = "warn" if differs else "pass"
    text = f"MSER-5 would cut {max(extra, 0)} of {len(waits) - n_warm} measured requests."
    return Check("warm-up", verdict, float(max(extra, 0)), limit, text + _advice(verdict, "Lengthen load.warmup."))


def errors(e: Evidence) -> Check:
    """Failed and unfinished requests, and requests without any outcome. Unfinished ones are excused by a growing queue
    or an interruption, whose consequence they are."""
    limit = "warn over 0, invalid over 1%; every request has an outcome"
    due, failed, unfinished = metrics.n_due(e.log, e.records), e.count("failed"), e.count("unfinished")
    if not due:
        return Check("errors", "n/a", None, limit, "Nothing was due in the window.")
    lost = due - len(e.measured)
    blamed = failed + (0 if e.grows or e.log.interrupted else unfinished)
    verdict: CheckVerdict = "invalid" if lost else _grade(blamed / due, 0.0, 0.01)
    if verdict == "pass" and unfinished:
        verdict = "warn"
    kinds = ", ".join(
        f"{n} {kind}" for kind, n in Counter(r.error_class for r in e.measured if r.error_class).most_common(3)
    )
    text = (
        f"{failed} failed{f' ({kinds})' if kinds else ''}, {unfinished} unfinished, {lost} without outcome, of {due}."
    )
    advice = "See the errors of the point; a longer cool-down lets slow requests end."
    return Check("errors", verdict, blamed / due, limit, text + _advice(verdict, advice))


def bound(e: Evidence) -> Check:
    """Throughput against the roofline: above it something is mislabelled, far below it for a whole sweep perhaps
    too."""
    limit = "warn: the sweep's best under 5%; invalid: over 100%"
    if e.bound_tps is None or not e.output_tps:
        return Check("bound", "n/a", None, limit, "No bound is known." if e.bound_tps is None else "No throughput.")
    share = e.output_tps / e.bound_tps
    best = e.best_tps is not None and e.output_tps >= e.best_tps
    verdict: CheckVerdict = "invalid" if share > 1 else "warn" if best and share < 0.05 else "pass"
    text = f"{e.output_tps:.0f} of at most {e.bound_tps:.0f} tokens/s: {share:.1%} of the bound."
    advice = "Check the label: devices, precision, speculation, cache, hardware."
    return Check("bound", verdict, share, limit, text + _advice(verdict, advice))


CHECKS: tuple[Callable[[Evidence], Check], ...] = (
    lateness,
    offered_load,
    loop_lag,
    client_cpu,
    shed,
    records_writing,
    arrivals,
    little,
    answer_lengths,
    prompt_lengths,
    prefix_cache,
    stationarity,
    warmup,
    errors,
    bound,
)
