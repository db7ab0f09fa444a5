"""Checks of what came back: a steady state, the asked lengths, no errors, and nothing above the physics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from loadgen.analysis import metrics
from loadgen.analysis.evidence import Check, CheckVerdict, Evidence, advise, grade
from loadgen.analysis.steady_state import differ, mser5
from loadgen.analysis.timeouts import timeouts_text
from loadgen.analysis.token_events import came_at_once
from loadgen.collectors.records import RequestRecord

_TREND_VERDICTS: dict[str, CheckVerdict] = {
    "drifting": "warn",
    "steady": "pass",
    "unknown": "n/a",
}


def little(e: Evidence) -> Check:
    """Little's law: in-flight mean of the generator's counter against arrival rate x mean residence of the records.
    Where the records' own in-flight agrees with the counter, only the window's edges are apart: never worse than a
    WARN."""
    law = e.little
    if law is None or e.grows:
        reason = "The queue grows: the law holds for a steady state." if e.grows else "In-flight was not counted."
        return Check("Little's law", "n/a", None, "", reason)
    limit = f"warn {law.tolerance:.1%}, invalid {2 * law.tolerance:.1%}"
    off = abs(law.excess)
    verdict = grade(off, law.tolerance, 2 * law.tolerance)
    text = f"In flight {law.in_flight:.2f}; {law.rate_rps:.2f}/s x {law.residence_s:.3f} s: {off:.1%} apart."
    advice = "Counter and records disagree: the client lost track of its requests."
    if abs(law.in_flight_by_records / law.in_flight - 1) <= 0.02:
        verdict = "warn" if verdict == "invalid" else verdict
        advice = "Counter and records agree, but the window is short for its residences: measure longer."
    return Check("Little's law", verdict, off, limit, text + advise(verdict, advice))


def answer_lengths(e: Evidence) -> Check:
    """Answers shorter than asked, over complete answers. Without usage only the finish reason tells."""
    limit = "warn 1%, invalid 10% of answers"
    answers = [r for r in e.measured if r.status == "ok" and r.output_tokens_asked and r.output_tokens]
    if not answers:
        return Check("tokens", "n/a", None, limit, "No complete answer.")
    share = sum(_is_short(r) for r in answers) / len(answers)
    verdict = grade(share, 0.01, 0.10)
    text = f"{share:.1%} of {len(answers)} answers were shorter than asked."
    advice = "The server stops early: make it ignore the end token (ignore_eos) or shorten the outputs."
    return Check("tokens", verdict, share, limit, text + advise(verdict, advice))


def _is_short(record: RequestRecord) -> bool:
    if record.output_tokens_source in ("usage", "event_counts"):  # the server's own; a local tokenizer only estimates
        return (record.output_tokens or 0) < record.output_tokens_asked
    return record.finish_reason != "length" and record.n_token_events < record.output_tokens_asked


def streaming(e: Evidence) -> Check:
    """Answers whose tokens came all at once though they took long (see `came_at_once`), over those where it can be
    told. Their TTFT is their E2E, and describes what held them back."""
    limit = "warn over half of the answers"
    found = [at_once for r in e.measured if (at_once := _at_once(r)) is not None]
    if not found:
        return Check("streaming", "n/a", None, limit, "No answer is long enough to tell.")
    share = sum(found) / len(found)
    verdict = grade(share, 0.5, 1.0)
    text = f"Of {len(found)} answers {share:.1%} came all at once, their first token with their last."
    advice = "Buffered delivery, or not streaming: TTFT is E2E here. Ask the server past its proxy, or switch the "
    return Check("streaming", verdict, share, limit, text + advise(verdict, advice + "proxy's buffering off."))


def _at_once(r: RequestRecord) -> bool | None:
    if r.status != "ok" or r.sent_at_ns is None or r.first_token_at_ns is None or r.last_token_at_ns is None:
        return None
    return came_at_once(r.sent_at_ns, r.first_token_at_ns, r.last_token_at_ns, r.output_tokens or 0)


def prompt_lengths(e: Evidence) -> Check:
    """Prompt tokens that the server counted against the asked input length."""
    limit = "warn 1%, invalid 5%"
    pairs = [(r.prompt_tokens, r.prompt_tokens_asked) for r in e.measured if r.prompt_tokens and r.prompt_tokens_asked]
    if not pairs:
        return Check("prompt tokens", "n/a", None, limit, "The server does not report prompt tokens.")
    counted, asked = sum(p for p, _ in pairs), sum(a for _, a in pairs)
    off = abs(counted - asked) / asked
    verdict = grade(off, 0.01, 0.05)
    text = (
        f"The server counted {counted / len(pairs):.1f} prompt tokens a request, asked were {asked / len(pairs):.1f}."
    )
    advice = (
        "Prompts are sized by another tokenizer than the server's: the input length on the label is not what was sent."
    )
    return Check("prompt tokens", verdict, off, limit, text + advise(verdict, advice))


def prefix_cache(e: Evidence) -> Check:
    """Prefix-cache hit share against what the scenario intends."""
    limit = "warn 5 points, invalid 20 points"
    share = cached_share(e.measured)
    if share is None or e.cached_share_intended is None:
        seen = "the server does not report it" if share is None else f"{share:.1%} of prompt tokens were cached"
        return Check("prefix cache", "n/a", share, limit, f"Not judged: {seen}.")
    off = abs(share - e.cached_share_intended)
    verdict = grade(off, 0.05, 0.20)
    text = f"{share:.1%} of prompt tokens came from the cache, {e.cached_share_intended:.1%} were intended."
    return Check("prefix cache", verdict, off, limit, text + advise(verdict, "Flush the cache or change the seed."))


def cached_share(records: Sequence[RequestRecord]) -> float | None:
    """Cached prompt tokens / prompt tokens, by usage."""
    known = [(r.cached_tokens, r.prompt_tokens) for r in records if r.cached_tokens is not None and r.prompt_tokens]
    return sum(c for c, _ in known) / sum(p for _, p in known) if known else None


def stationarity(e: Evidence) -> Check:
    """Trend of in-flight over the window (open loop)."""
    limit = (
        "warn p < .05; nonstationary with two of three: p < .01, a material rise, residences beyond Little's tolerance"
    )
    t = e.trend
    if e.log.mode == "closed":
        return Check("stationarity", "n/a", None, limit, "Closed loop: in-flight is fixed.")
    if t.p is None or t.first is None or t.last is None:
        return Check("stationarity", "n/a", None, limit, "The window is too short for a trend test.")
    verdict: CheckVerdict = "nonstationary" if e.grows else _TREND_VERDICTS[t.state]
    text = (
        f"In flight went from {t.first:.1f} to {t.last:.1f}, {t.n_batches} batches of {t.batch_s:.1f} s (p = {t.p:.3g})"
    )
    text += ", each shorter than two residences." if t.short else "."
    if e.outgrown and e.little is not None:
        text += f" Requests stayed {e.little.excess:.0%} longer than what was in flight explains."
    advice = "Load goes on faster than the server works it off; its latencies depend on how long one waits."
    if verdict == "warn":
        advice = "Measure longer or warm up longer."
    return Check("stationarity", verdict, t.p, limit, text + advise(verdict, advice))


def warmup(e: Evidence) -> Check:
    """Whether MSER-5 would cut into the measured window, and what it would cut differs from the rest."""
    limit = "a cut into the window whose mean is over 25% and 6 standard errors off"
    sent = sorted((r for r in e.records if r.phase != "cooldown"), key=lambda r: r.intended_at_ns)
    waits = [(r.phase, each) for r in sent if (each := metrics.residence(r)) is not None]
    n_warm = sum(phase == "warmup" for phase, _ in waits)
    if e.grows or len(waits) - n_warm < 40:
        return Check("warm-up", "n/a", None, limit, "The queue grows." if e.grows else "Too few requests to tell.")
    values = np.array([each for _, each in waits])
    n_cut = max(mser5(values.tolist()) - n_warm, 0)
    verdict: CheckVerdict = "warn" if differ(values[n_warm : n_warm + n_cut], values[n_warm + n_cut :]) else "pass"
    text = f"MSER-5 would cut {n_cut} of {len(waits) - n_warm} measured requests."
    return Check("warm-up", verdict, float(n_cut), limit, text + advise(verdict, "Lengthen load.warmup."))


def errors(e: Evidence) -> Check:
    """Failed and unfinished requests, and requests without any outcome. Unfinished ones are excused by a growing queue
    or an interruption, whose consequence they are."""
    limit = "warn over 0, invalid over 1%; every request has an outcome"
    due, failed, unfinished = metrics.n_due(e.log, e.records), e.count("failed"), e.count("unfinished")
    if not due:
        return Check("errors", "n/a", None, limit, "Nothing was due in the window.")
    lost = due - len(e.measured)
    blamed = failed + (0 if e.grows or e.log.interrupted else unfinished)
    verdict: CheckVerdict = "invalid" if lost else grade(blamed / due, 0.0, 0.01)
    if verdict == "pass" and unfinished:
        verdict = "warn"
    kinds = ", ".join(
        f"{n} {kind}" for kind, n in Counter(r.error_class for r in e.measured if r.error_class).most_common(3)
    )
    text = (
        f"{failed} failed{f' ({kinds})' if kinds else ''}, {unfinished} unfinished, {lost} without outcome, of {due}."
    )
    text += timeouts_text(e.measured, "intended" if e.log.mode == "open" else "sent") if not e.grows else ""
    advice = "See the errors of the point; a longer cool-down lets slow requests end."
    return Check("errors", verdict, blamed / due, limit, text + advise(verdict, advice))


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
    return Check("bound", verdict, share, limit, text + advise(verdict, advice))
