"""What one load says of the client: errors against the server's log, cost, and whether it counts."""

from __future__ import annotations

from array import array
from dataclasses import replace

import numpy as np
import pytest

from loadgen.collectors.records import PointLog, RequestRecord
from loadgen.self_test.ladder import PARTS, Part
from loadgen.self_test.rung import Rung, Used, gap_cv, rung_of

MS = 1_000_000
PART = Part("events", "closed", (4,), 5, 10.0, 10.0, 0.0, 2.0, 5)
USED = Used(window_s=2.0, client_cpu_s=0.5, server_cpu_s=0.2, core_busy_s=0.6, memory_bytes=1000)


def record(i: int, late_ms: float = 0.0, status: str = "ok") -> RequestRecord:
    """A request of 5 tokens 10 ms apart, sent `late_ms` after it was due; reads 0.2 ms after the server's sends."""
    intended = 1_000_000_000 + i * 50 * MS
    sent = intended + round(late_ms * MS)
    first = sent + 10 * MS + MS // 5
    return RequestRecord(
        point=0,
        index=i,
        phase="measured",
        status=status,  # type: ignore[arg-type]
        intended_at_ns=intended,
        intended_wall_s=0.0,
        dispatched_at_ns=intended,
        sent_at_ns=sent,
        headers_at_ns=sent,
        first_token_at_ns=first,
        first_answer_at_ns=first,
        last_token_at_ns=first + 40 * MS,
        stream_end_at_ns=first + 40 * MS,
        output_tokens_asked=5,
        output_tokens=5,
        output_tokens_source="usage",
        n_token_events=5,
        finish_reason="length",
        http_status=200,
        gap_ns=array("q", [0, *[10 * MS] * 4]),
        gap_events=array("i", [1] * 5),
        gap_bytes=array("i", [100] * 5),
    )


def truth_of(record: RequestRecord, jitter_ns: int = 0) -> dict[str, object]:
    """The server's entry for it: each send 0.2 ms before the client's instant, the third one `jitter_ns` later."""
    sends = record.first_token_at_ns - MS // 5 + np.arange(5) * 10 * MS  # type: ignore[operator]
    sends[2] += jitter_ns
    return {"id": f"run-0-{record.index}", "arrived_at_ns": record.sent_at_ns, "token_at_ns": sends}


def log(mode: str = "closed", lag_s: float = 0.001) -> PointLog:
    return PointLog(
        point=0,
        mode=mode,  # type: ignore[arg-type]
        rate_rps=20.0 if mode == "open" else None,
        concurrency=4 if mode == "closed" else None,
        t0_ns=1_000_000_000,
        t0_wall_s=0.0,
        window_start_ns=1_000_000_000,
        window_end_ns=3_000_000_000,
        closed_at_ns=3_200_000_000,
        due_measured=40,
        in_flight_mean=1.0,
        in_flight_max=2,
        bin_s=0.1,
        in_flight_bins=[1.0] * 22,
        loop_lag_p99_s=lag_s,
        client_cpu_share=0.2,
        writer_backlog_max=0,
        writer_backlog_limit=5000,
        writer_lag_max_s=0.0,
    )


def rung(
    records: list[RequestRecord], jitter_ns: int = 0, part: Part = PART, used: Used = USED, lag_s: float = 0.001
) -> Rung:
    truth = [truth_of(each, jitter_ns) for each in records]
    return rung_of(part, 4, log(part.mode, lag_s), records, "run", truth, used)


def test_errors_are_client_minus_server_by_request_id() -> None:
    found = rung([record(i) for i in range(40)], jitter_ns=3 * MS)
    assert found.n_matched == 40
    assert found.ttft_error_s == pytest.approx((0.0002, 0.0002))
    # Of four gaps two are off by the 3 ms by which the third send was late: the one before it and the one after it.
    assert found.itl_error_s == pytest.approx((0.0015, 0.003))


def test_requests_that_the_server_does_not_know_are_not_matched() -> None:
    records = [record(i) for i in range(40)]
    found = rung_of(PART, 4, log(), records, "run", [truth_of(each) for each in records[:10]], USED)
    assert found.n_matched == 10
    assert rung_of(PART, 4, log(), records, "another", [truth_of(each) for each in records], USED).ttft_error_s is None


def test_cost_is_cpu_of_the_window_over_the_events_of_the_window() -> None:
    found = rung([record(i) for i in range(40)])
    assert found.events_per_s == pytest.approx(100, rel=0.02)  # 40 requests of 5 tokens in 2 s
    assert found.cpu_share == pytest.approx(0.25)
    assert found.cpu_us_per_event == pytest.approx(2500, rel=0.02)
    assert found.server_cpu_share == pytest.approx(0.1)
    assert found.others_cpu_share == pytest.approx(0.05)
    assert not found.disturbed


def test_a_load_whose_certificate_fails_does_not_count_and_says_why() -> None:
    good, bad = rung([record(i) for i in range(40)]), rung([record(i, late_ms=60) for i in range(40)])
    assert good.offered
    assert not bad.offered
    assert bad.verdict == "INVALID"
    assert bad.failing[0].startswith("lateness: ")
    assert not rung([record(i) for i in range(40)], lag_s=0.05).offered


def test_a_full_core_does_not_count_in_closed_loop() -> None:
    full = replace(USED, client_cpu_s=1.98, core_busy_s=2.0)
    found = rung([record(i) for i in range(40)], used=full)
    assert found.verdict in ("VALID", "WARN")
    assert found.saturated
    assert not found.offered


def test_a_server_that_is_full_while_the_client_is_not_binds() -> None:
    assert rung([record(i) for i in range(40)], used=replace(USED, server_cpu_s=1.95)).server_binds
    both = replace(USED, server_cpu_s=1.95, client_cpu_s=1.97)
    assert not rung([record(i) for i in range(40)], used=both).server_binds
    assert not rung([record(i) for i in range(40)], used=replace(USED, server_cpu_s=None)).server_binds


def test_other_work_on_the_clients_core_is_seen() -> None:
    assert rung([record(i) for i in range(40)], used=replace(USED, core_busy_s=1.9)).disturbed


def test_gaps_are_told_beside_those_that_were_asked_in_open_loop_only() -> None:
    open_part = replace(PARTS[0], output_tokens=5)
    found = rung([record(i) for i in range(40)], part=open_part)
    assert found.gap_cv == pytest.approx(0.0, abs=1e-9)
    assert found.gap_cv_asked == 1.0
    assert rung([record(i) for i in range(40)]).gap_cv is None


@pytest.mark.parametrize(
    ("at_ns", "cv"), [([], None), ([1, 2], None), ([1, 1, 1], None), ([0, 30, 10], 1 / 3 * 2**0.5)]
)
def test_the_variation_of_gaps(at_ns: list[int], cv: float | None) -> None:
    assert gap_cv(at_ns) == (None if cv is None else pytest.approx(cv))


def test_a_rung_is_plain_data_for_json() -> None:
    data = rung([record(i) for i in range(40)]).as_dict()
    assert data["offered"] is True
    assert data["part"] == "events"
