"""What the validity checks look at: the evidence of one load point, and the form of a check."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from loadgen.analysis import metrics
from loadgen.analysis.percentiles import Floats
from loadgen.analysis.steady_state import Trend, in_flight_trend
from loadgen.collectors.records import PointLog, RequestRecord

CheckVerdict = Literal["pass", "warn", "invalid", "nonstationary", "n/a"]

LATENESS_FLOOR_S, LATENESS_SHARE = 0.010, 0.05  # INVALID above either, whichever is larger; WARN at half of it


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the certificate. `limit` and `text` are for people; `value` is the figure that was judged."""

    name: str
    verdict: CheckVerdict
    value: float | str | None
    limit: str
    text: str


@dataclass(frozen=True, slots=True)
class Little:
    """Little's law: in-flight mean of the generator's counter, arrival rate x mean residence of the records, the share
    by which the second exceeds the first, what edges of the window may do to it, and the records' own in-flight
    mean."""

    in_flight: float
    rate_rps: float
    residence_s: float
    excess: float
    tolerance: float
    in_flight_by_records: float


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
        """Send - intended; for a request that opened its own connection or was sent again, dispatch - intended
        (connecting and the server's rejections are not ours). Delays by the client's own limit are asked for, and left
        out."""
        starts = [(start_ns(r), r.intended_at_ns + r.limit_delay_ns) for r in self.measured]
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

    @cached_property
    def little(self) -> Little | None:
        """Little's law over the window, None where it can't be computed."""
        return little_of(self)

    @property
    def grows(self) -> bool:
        """The queue grows: two of three witnesses say so, a significant trend of in-flight, a material rise, and
        residences that outgrow Little's law. Unfinished requests and the broken law are its consequence, not faults of
        their own."""
        return self.trend.state == "growing" or (self.outgrown and (self.trend.rises or self.trend.climbs))

    @property
    def outgrown(self) -> bool:
        """Residences are longer than Little's law allows for what was in flight: they ran beyond the window."""
        return self.little is not None and self.little.excess > self.little.tolerance

    def count(self, status: str) -> int:
        """Measured requests with this status."""
        return sum(r.status == status for r in self.measured)


def window_bins(log: PointLog) -> list[float]:
    """The in-flight averages of the bins that lie inside the measured window."""
    start, end = metrics.window_ns(log)
    first = math.ceil(round((start - log.t0_ns) / 1e9 / log.bin_s, 6))
    last = math.floor(round((end - log.t0_ns) / 1e9 / log.bin_s, 6))
    return log.in_flight_bins[max(first, 0) : max(last, 0)]


def start_ns(record: RequestRecord) -> int | None:
    """When the generator began with a request: its send, or its dispatch where something else came between."""
    if record.connected_at_ns is not None or record.n_attempts > 1:
        return record.dispatched_at_ns
    return record.sent_at_ns


def grade(value: float, warn: float, invalid: float) -> CheckVerdict:
    return "invalid" if value > invalid else "warn" if value > warn else "pass"


def advise(verdict: CheckVerdict, advice: str) -> str:
    return f" {advice}" if verdict in ("warn", "invalid", "nonstationary") else ""


def little_of(e: Evidence) -> Little | None:
    """Little's law over the window of a point; arrivals are those of the measured requests that were sent."""
    log, waits = e.log, e.residences_s
    begin_ns, end_ns = log.window_start_ns, min(log.window_end_ns, log.closed_at_ns)
    if not log.in_flight_mean or not len(waits) or end_ns <= begin_ns or not waits.mean():
        return None
    seconds = (end_ns - begin_ns) / 1e9
    rate, wait = len(waits) / seconds, float(waits.mean())
    spans = [span for r in e.records if (span := metrics.in_flight_ns(r)) is not None]
    inside_ns = sum(max(min(end, end_ns) - max(begin, begin_ns), 0) for begin, end in spans)
    excess = rate * wait / log.in_flight_mean - 1
    tolerance = little_tolerance(waits, rate, seconds, log.mode)
    return Little(log.in_flight_mean, rate, wait, excess, tolerance, inside_ns / 1e9 / seconds)


def little_tolerance(residences_s: Floats, rate_rps: float, seconds: float, mode: str) -> float:
    """max(2%, 3 sqrt(2 E[W^3] / (3 rate mean(W)^2)) / T): three standard deviations of what is in flight at both edges
    of the window. In closed loop users move in step, so an edge may hold a whole wave: at least mean(W)/T there."""
    mean = float(residences_s.mean())
    edges = 3 * math.sqrt(2 * float((residences_s**3).mean()) / (3 * rate_rps * mean**2)) / seconds
    return max(0.02, edges, mean / seconds if mode == "closed" else 0.0)
