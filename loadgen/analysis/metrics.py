"""The metrics, one function each: its docstring is the published definition, its times are seconds."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from loadgen.analysis.percentiles import Blocks, Floats, Ints
from loadgen.analysis.student_t import t_quantile
from loadgen.analysis.token_events import Reads, gaps, laid_out
from loadgen.collectors.records import PointLog, RequestRecord

Since = Literal["intended", "sent"]
N_BATCHES = 10  # equal parts of the window over which the throughput interval takes its variance
N_TIME_BLOCKS = 40  # slices of time over which the ITL interval takes its variance
N_TIME_LINE = 100  # bins of a point's time line, at most


def measured(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Requests that were intended inside the measured window, in the order in which they were due."""
    return sorted((r for r in records if r.phase == "measured"), key=lambda r: (r.intended_at_ns, r.index))


# --- one request -------------------------------------------------------------------------------------------------


def ttft(record: RequestRecord, since: Since) -> float | None:
    """Time to first token: the first event that carries a token (content, reasoning, refusal or a tool-call piece; a
    role-only or empty chunk is none), counted from the intended send (what a user feels) or from the actual one."""
    return _elapsed(record, since, record.first_token_at_ns)


def ttfo(record: RequestRecord, since: Since) -> float | None:
    """Time to first output: the first token of the answer, reasoning left aside, counted like TTFT."""
    return _elapsed(record, since, record.first_answer_at_ns)


def e2e(record: RequestRecord, since: Since) -> float | None:
    """End-to-end latency: the last token event, counted like TTFT; usage blocks and [DONE] are not decode time."""
    return _elapsed(record, since, record.last_token_at_ns)


def tpot(record: RequestRecord) -> float | None:
    """Time per output token of one request: (last token - first token) / (output tokens - 1), the first token's wait
    left out; null below 2 tokens."""
    if not record.output_tokens or record.output_tokens < 2 or _tokens_at(record) is None:
        return None
    return _decode_s(record) / (record.output_tokens - 1)


def event_gap(record: RequestRecord) -> Floats:
    """Gaps between successive token events of a request, pooled over requests. Events of one socket read share its
    instant, so the gaps inside a read are zero. Equals ITL where each event is one token."""
    counts = np.frombuffer(record.gap_events, np.int32)
    found = np.zeros(int(counts.sum()))
    found[np.cumsum(counts) - counts] = np.frombuffer(record.gap_ns, np.int64) / 1e9
    return found[1:]


def itl(record: RequestRecord) -> Floats | None:
    """Inter-token latency: gaps between successive tokens, pooled over requests, not averaged inside one. An event of
    k tokens is one gap shared over its k tokens, where the server says how many each event has; where it does not, and
    events and tokens differ in number, ITL is null: the event gap is shown then."""
    return pooled_gaps([record], "n_tokens")[0] if tokens_are_placed(record) else None


def tokens_are_placed(record: RequestRecord) -> bool:
    """Whether it is known when each token came: the server told it for every read, or each event was one token."""
    return bool(record.gap_tokens) or one_token_per_event(record)


def one_token_per_event(record: RequestRecord) -> bool:
    """Whether each token event of the answer was one token: the counts agree, but for the end token of an answer that
    stopped by itself, which servers count and never show."""
    hidden = 1 if record.finish_reason == "stop" else 0
    return record.output_tokens is None or 0 <= record.output_tokens - record.n_token_events <= hidden


def residence(record: RequestRecord) -> float | None:
    """Time a request was in flight, as the generator's counter sees it: from its dispatch to the end of its stream."""
    span = in_flight_ns(record)
    return None if span is None else (span[1] - span[0]) / 1e9


def in_flight_ns(record: RequestRecord) -> tuple[int, int] | None:
    """When a request was taken up and when its stream ended; None if it was not sent."""
    begin = record.dispatched_at_ns if record.dispatched_at_ns is not None else record.sent_at_ns
    if begin is None or record.stream_end_at_ns is None:
        return None
    return begin, record.stream_end_at_ns


def _elapsed(record: RequestRecord, since: Since, at_ns: int | None) -> float | None:
    begin = record.intended_at_ns if since == "intended" else record.sent_at_ns
    return None if at_ns is None or begin is None else (at_ns - begin) / 1e9


def _tokens_at(record: RequestRecord) -> tuple[int, int] | None:
    if record.first_token_at_ns is None or record.last_token_at_ns is None:
        return None
    return record.first_token_at_ns, record.last_token_at_ns


