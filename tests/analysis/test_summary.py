"""summary.json: the contract's keys, strict JSON, and nothing that the data does not bear."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from analysis_builders import S, log, queue, record

from loadgen.analysis.goodput import Objective
from loadgen.analysis.summary import WITHHELD, conclude, glance, scrub, summarize_run
from loadgen.collectors.records import RequestRecord

MANIFEST = {
    "run_id": "r1",
    "created_utc": "2026-12-01T13:00:00Z",
    "finished": True,
    "schedule_id": "0" * 16,
    "version": "0.1.0",
}
OBJECTIVES = (Objective("ttft", "p95", 0.5), Objective("itl", "p95", 0.3))
POINT_KEYS = {
    *("index", "rate_rps", "concurrency_target", "window_s", "concurrency_mean", "concurrency_max", "running_mean"),
    *(
        "offered_rps",
        "achieved_rps",
        "output_tps",
        "output_tps_ci95",
        "prompt_tps",
        "metrics",
        "decode_rate_tps",
        "prefill_rate_tps",
    ),
    *("goodput_rps", "attainment", "failed", "unfinished", "counts", "errors", "tokens", "bound", "bound_fraction"),
    *("connecting", "rejections", "client_limit", "e2e_with_timeouts"),
    *("stalls", "fluidity", "time_line", "validity"),
}


def strict(text: str) -> Any:
    """Parse as a strict JSON parser does: no NaN, no Infinity."""

    def refuse(word: str) -> Any:
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


def summary(*points: Any, **keywords: Any) -> dict[str, Any]:
    """Summarise and pass through a strict JSON writer and parser."""
    result = summarize_run(MANIFEST, list(points), **keywords)
    again: dict[str, Any] = strict(json.dumps(result, allow_nan=False))
    assert again == result
    return again


def steady(rate_rps: float, index: int = 0) -> Any:
    """A point of a stable server whose requests take 0.5 s."""
    made, records = queue(rate_rps, 0.5, 8, 60, np.random.default_rng(index))
    made.point = index
    return made, records


def overloaded(index: int) -> Any:
    """A point at 1.5 times the same server's capacity."""
    made, records = queue(24, 0.5, 8, 60, np.random.default_rng(index), patience_s=5)
    made.point = index
    return made, records


def bound_at(answers: Sequence[RequestRecord], concurrency: float) -> dict[str, Any]:
    assert answers
    assert all(record.status == "ok" for record in answers)
    assert concurrency > 0
    return {
        "output_tps": 200.0,
        "limiter": "bandwidth",
        "bandwidth_tps": 200.0,
        "compute_tps": 900.0,
        "latency_tps": None,
    }


def test_a_ladder_may_conclude_an_overloaded_point_from_a_glance() -> None:
    point = glance(*overloaded(2), bound_at)
    assert conclude(point, None, None).verdict == "NONSTATIONARY"
    assert point.row["metrics"]["ttft"]["from_intended"]["reason"] == WITHHELD


def test_a_sweep_has_every_key_of_the_contract_and_its_knee_past_which_the_queue_grows() -> None:
    curve = [{"concurrency": c, "bound_tps": 200.0 * c / (c + 2)} for c in (1, 2, 4, 8, 16, 32)]
    result = summary(
        steady(4, 0),
        steady(14.8, 1),
        overloaded(2),
        objectives=OBJECTIVES,
        bound_at=bound_at,
        roofline={"curve": curve, "knee_concurrency": 18.0},
    )
    assert set(result["points"][0]) == POINT_KEYS
    verdicts = [point["validity"]["verdict"] for point in result["points"]]
    assert verdicts[2] == "NONSTATIONARY"
    assert result["knee"]["measured"]["point"] == 1
    assert result["knee"]["measured"]["x_max_tps"] == max(p["output_tps"] for p in result["points"])
    assert result["knee"]["model"] == {"concurrency": 18.0}
    assert summary(steady(4), roofline={"curve": curve})["knee"]["model"] is None
    assert result["slo"]["best_point"] in (0, 1)
    for point in result["points"]:
        assert point["bound_fraction"] == pytest.approx(point["output_tps"] / 200)
    light = result["points"][0]
    assert light["output_tps"] == pytest.approx(3 * light["achieved_rps"], rel=0.02)
    assert light["concurrency_mean"] == pytest.approx(light["achieved_rps"] * 0.5, rel=0.1)
    assert light["metrics"]["ttft"]["from_intended"]["p50"] == pytest.approx(0.1)
    assert light["metrics"]["ttft"]["from_intended"]["needs"] in ({}, {"p99": 368})


