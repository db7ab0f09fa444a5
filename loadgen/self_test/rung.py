"""One load that the client was tried with: what it did, how wrong its instants were, and what it cost. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.analysis import metrics
from loadgen.analysis.arrival_check import asked_cv
from loadgen.analysis.evidence import Evidence
from loadgen.analysis.self_error import self_error
from loadgen.analysis.validity import Certificate, certify
from loadgen.collectors.records import PointLog, RequestRecord
from loadgen.self_test.ladder import Name, Part

SATURATED = 0.97  # of the client's core, in closed loop: what more is asked of it, it does later
SERVER_BINDS = 0.9  # of the mock server's core
DISTURBED = 0.1  # of the client's core


@dataclass(frozen=True)
class Used:
    """What the measured window took: CPU seconds of client and server, and the client's memory above the start.

    `core_busy_s` is what the client's core was busy, with whatever; None is unknown.
    """

    window_s: float
    client_cpu_s: float
    server_cpu_s: float | None
    core_busy_s: float | None
    memory_bytes: int | None


@dataclass(frozen=True)
class Rung:
    """One load and its figures; pairs are (p50, p99) in seconds, None where there is nothing to count.

    Errors are client - server, of the first token's instant and of the size of gaps between tokens (without their
    sign). `failing` has the text of each check of the certificate that makes the point INVALID or NONSTATIONARY.
    """

    part: Name
    load: int
    verdict: str
    failing: tuple[str, ...]
    due: int
    sent: int
    events_per_s: float
    requests_per_s: float
    lateness_s: tuple[float, float] | None
    gap_cv: float | None
    gap_cv_asked: float | None
    ttft_error_s: tuple[float, float] | None
    itl_error_s: tuple[float, float] | None
    n_matched: int
    cpu_share: float
    cpu_us_per_event: float | None
    server_cpu_share: float | None
    others_cpu_share: float | None
    loop_lag_p99_s: float | None
    memory_bytes: int | None
    saturated: bool

    @property
    def offered(self) -> bool:
        """Whether the client could offer this load and time it."""
        return self.verdict in ("VALID", "WARN") and not self.saturated

    @property
    def server_binds(self) -> bool:
        """Whether the mock server was the one that could do no more."""
        return self.server_cpu_share is not None and self.server_cpu_share > max(SERVER_BINDS, self.cpu_share)

    @property
    def disturbed(self) -> bool:
        """Whether other work took a material part of the client's core."""
        return self.others_cpu_share is not None and self.others_cpu_share > DISTURBED

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self) | {"offered": self.offered, "server_binds": self.server_binds, "disturbed": self.disturbed}


def rung_of(
    part: Part,
    load: int,
    log: PointLog,
    records: Sequence[RequestRecord],
    run_id: str,
    truth: Sequence[Mapping[str, Any]],
    used: Used,
) -> Rung:
    """Certify the point as `bench run` does, and subtract the server's log, joined on the request id.

    truth: entries `id`, `arrived_at_ns`, `token_at_ns`, as `self_error` takes them.
    """
    per_s = metrics.output_tps(log, records) or 0.0
    evidence = Evidence(log, records, output_tps=per_s)
    certificate = certify(evidence)
    error = self_error(evidence.measured, run_id, truth)
    cpu_share = used.client_cpu_s / used.window_s
    return Rung(
        part=part.name,
        load=load,
        verdict=certificate.verdict,
        failing=failing_of(certificate),
        due=metrics.n_due(log, records),
        sent=sum(r.sent_at_ns is not None for r in evidence.measured),
        events_per_s=per_s,
        requests_per_s=metrics.achieved_rps(log, records) or 0.0,
        lateness_s=two(evidence.lateness_s),
        gap_cv=gap_cv([r.sent_at_ns for r in evidence.measured if r.sent_at_ns]) if part.mode == "open" else None,
        gap_cv_asked=asked_cv(log.arrivals) if part.mode == "open" else None,
        ttft_error_s=two(error.ttft_s),
        itl_error_s=two(np.abs(error.itl_s)),
        n_matched=error.n,
        cpu_share=cpu_share,
        cpu_us_per_event=cpu_share / per_s * 1e6 if per_s else None,
        others_cpu_share=None if used.core_busy_s is None else used.core_busy_s / used.window_s - cpu_share,
        server_cpu_share=None if used.server_cpu_s is None else used.server_cpu_s / used.window_s,
        loop_lag_p99_s=log.loop_lag_p99_s,
        memory_bytes=used.memory_bytes,
        saturated=part.mode == "closed" and cpu_share > SATURATED,
    )


def failing_of(certificate: Certificate) -> tuple[str, ...]:
    """`name: evidence` of the checks that condemn the point."""
    bad = ("invalid", "nonstationary")
    return tuple(f"{check.name}: {check.text}" for check in certificate.checks if check.verdict in bad)


def gap_cv(at_ns: Sequence[int]) -> float | None:
    """Coefficient of variation of the gaps between instants; None below three of them."""
    gaps = np.diff(np.sort(np.asarray(at_ns, dtype=np.int64)))
    return float(gaps.std(ddof=1) / gaps.mean()) if len(gaps) > 1 and gaps.mean() > 0 else None


def two(values: npt.NDArray[np.float64]) -> tuple[float, float] | None:
    """Median and 99th percentile."""
    return (float(np.median(values)), float(np.percentile(values, 99))) if len(values) else None