def _decode_s(record: RequestRecord) -> float:
    span = _tokens_at(record)
    return (span[1] - span[0]) / 1e9 if span else 0.0


# --- one load point ----------------------------------------------------------------------------------------------


def window_ns(log: PointLog) -> tuple[int, int]:
    """The measured window [start, end); cut where the point was interrupted or its closed loop ran out of requests."""
    cut = log.interrupted or log.mode == "closed"
    return log.window_start_ns, max(min(log.window_end_ns, log.closed_at_ns) if cut else log.window_end_ns, 1)


def window_s(log: PointLog) -> float:
    """Length of the measured window in seconds."""
    start, end = window_ns(log)
    return max(end - start, 0) / 1e9


def n_due(log: PointLog, records: Iterable[RequestRecord]) -> int:
    """Requests scheduled in the window, whatever became of them; of an interrupted point, those that it came to."""
    n = sum(r.phase == "measured" for r in records)
    return n if log.interrupted else max(log.due_measured, n)


def output_tps(log: PointLog, records: Sequence[RequestRecord]) -> float | None:
    """Output throughput: tokens that arrived inside the measured window / its length, from every request, warm-up,
    unfinished and failed ones included; not whole-run tokens over a wall time with the drain in it."""
    tokens = float(tokens_by_batch(log, records).sum())
    return tokens / window_s(log) if tokens else None


def output_tps_interval(log: PointLog, records: Sequence[RequestRecord]) -> tuple[float, float] | None:
    """95% interval of output throughput by batch means: Student t over those of ten equal parts of the window."""
    if not window_s(log):
        return None
    per_batch = tokens_by_batch(log, records) / (window_s(log) / N_BATCHES)
    mean, error = float(per_batch.mean()), float(per_batch.std(ddof=1)) / math.sqrt(N_BATCHES)
    half = t_quantile(0.975, N_BATCHES - 1) * error
    return (max(mean - half, 0.0), mean + half) if mean else None


def tokens_by_batch(log: PointLog, records: Sequence[RequestRecord]) -> Floats:
    """Tokens that arrived in each of ten equal parts of the measured window."""
    start, end = window_ns(log)
    per_batch = np.zeros(N_BATCHES)
    default = tokens_per_event(records) or 1.0
    for reads in laid_out(records) if end > start else ():
        inside = (reads.at_ns >= start) & (reads.at_ns < end)
        batch = ((reads.at_ns[inside] - start) * N_BATCHES) // (end - start)
        per_batch += np.bincount(batch, weights=tokens_in(reads, default)[inside], minlength=N_BATCHES)
    return per_batch


def tokens_in(reads: Reads, default_per_event: float) -> Floats:
    """Tokens of each read: what the server told, else its events, each standing for its share of the usage's count."""
    shares = [_per_event(record, default_per_event) for record in reads.records]
    told = np.array([bool(record.gap_tokens) for record in reads.records])[reads.owner]
    return np.where(told, reads.n_tokens, reads.n_events * np.array(shares)[reads.owner])


def _per_event(record: RequestRecord, default: float) -> float:
    if record.output_tokens_source == "events" or not record.output_tokens or not record.n_token_events:
        return default
    return record.output_tokens / record.n_token_events


def token_arrivals(record: RequestRecord, default_per_event: float) -> tuple[Ints, Floats]:
    """(instants, tokens) of a request's reads."""
    for reads in laid_out([record]):
        return reads.at_ns, tokens_in(reads, default_per_event)
    return np.array([], dtype=np.int64), np.array([])


def tokens_per_event(records: Iterable[RequestRecord]) -> float | None:
    """Output tokens / token events, over complete answers whose tokens were counted; above 1 the server sends several
    tokens at a time."""
    counted = [r for r in records if r.status == "ok" and r.output_tokens_source != "events" and r.n_token_events]
    if not counted:
        return None
    return sum(r.output_tokens or 0 for r in counted) / sum(r.n_token_events for r in counted)


def prompt_tps(log: PointLog, records: Sequence[RequestRecord]) -> float | None:
    """Prompt throughput: prompt tokens (by usage) of requests whose first token arrived inside the window / its
    length."""
    start, end = window_ns(log)
    begun = [r for r in records if r.first_token_at_ns is not None and start <= r.first_token_at_ns < end]
    known = [r.prompt_tokens for r in begun if r.prompt_tokens is not None]
    if not known or end <= start:
        return None
    return sum(known) / len(known) * len(begun) / window_s(log)