def test_percentiles_of_a_growing_queue_are_withheld_and_its_throughput_is_not() -> None:
    point = summary(overloaded(0))["points"][0]
    ttft = point["metrics"]["ttft"]["from_intended"]
    assert (ttft["p50"], ttft["mean"], ttft["reason"]) == (None, None, WITHHELD)
    assert ttft["n"] > 0
    assert point["output_tps"] == pytest.approx(16 * 3, rel=0.03)


def test_the_fluidity_index_has_its_objectives_or_the_reason_why_there_is_none() -> None:
    stalled = [record(i * 0.1, 0.4, (0.3,) * 9, index=i) for i in range(80)]
    stalled[0] = record(0.0, 0.4, (0.3,) * 9 + (7.05,), index=0)
    fluid = summary((log(stalled), stalled), objectives=OBJECTIVES)["points"][0]["fluidity"]
    assert fluid == {"share": pytest.approx(800 / (800 + 23)), "reason": None}
    without = summary((log(stalled), stalled))["points"][0]["fluidity"]
    assert without == {"share": None, "reason": "no ITL objective: tokens have no deadlines"}
    # It tells of the wait for the first token too, which in a growing queue depends on how long one waits.
    assert summary(overloaded(0), objectives=OBJECTIVES)["points"][0]["fluidity"]["reason"] == WITHHELD


def test_a_growing_queue_is_seen_in_its_time_line() -> None:
    line = summary(overloaded(0))["points"][0]["time_line"]
    start, end = (int(edge / line["bin_s"]) for edge in line["window_s"])
    inside = line["in_flight"][start:end]
    assert np.polyfit(range(len(inside)), inside, 1)[0] * len(inside) > 0.5 * np.mean(inside)


def test_closed_loop_has_no_latency_from_intended() -> None:
    made, records = steady(4)
    made.mode, made.concurrency, made.rate_rps = "closed", 2, None
    result = summary((made, records))
    assert result["mode"] == "closed"
    assert result["points"][0]["metrics"]["ttft"]["from_intended"] is None
    assert result["points"][0]["metrics"]["ttft"]["from_sent"]["p50"] is not None


def test_b76_b72_all_failed_leaves_no_zeros_no_curve_and_a_strict_file() -> None:
    records = [
        record(i * 0.1, None, status="failed", end_s=0.0, error_class="connect", error="refused", index=i)
        for i in range(50)
    ]
    result = summary((log(records), records), objectives=OBJECTIVES, bound_at=bound_at)
    point = result["points"][0]
    assert (point["output_tps"], point["achieved_rps"], point["bound_fraction"]) == (None, None, None)
    assert point["metrics"]["e2e"]["from_sent"]["mean"] is None
    assert point["errors"] == [{"class": "connect", "message": "refused", "count": 50}]
    assert point["validity"]["verdict"] == "INVALID"
    assert result["knee"]["measured"] is None
    assert result["knee"]["reason"]
    assert result["slo"]["best_point"] is None
    assert result["slo"]["reason"]


def test_b76_one_failed_connection_does_not_lose_the_other_request() -> None:
    records = [record(1, 0.05, (0.05,) * 9), record(2, None, status="failed", end_s=0.0, error_class="connect")]
    point = summary((log(records), records))["points"][0]
    assert (point["counts"]["ok"], point["failed"]) == (1, 1)
    assert point["output_tps"] == pytest.approx(10 / 10)


def test_b72_one_token_answers_and_no_requests_at_all_are_strict_json() -> None:
    single = [record(i * 0.1, 0.05, index=i) for i in range(90)]
    point = summary((log(single), single))["points"][0]
    assert point["metrics"]["itl"]["p50"] is None
    assert point["metrics"]["tpot"]["reason"]
    nothing = summary((log([]), []))["points"][0]
    assert nothing["validity"]["verdict"] == "INVALID"  # nothing was due: there is nothing that could be believed
    assert summary()["points"] == []


