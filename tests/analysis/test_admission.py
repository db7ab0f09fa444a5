"""Connecting, the client's own limit and rejections: told apart from the server's speed, and by the certificate."""

from __future__ import annotations

from typing import Any

import pytest
from analysis_builders import S, log, record

from loadgen.analysis import admission
from loadgen.analysis.evidence import Check, Evidence
from loadgen.analysis.timeouts import e2e_with_timeouts
from loadgen.analysis.validity import certify
from loadgen.collectors.records import RequestRecord


def line(records: list[RequestRecord], name: str) -> Check:
    return next(check for check in certify(Evidence(log(records), records)).checks if check.name == name)


def cold(at_s: float, name_ms: int, tcp_ms: int, tls_ms: int, **changes: Any) -> RequestRecord:
    """Took up at `at_s`, sent when its own connection was ready."""
    made = record(at_s, late_s=(name_ms + tcp_ms + tls_ms) / 1000, **changes)
    made.dispatched_at_ns = made.intended_at_ns
    made.resolved_at_ns = made.intended_at_ns + name_ms * S // 1000
    made.tcp_connected_at_ns = made.resolved_at_ns + tcp_ms * S // 1000
    made.connected_at_ns = made.tcp_connected_at_ns + tls_ms * S // 1000
    return made


def test_connecting_is_taken_apart_and_is_no_lateness() -> None:
    records = [record(0.01 * i) for i in range(300)] + [cold(3 + i, 10, 20, 300) for i in range(5)]
    found = admission.connecting(records)
    assert found == pytest.approx(
        {"n": 5, "n_reconnected": 0, "name_s": 0.01, "tcp_s": 0.02, "tls_s": 0.3, "total_s": 0.33, "max_s": 0.33}
    )
    assert line(records, "lateness").verdict == "pass"
    assert "name 10 ms, TCP 20 ms, TLS 300 ms" in line(records, "connecting").text


def test_without_tls_there_is_no_time_for_it() -> None:
    found = admission.connecting([cold(1.0, 0, 2, 0)])
    assert (found["tls_s"], found["tcp_s"]) == (None, pytest.approx(0.002))


def test_without_cold_requests_there_is_nothing_to_tell() -> None:
    assert admission.connecting([record()])["total_s"] is None
    assert line([record()], "connecting").verdict == "pass"


def held_back(n: int, of: int) -> list[RequestRecord]:
    return [record(i / of, late_s=0.2 * (i < n), limit_delay_ns=S // 5 * (i < n)) for i in range(of)]


@pytest.mark.parametrize(("n", "verdict"), [(0, "pass"), (1, "warn"), (80, "warn"), (81, "invalid")])
def test_a_load_that_the_client_limited_is_no_finding_about_the_server(n: int, verdict: str) -> None:
    check = line(held_back(n, 100), "client limit")
    assert check.verdict == verdict
    assert "held" in check.text
    assert ("200 ms" in check.text) == (n > 0)


def test_the_limits_delay_is_no_lateness_of_the_client_and_judges_no_arrivals() -> None:
    records = held_back(30, 100)
    assert line(records, "lateness").value == pytest.approx(0.0, abs=1e-6)
    assert line(records, "arrivals").verdict == "n/a"
    assert admission.limited(records) == pytest.approx({"n": 30, "p50_s": 0.2, "max_s": 0.2})


def rejected(at_s: float, n: int, advised_s: float, needed_s: float, **changes: Any) -> RequestRecord:
    made = record(at_s, late_s=needed_s + 0.01, n_attempts=n + 1, n_rejections=n, advised_wait_s=advised_s, **changes)
    made.dispatched_at_ns = made.intended_at_ns
    made.first_rejected_at_ns = made.intended_at_ns + S // 100
    return made


def test_rejections_are_counted_against_the_servers_advice() -> None:
    records = [record(0.01 * i) for i in range(90)] + [rejected(1 + i, 3, 0.5, 1.6) for i in range(4)]
    found = admission.rejections(records)
    assert (found["requests"], found["rejections"], found["on_time_again"]) == (4, 12, 8)
    assert (found["advised_s"], found["needed_s"]) == pytest.approx((0.5, 1.6))
    check = line(records, "rejections")
    assert check.verdict == "warn"
    assert "Advised wait 0.5 s (median), needed 1.6 s. 8 times a client came back on time" in check.text
    assert line(records, "lateness").verdict == "pass"  # they were taken up in time


def test_a_request_that_was_rejected_to_the_end_needs_no_known_wait() -> None:
    last = record(1.0, None, status="failed", end_s=0.1, n_attempts=1, n_rejections=1, first_rejected_at_ns=S)
    found = admission.rejections([last])
    assert (found["rejections"], found["on_time_again"], found["needed_s"]) == (1, 0, None)


def test_a_timeout_counts_as_at_least_its_limit() -> None:
    answers = [record(0.1 * i, 0.1) for i in range(32)]  # case B67, with the samples that a p90 needs
    given_up = [record(0.1 * i, None, status="failed", error_class="total_timeout", end_s=1.0) for i in range(8)]
    refused = [record(5.0, None, status="failed", error_class="http_status", end_s=0.01)]
    found = e2e_with_timeouts([*answers, *given_up, *refused], "intended")
    assert (found["n"], found["p50"], found["p90"]) == (40, pytest.approx(0.1), None)
    assert "p90 >= 1.000 s" in found["reason"]
    assert "E2E is p50 0.1 s, p90 >= 1.000 s" in line([*answers, *given_up], "errors").text
    assert "With" not in line([*answers, *refused], "errors").text