def achieved_rps(log: PointLog, records: Iterable[RequestRecord]) -> float | None:
    """Achieved rate: requests that completed inside the window / its length; null when none did."""
    start, end = window_ns(log)
    done = sum(r.status == "ok" and start <= (r.stream_end_at_ns or 0) < end for r in records)
    return done / window_s(log) if done else None


def completion_rate(completed_at_s: Sequence[float]) -> float | None:
    """Rate between completions: (n - 1) / (last completion - first completion), free of the pipeline's fill time; for
    short floods, where completed/duration is far too low."""
    if len(completed_at_s) < 2 or max(completed_at_s) <= min(completed_at_s):
        return None
    return (len(completed_at_s) - 1) / (max(completed_at_s) - min(completed_at_s))


def decode_rate_tps(concurrency_mean: float | None, records: Iterable[RequestRecord]) -> float | None:
    """Sum of the running users' decode speeds: mean in-flight x mean 1/TPOT. Higher than output throughput, because it
    takes every user as decoding all the time; published by others as "throughput"."""
    speeds = [1 / each for r in records if r.status == "ok" and (each := tpot(r))]
    if not speeds or concurrency_mean is None:
        return None
    return concurrency_mean * sum(speeds) / len(speeds)


def prefill_rate_tps(records: Iterable[RequestRecord]) -> float | None:
    """Prefill rate: uncached prompt tokens / the time in which at least one request waited for its first token, which
    is what a client can see of prefill."""
    seen = [
        (r.sent_at_ns, r.first_token_at_ns, r.prompt_tokens - (r.cached_tokens or 0))
        for r in records
        if r.sent_at_ns is not None and r.first_token_at_ns is not None and r.prompt_tokens is not None
    ]
    busy_s = _union_s([(start, end) for start, end, _ in seen])
    return sum(tokens for *_, tokens in seen) / busy_s if busy_s > 0 else None


def _union_s(intervals: list[tuple[int, int]]) -> float:
    """Total length of the union of intervals, in seconds."""
    total, reach = 0, 0
    for start, end in sorted(intervals):
        total += max(end - max(start, reach), 0)
        reach = max(reach, end)
    return total / 1e9


def running_mean(output_tps: float | None, records: Iterable[RequestRecord]) -> float | None:
    """Requests that were decoding, on average: output throughput x mean ITL (Little's law on tokens)."""
    decoding = [r for r in records if r.status == "ok" and tpot(r) is not None]
    tokens = sum((r.output_tokens or 1) - 1 for r in decoding)
    if not tokens or output_tps is None:
        return None
    return output_tps * sum(_decode_s(r) for r in decoding) / tokens


def concurrency_mean(log: PointLog) -> float | None:
    """Concurrency: time average of requests in flight (sent, not ended) over the window, integrated from the
    generator's own counter."""
    return log.in_flight_mean


def interactivity(record: RequestRecord) -> float | None:
    """Speed that one user sees: 1/TPOT, in tokens/s."""
    each = tpot(record)
    return 1 / each if each else None


def stalls(gaps_s: Floats, itl_limit_s: float | None) -> dict[str, Any]:
    """Stalls: gaps above max(3 x median ITL, the ITL objective); their number, total time and the longest. The median
    is over gaps above zero, since tokens that share a read have gaps of zero."""
    positive = gaps_s[gaps_s > 0]
    if not len(positive):
        return {"count": 0, "total_s": 0.0, "longest_s": 0.0}
    long = positive[positive > max(3 * float(np.median(positive)), itl_limit_s or 0.0)]
    return {"count": len(long), "total_s": float(long.sum()), "longest_s": float(long.max()) if len(long) else 0.0}


