"""The validity certificate: is the point what it claims to be? Every check carries its evidence, and advice if it
fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from loadgen.analysis import admission, client_checks, server_checks
from loadgen.analysis.evidence import Check, CheckVerdict, Evidence

Verdict = Literal["VALID", "WARN", "INVALID", "NONSTATIONARY"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """The verdict of a load point with all its checks."""

    verdict: Verdict
    checks: tuple[Check, ...]

    def as_dict(self) -> dict[str, Any]:
        """As it stands in summary.json."""
        return {"verdict": self.verdict, "checks": [asdict(check) for check in self.checks]}


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


CHECKS: tuple[Callable[[Evidence], Check], ...] = (
    client_checks.lateness,
    client_checks.offered_load,
    client_checks.loop_lag,
    client_checks.garbage_collection,
    client_checks.receive_stamps,
    client_checks.client_cpu,
    client_checks.shed,
    client_checks.records_writing,
    client_checks.arrivals,
    admission.check_connecting,
    admission.check_limit,
    admission.check_rejections,
    server_checks.little,
    server_checks.answer_lengths,
    server_checks.streaming,
    server_checks.prompt_lengths,
    server_checks.prefix_cache,
    server_checks.stationarity,
    server_checks.warmup,
    server_checks.errors,
    server_checks.bound,
)
