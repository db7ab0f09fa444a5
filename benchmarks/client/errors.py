"""A client against the server's log: how exact its TTFT and ITL are, and how its requests arrived."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from peers import Answer, Match
from workloads import Workload

from engine_adapters.mock.truth import Truth

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Arrivals:
    """What the server received: requests of this workload, the first and last instant, rate and gap CV between."""

    n: int
    first_ns: int
    rate_rps: float | None
    gap_cv: float | None
    served_rps: float | None  # n over the time from the first request received to the last event sent


@dataclass(frozen=True)
class Errors:
    """|client - server| in milliseconds; None where the client saves nothing to compare. `matched` requests."""

    matched: int
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    itl_p50_ms: float | None
    itl_p99_ms: float | None

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def of_workload(truth: Truth, load: Workload) -> list[int]:
    """The requests of the workload, in the order received; a client's own probes ask for other numbers of tokens."""
    return np.flatnonzero(truth.tokens_asked == load.tokens).tolist()


def arrivals(truth: Truth, load: Workload) -> Arrivals:
    """How the workload's requests reached the server, by the instants at which they had been read."""
    asked = of_workload(truth, load)
    if not asked:
        return Arrivals(0, 0, None, None, None)
    at_ns = np.sort(truth.received_at_ns[asked])
    gaps = np.diff(at_ns) / 1e9
    span_s = float(gaps.sum())
    ends = [int(events[-1]) for i in asked if len(events := truth.events(i))]
    served_s = (max(ends) - int(at_ns[0])) / 1e9 if ends else 0.0
    return Arrivals(
        n=len(asked),
        first_ns=int(at_ns[0]),
        rate_rps=len(gaps) / span_s if span_s else None,
        gap_cv=float(gaps.std() / gaps.mean()) if span_s else None,
        served_rps=len(asked) / served_s if served_s else None,
    )


def errors(answers: Iterable[Answer], truth: Truth, load: Workload, match: Match) -> Errors:
    """Compare request by request, gap by gap, as `match` says.

    TTFT error: the client's TTFT (from its own instant of sending) less the server's (first event sent - request
    received). ITL error: the client's gap less the server's between the same two tokens; an answer with another number
    of gaps than the server's is left out. By distribution, sorted values are compared, which flatters the client.
    """
    saved = list(answers)
    if match == "distribution":
        ttft = by_distribution([answer.ttft_s for answer in saved], truth, of_workload(truth, load))
        return summary(len(ttft), ttft, np.array([]))
    ttft_errors: list[float] = []
    gap_errors: list[Floats] = []
    for answer, i in pairs(saved, truth, of_workload(truth, load), match):
        event_ns = truth.events(i)
        if not len(event_ns):
            continue
        ttft_errors.append(answer.ttft_s - (event_ns[0] - truth.received_at_ns[i]) / 1e9)
        gaps_s = np.diff(event_ns) / 1e9
        if len(gaps_s) == len(answer.gaps_s):
            gap_errors.append(np.asarray(answer.gaps_s) - gaps_s)
    return summary(len(ttft_errors), np.array(ttft_errors), np.concatenate(gap_errors) if gap_errors else np.array([]))


def pairs(saved: Sequence[Answer], truth: Truth, asked: Sequence[int], match: Match) -> Iterator[tuple[Answer, int]]:
    """Each answer with its row of the log. By order, those that the client does not tell of are taken as the first."""
    if match == "order of sending":
        in_order = sorted(saved, key=lambda answer: answer.key)
        yield from zip(in_order, asked[max(0, len(asked) - len(saved)) :], strict=False)
        return
    ids = truth.request_id if match == "request id" else truth.answer_id
    rows = {ids[i]: i for i in asked}
    yield from ((answer, rows[answer.key]) for answer in saved if answer.key in rows)


def by_distribution(ttft_s: Sequence[float], truth: Truth, asked: Sequence[int]) -> Floats:
    """Differences of the sorted TTFTs, at as many quantiles as the client has requests."""
    theirs = [(truth.events(i)[0] - truth.received_at_ns[i]) / 1e9 for i in asked if truth.n_events[i]]
    levels = (np.arange(len(ttft_s)) + 0.5) / max(1, len(ttft_s))
    found: Floats = np.sort(ttft_s) - np.quantile(theirs, levels) if theirs else np.array([])
    return found


def summary(n: int, ttft_s: Floats, gap_s: Floats) -> Errors:
    """Median and 99th percentile of the absolute errors."""
    return Errors(n, *two(ttft_s), *two(gap_s))


def two(values_s: Floats) -> tuple[float | None, float | None]:
    """(p50, p99) in milliseconds."""
    if not len(values_s):
        return None, None
    found = np.percentile(np.abs(values_s), [50, 99]) * 1e3
    return float(found[0]), float(found[1])