def time_line(log: PointLog) -> dict[str, Any]:
    """Requests in flight over time: means of the generator's own counter over at most 100 equal bins of `bin_s`
    seconds from the start of the point on, the cool-down included; `window_s` is the measured window on this axis.
    A queue that grows is a line that climbs through the window."""
    counts = np.asarray(log.in_flight_bins, dtype=np.float64)
    step = max(-(-len(counts) // N_TIME_LINE), 1)
    start, end = window_ns(log)
    return {
        "bin_s": log.bin_s * step,
        "in_flight": [round(float(counts[i : i + step].mean()), 3) for i in range(0, len(counts), step)],
        "window_s": [(start - log.t0_ns) / 1e9, (end - log.t0_ns) / 1e9],
    }


def pooled_gaps(records: Sequence[RequestRecord], between: Literal["n_events", "n_tokens"]) -> tuple[Floats, Blocks]:
    """All gaps between events, or tokens, of the requests and, for each, the slice of time (0 to 39) it ended in."""
    n_gaps = sum(sum(r.gap_tokens if r.gap_tokens and between == "n_tokens" else r.gap_events) for r in records)
    found, slices, n_found = np.empty(n_gaps), np.empty(n_gaps, dtype=np.uint8), 0
    spans = [span for r in records if (span := _tokens_at(r)) is not None]
    begin, end = (min(a for a, _ in spans), max(b for _, b in spans) + 1) if spans else (0, 1)
    for reads in laid_out(records):
        values, of_read = gaps(reads, reads.n_events if between == "n_events" else reads.n_tokens)
        slice_of_read = ((reads.at_ns - begin) * N_TIME_BLOCKS) // (end - begin)
        place = slice(n_found, n_found + len(values))
        found[place], slices[place] = values, np.clip(slice_of_read, 0, N_TIME_BLOCKS - 1)[of_read]
        n_found = place.stop
    return found[:n_found], slices[:n_found]


# --- what is published about them --------------------------------------------------------------------------------

DEFINED: dict[str, Callable[..., Any]] = {
    "ttft": ttft,
    "ttfo": ttfo,
    "e2e": e2e,
    "itl": itl,
    "tpot": tpot,
    "event_gap": event_gap,
    "stalls": stalls,
    "output_tps": output_tps,
    "prompt_tps": prompt_tps,
    "achieved_rps": achieved_rps,
    "completion_rate": completion_rate,
    "decode_rate_tps": decode_rate_tps,
    "prefill_rate_tps": prefill_rate_tps,
    "concurrency_mean": concurrency_mean,
    "running_mean": running_mean,
    "time_line": time_line,
    "interactivity": interactivity,
    "tokens_per_event": tokens_per_event,
}

ALIASES: dict[str, dict[str, str]] = {
    "ttft": {
        "vllm": "ttft_ms (from the actual send; not reasoning_content)",
        "sglang": "ttft_ms (connecting included)",
        "guidellm": "time_to_first_token_ms",
        "aiperf": "time_to_first_token",
        "genai-bench": "ttft",
        "inference-perf": "time_to_first_token",
        "evalscope": "Avg TTFT (ms)",
        "llmperf": "ttft_s",
        "loadgen": "first-token latency (from the schedule)",
    },
    "e2e": {
        "vllm": "e2el_ms",
        "sglang": "e2e_latency_ms",
        "guidellm": "request_latency",
        "aiperf": "request_latency",
        "genai-bench": "e2e_latency (to the end of the stream)",
        "inference-perf": "request_latency",
        "llmperf": "end_to_end_latency_s",
    },
    "itl": {
        "vllm": "itl_ms (gaps between chunks)",
        "sglang": "itl_ms (gaps between chunks)",
        "aiperf": "inter_chunk_latency",
        "inference-perf": "inter_token_latency",
        "evalscope": "ITL",
    },
    "tpot": {
        "vllm": "tpot_ms",
        "sglang": "tpot_ms",
        "guidellm": "inter_token_latency_ms (its time_per_output_token_ms includes TTFT)",
        "aiperf": "inter_token_latency",
        "genai-bench": "tpot",
        "inference-perf": "time_per_output_token",
        "evalscope": "TPOT",
    },
    "output_tps": {
        "vllm": "output_throughput (the drain in its wall time)",
        "sglang": "output_throughput (the drain in its wall time)",
        "guidellm": "output_tokens_per_second",
        "aiperf": "output_token_throughput",
        "genai-bench": "mean_output_throughput_tokens_per_s",
        "inference-perf": "output_tokens_per_sec",
        "evalscope": "Output Throughput (tok/s)",
    },
    "interactivity": {"aiperf": "output_token_throughput_per_user", "inferencex": "intvty"},
    "goodput_rps": {
        "vllm": "request_goodput",
        "sglang": "request_goodput",
        "guidellm": "request_goodput",
        "aiperf": "goodput",
    },
}


def definition(function: Callable[..., Any]) -> str:
    """The docstring of a metric as one line of text."""
    return " ".join(inspect.cleandoc(function.__doc__ or "").split())
