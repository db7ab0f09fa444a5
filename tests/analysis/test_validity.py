"""The certificate: each threshold of the table, one point for each side of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from analysis_builders import T0_NS, S, log, record

from loadgen.analysis.evidence import Evidence, little_tolerance
from loadgen.analysis.validity import Certificate, certify
from loadgen.collectors.records import RequestRecord


def healthy(n: int = 400, **changes: Any) -> list[RequestRecord]:
    """A light poisson point of 20 s whose requests take 0.1 s."""
    at = np.sort(np.random.default_rng(14).uniform(0, 20, n))
    return [
        record(
            a, 0.05, (0.01,) * 5, index=i, output_tokens_asked=6, prompt_tokens_asked=100, prompt_tokens=100, **changes
        )
        for i, a in enumerate(at)
    ]


def judge(records: list[RequestRecord], log_changes: dict[str, Any] | None = None, **evidence: Any) -> Certificate:
    return certify(Evidence(log(records, (0.0, 20.0), **(log_changes or {})), records, **evidence))


def verdict_of(certificate: Certificate, name: str) -> str:
    return next(check.verdict for check in certificate.checks if check.name == name)


def test_a_healthy_point_is_valid_and_every_check_has_its_evidence() -> None:
    certificate = judge(healthy())
    assert certificate.verdict == "VALID", [c for c in certificate.checks if c.verdict not in ("pass", "n/a")]
    assert len(certificate.checks) == 21
    assert all(check.text.endswith((".", ")")) for check in certificate.checks)


@pytest.mark.parametrize(("late_s", "expected"), [(0.004, "pass"), (0.006, "warn"), (0.011, "invalid")])
def test_lateness_has_a_floor_of_5_and_10_ms(late_s: float, expected: str) -> None:
    assert verdict_of(judge(healthy(late_s=late_s)), "lateness") == expected


@pytest.mark.parametrize(("late_s", "expected"), [(0.024, "pass"), (0.026, "warn"), (0.051, "invalid")])
def test_lateness_is_a_share_of_ttft_where_that_is_more(late_s: float, expected: str) -> None:
    records = [record(i * 0.05, 1.0, late_s=late_s) for i in range(400)]
    assert verdict_of(judge(records), "lateness") == expected


def test_over_one_percent_of_sends_later_than_50_ms_is_invalid_whatever_ttft_is() -> None:
    slow = [record(i * 0.05, 4.0, late_s=0.06 if i % 50 == 0 else 0.0) for i in range(400)]
    assert verdict_of(judge(slow), "lateness") == "invalid"


def test_a_new_connection_is_counted_from_dispatch() -> None:
    records = healthy(late_s=0.2)
    for each in records:
        each.dispatched_at_ns, each.connected_at_ns = each.intended_at_ns + S // 1000, each.sent_at_ns
    assert verdict_of(judge(records), "lateness") == "pass"


@pytest.mark.parametrize(("missing", "expected"), [(0, "pass"), (3, "warn"), (6, "invalid")])
def test_sends_that_were_not_made_count_against_the_client(missing: int, expected: str) -> None:
    records = healthy()
    for each in records[:missing]:
        each.sent_at_ns, each.status = None, "unfinished"
    assert verdict_of(judge(records), "offered load") == expected


@pytest.mark.parametrize(
    ("changes", "name", "expected"),
    [
        ({"loop_lag_p99_s": 0.006}, "loop lag", "warn"),
        ({"loop_lag_p99_s": 0.011}, "loop lag", "invalid"),
        ({"loop_stall_max_s": 0.12}, "loop lag", "warn"),
        ({"loop_stall_max_s": 0.26}, "loop lag", "invalid"),
        ({"gc_pause_max_s": 0.02, "gc_pauses": 1}, "garbage collection", "warn"),
        ({"client_cpu_share": 0.85}, "client CPU", "warn"),
        ({"writer_backlog_max": 5000}, "records writing", "invalid"),
        ({"writer_lag_max_s": 1.2}, "records writing", "invalid"),
        ({"in_flight_mean": 2.0 * 1.03}, "Little's law", "warn"),
        ({"in_flight_mean": 2.0 * 1.5}, "Little's law", "invalid"),
        ({"arrivals": "constant"}, "arrivals", "invalid"),
        ({"due_measured": 401}, "errors", "invalid"),
    ],
)
def test_the_generators_own_counts_are_judged(changes: dict[str, Any], name: str, expected: str) -> None:
    certificate = judge(healthy(), changes)
    assert verdict_of(certificate, name) == expected
    assert certificate.verdict == {"warn": "WARN", "invalid": "INVALID"}[expected]
    assert len(next(c.text for c in certificate.checks if c.name == name).split(". ")) > 1  # evidence, then advice


@pytest.mark.parametrize(
    ("stamped", "lag_ms", "expected", "said"),
    [
        (6, 1, "pass", "100.0% of 2,400 reads"),
        (0, 0, "pass", "no receive stamps"),
        (3, 1, "warn", "50.0%"),
        (6, 30, "warn", "30.00 ms (p50)"),
        (6, 260, "invalid", "260.00 ms (p90)"),
    ],
)
def test_the_source_of_the_instants_is_told_and_not_mixed(stamped: int, lag_ms: int, expected: str, said: str) -> None:
    records = healthy(reads_total=6, reads_kernel_stamped=stamped, read_lag_max_ns=lag_ms * 1_000_000)
    (check,) = [check for check in judge(records).checks if check.name == "receive stamps"]
    assert check.verdict == expected
    assert said in check.text


def test_anything_shed_makes_the_point_invalid() -> None:
    records = healthy()
    records[5].status, records[5].sent_at_ns = "shed", None
    assert verdict_of(judge(records), "shed") == "invalid"


def test_littles_tolerance_is_three_standard_errors_of_the_windows_edges() -> None:
    # M/D/inf: edges hold rate x E[W^3]/3 of variance each; simulated spread of (rate x W - L)/L against tolerance/3.
    rng = np.random.default_rng(12)
    off = []
    for _ in range(300):
        at = rng.uniform(-2, 20, rng.poisson(10 * 22))
        inside = np.clip(np.minimum(at + 2, 20) - np.maximum(at, 0), 0, None).sum() / 20
        off.append(((at >= 0).sum() / 20 * 2.0) / inside - 1)
    assert little_tolerance(np.full(200, 2.0), 10.0, 20.0, "open") / 3 == pytest.approx(np.std(off), rel=0.15)


def test_edges_of_a_short_window_are_a_warning_not_an_invalid_point() -> None:
    # All requests are sent in the window's last tenth: counter and records agree, the law can't hold.
    records = [record(18 + i * 0.005, 5.0) for i in range(400)]
    assert verdict_of(judge(records, {"in_flight_bins": []}), "Little's law") == "warn"


@pytest.mark.parametrize(("short", "expected"), [(4, "pass"), (8, "warn"), (44, "invalid")])
def test_answers_shorter_than_asked(short: int, expected: str) -> None:
    records = healthy()
    for each in records[:short]:
        each.output_tokens_asked, each.finish_reason = 7, "stop"
    assert verdict_of(judge(records), "tokens") == expected


@pytest.mark.parametrize(("counted", "expected"), [(101, "pass"), (103, "warn"), (94, "invalid")])
def test_prompt_tokens_against_the_asked_length(counted: int, expected: str) -> None:
    records = healthy()
    for each in records:
        each.prompt_tokens = counted
    assert verdict_of(judge(records), "prompt tokens") == expected


@pytest.mark.parametrize(("cached", "expected"), [(48, "pass"), (40, "warn"), (10, "invalid")])
def test_the_prefix_cache_against_what_the_scenario_intends(cached: int, expected: str) -> None:
    records = healthy()
    for each in records:
        each.cached_tokens = cached
    assert verdict_of(judge(records, cached_share_intended=0.5), "prefix cache") == expected
    assert verdict_of(judge(records), "prefix cache") == "n/a"


@pytest.mark.parametrize(
    ("n", "status", "expected"), [(1, "failed", "warn"), (5, "failed", "invalid"), (5, "unfinished", "invalid")]
)
def test_errors_and_unfinished_requests(n: int, status: Any, expected: str) -> None:
    records = healthy()
    for each in records[:n]:
        each.status = status
        each.error_class = "http_status" if status == "failed" else None
    assert verdict_of(judge(records), "errors") == expected


@pytest.mark.parametrize(
    ("output_tps", "best_tps", "expected"),
    [(500, 900, "pass"), (1001, 1001, "invalid"), (40, 40, "warn"), (40, 900, "pass")],
)
def test_the_bound_is_a_ceiling_and_the_sweeps_best_should_come_near_it(output_tps, best_tps, expected) -> None:
    certificate = judge(healthy(), output_tps=output_tps, best_tps=best_tps, bound_tps=1000)
    assert verdict_of(certificate, "bound") == expected


def test_closed_loop_has_no_arrival_process_and_no_trend() -> None:
    records = healthy()
    certificate = judge(records, {"mode": "closed"})
    assert verdict_of(certificate, "arrivals") == verdict_of(certificate, "stationarity") == "n/a"


def _overloaded() -> list[RequestRecord]:
    return [record(i * 0.05, 0.1 + i * 0.02, index=i) for i in range(400)]


def test_invalid_comes_before_nonstationary_and_that_before_warn() -> None:
    constant = {"arrivals": "constant"}
    assert judge(_overloaded(), constant).verdict == "NONSTATIONARY"
    assert judge(_overloaded(), {**constant, "client_cpu_share": 0.9}).verdict == "NONSTATIONARY"
    assert judge(_overloaded(), {**constant, "writer_lag_max_s": 2.0}).verdict == "INVALID"
    failing = _overloaded()
    for each in failing[:8]:
        each.status, each.error_class = "failed", "read_timeout"
    assert judge(failing, constant).verdict == "INVALID"


def test_an_interrupted_point_says_so_and_is_not_blamed_for_what_it_cut_off() -> None:
    records = healthy()[:100]
    records[-1].status = "unfinished"
    cut = {"interrupted": True, "due_measured": 400, "closed_at_ns": T0_NS + 6 * S}
    certificate = judge(records, cut)
    assert verdict_of(certificate, "offered load") == "warn"
    assert verdict_of(certificate, "errors") == "warn"


def test_an_unusual_draw_of_the_seed_is_told_and_does_not_make_the_point_invalid() -> None:
    # Poisson gaps put in an order that makes the counts of all bins nearly equal: CV 1, dispersion near 0.
    rng = np.random.default_rng(5)
    blocks = [gaps * 2 / gaps.sum() for gaps in rng.exponential(1.0, (8, 22))]
    at_s = np.cumsum(np.concatenate(blocks)) - 1e-9
    records = [record(float(at), index=i) for i, at in enumerate(at_s)]
    [check] = [c for c in certify(Evidence(log(records, (0.0, 16.0)), records)).checks if c.name == "arrivals"]
    assert check.verdict in ("pass", "warn")
    assert "The schedule itself was drawn so" in check.text


def held_back(n: int) -> list[RequestRecord]:
    """The healthy point, of which `n` answers of 60 tokens came in one read after 3 s (case B36)."""
    whole = [record(r * 0.05, 3.0, events=(60,), index=r, output_tokens_asked=60) for r in range(n)]
    streamed = [record(r * 0.05, 0.05, (0.05,) * 59, index=r, output_tokens_asked=60) for r in range(n, 100)]
    return whole + streamed


def test_answers_that_a_proxy_holds_back_are_warned_about() -> None:
    assert verdict_of(judge(held_back(0)), "streaming") == "pass"
    assert verdict_of(judge(held_back(50)), "streaming") == "pass"
    certificate = judge(held_back(51))
    assert verdict_of(certificate, "streaming") == "warn"
    text = next(check.text for check in certificate.checks if check.name == "streaming")
    assert "51.0% came all at once" in text
    assert "Buffered delivery, or not streaming" in text


def test_a_quick_or_short_answer_is_not_held_back() -> None:
    short = [record(i * 0.05, 3.0, events=(3,), index=i) for i in range(50)]
    quick = [record(i * 0.05, 0.002, events=(60,), index=i) for i in range(50)]
    assert verdict_of(judge(short), "streaming") == "n/a"
    assert verdict_of(judge(quick), "streaming") == "n/a"
    assert verdict_of(judge(healthy()), "streaming") == "n/a"
