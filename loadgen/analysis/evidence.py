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
        starts = [(start_ns(r), r.intended_at_ns) for r in self.measured]
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


def window_bins(log: PointLog) -> list[float]:
    """The in-flight averages of the bins that lie inside the measured window."""
    start, end = metrics.window_ns(log)
    first = math.ceil(round((start - log.t0_ns) / 1e9 / log.bin_s, 6))
    last = math.floor(round((end - log.t0_ns) / 1e9 / log.bin_s, 6))
    return log.in_flight_bins[max(first, 0) : max(last, 0)]


def start_ns(record: RequestRecord) -> int | None:
    return record.dispatched_at_ns if record.connected_at_ns is not None else record.sent_at_ns


def grade(value: float, warn: float, invalid: float) -> CheckVerdict:
    return "invalid" if value > invalid else "warn" if value > warn else "pass"


def advise(verdict: CheckVerdict, advice: str) -> str:
    return f" {advice}" if verdict in ("warn", "invalid", "nonstationary") else ""