def test_b49_warm_up_is_in_the_throughput_of_the_window_and_in_no_latency() -> None:
    ttfts = [1.4, 1.4] + [0.1] * 20
    records = [
        record(-0.6 + i * 0.3, t, phase="warmup" if i < 2 else "measured", index=i, events=(3,))
        for i, t in enumerate(ttfts)
    ]
    point = summary((log(records), records))["points"][0]
    ttft = point["metrics"]["ttft"]["from_sent"]
    assert (ttft["n"], ttft["p50"], ttft["mean"]) == (20, pytest.approx(0.1), pytest.approx(0.1))
    assert ttft["needs"] == {"p90": 36, "p95": 72, "p99": 368}
    assert point["output_tps"] == pytest.approx(22 * 3 / 10)


def test_b77_times_are_seconds() -> None:
    records = [record(1, 0.5, (0.5,) * 4)]
    e2e = summary((log(records), records))["points"][0]["metrics"]["e2e"]["from_sent"]
    assert e2e["mean"] == pytest.approx(2.5)


def test_b82_durations_survive_a_step_of_the_wall_clock() -> None:
    records = [record(i, 0.1, (0.1,), index=i) for i in range(8)]
    before = summary((log(records), records))["points"][0]
    for each in records[4:]:
        each.intended_wall_s += 3600.0
    assert summary((log(records), records))["points"][0] == before
    stamp = datetime.fromtimestamp(records[0].intended_wall_s, UTC)
    assert stamp.year > 2020
    anchors = {round(r.intended_wall_s - r.intended_at_ns / S, 3) for r in records[:4]}
    assert len(anchors) == 1


def test_b74_definitions_and_aliases_are_in_the_file() -> None:
    result = summary(steady(4))
    assert "(output tokens - 1)" in result["definitions"]["tpot"]
    assert "inter_token_latency_ms" in result["aliases"]["tpot"]["guidellm"]
    assert result["definitions"]["goodput_rps"]


def test_events_of_several_tokens_give_an_event_gap_and_no_itl() -> None:
    usage = {"output_tokens": 22, "output_tokens_source": "usage"}
    records = [record(i * 0.1, 0.05, (0.02,) * 10, index=i, **usage) for i in range(90)]
    point = summary((log(records), records))["points"][0]
    assert point["metrics"]["itl"]["p50"] is None
    assert "2.00 tokens per event" in point["metrics"]["itl"]["reason"]
    assert point["metrics"]["event_gap"]["p50"] == pytest.approx(0.02)
    assert point["tokens"]["per_event"] == pytest.approx(2.0)


def test_requests_that_had_not_ended_push_the_tail_up_instead_of_vanishing() -> None:
    records = [record(i * 0.02, 0.1, (0.1,), index=i) for i in range(480)]
    for each in records[::40]:
        each.status, each.stream_end_at_ns = "unfinished", each.sent_at_ns + 30 * S
    point = summary((log(records), records))["points"][0]
    e2e = point["metrics"]["e2e"]["from_sent"]
    assert e2e["p50"] == pytest.approx(0.2)
    assert e2e["p99"] is None
    assert "p99 >= 30.000 s: 12 of 480" in e2e["reason"]
    assert point["metrics"]["ttft"]["from_sent"]["p99"] == pytest.approx(0.1)  # their first tokens did come


def test_an_objective_without_its_sample_is_not_met() -> None:
    few = [record(i * 0.3, 0.1, (0.1,), index=i) for i in range(30)]
    result = summary((log(few, arrivals="constant"), few), objectives=(Objective("ttft", "p99", 0.5),))
    assert result["slo"]["best_point"] is None
    assert "lack the figure" in result["slo"]["reason"]


def test_scrub_lets_no_nan_infinity_or_negative_zero_through() -> None:
    messy = {
        "a": float("nan"),
        "b": [np.inf, np.float64(1.5), np.int64(3)],
        "c": (-0.0, np.array([1.0, np.nan])),
        4: True,
    }
    clean = scrub(messy)
    assert clean == {"a": None, "b": [None, 1.5, 3], "c": [0.0, [1.0, None]], "4": True}
    assert str(clean["c"][0]) == "0.0"
