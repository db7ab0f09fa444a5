"""The metrics on requests whose every instant is known."""

from __future__ import annotations

import numpy as np
import pytest
from analysis_builders import T0_NS, S, log, record

from loadgen.analysis import metrics
from loadgen.analysis.percentiles import distribution


def test_ttft_and_e2e_count_from_the_intended_and_from_the_actual_send() -> None:
    late = record(1.0, 0.5, (0.1, 0.2), late_s=0.3)
    assert metrics.ttft(late, "sent") == pytest.approx(0.5)
    assert metrics.ttft(late, "intended") == pytest.approx(0.8)
    assert metrics.e2e(late, "sent") == pytest.approx(0.8)
    assert metrics.e2e(late, "intended") == pytest.approx(1.1)


def test_ttfo_waits_for_the_answer_and_is_null_when_there_was_only_reasoning() -> None:
    thinking = record(0.0, 0.1, (1.0,), first_answer_at_ns=T0_NS + round(1.1 * S))
    assert metrics.ttfo(thinking, "sent") == pytest.approx(1.1)
    assert metrics.ttfo(record(first_answer_at_ns=None), "sent") is None


def test_b74_tpot_leaves_the_first_token_out_and_is_not_e2e_per_token() -> None:
    one = record(0.0, 0.5, (0.010,) * 99)
    assert metrics.tpot(one) == pytest.approx(0.010)
    assert metrics.e2e(one, "sent") == pytest.approx(1.490)
    assert metrics.e2e(one, "sent") / one.output_tokens == pytest.approx(0.0149)  # what others call TPOT
    assert "(output tokens - 1)" in metrics.definition(metrics.tpot)
    assert "guidellm" in metrics.ALIASES["tpot"]


def test_b70_an_answer_of_one_token_has_no_tpot_and_does_not_spoil_the_mean() -> None:
    single, triple = record(0.0, 0.08), record(0.0, 0.08, (0.01, 0.01))
    assert metrics.tpot(single) is None
    assert metrics.itl(single).tolist() == []
    tpots = distribution([t for r in (single, triple) if (t := metrics.tpot(r)) is not None])
    assert (tpots["n"], tpots["mean"]) == (1, pytest.approx(0.010))


def test_tokens_that_share_a_read_have_gaps_of_zero_between_them() -> None:
    burst = record(0.0, 0.1, (0.03, 0.05), events=(2, 3, 1))
    assert metrics.event_gap(burst) == pytest.approx([0, 0.03, 0, 0, 0.05])
    assert metrics.itl(burst) == pytest.approx(metrics.event_gap(burst))


def test_events_of_several_tokens_are_never_called_itl() -> None:
    speculative = record(0.0, 0.1, (0.03,) * 9, output_tokens=25, output_tokens_source="usage")
    assert metrics.itl(speculative) is None
    assert len(metrics.event_gap(speculative)) == 9


def test_the_end_token_that_servers_count_and_never_show_does_not_hide_itl() -> None:
    stopped = record(0.0, 0.1, (0.03,) * 9, output_tokens=11, output_tokens_source="usage", finish_reason="stop")
    assert len(metrics.itl(stopped)) == 9
    stopped.finish_reason = "length"
    assert metrics.itl(stopped) is None


def test_output_throughput_counts_what_arrived_inside_the_window_from_every_request() -> None:
    records = [
        record(-1.0, 0.5, (1.0, 1.0), phase="warmup"),  # tokens at -0.5, 0.5, 1.5: two inside
        record(9.0, 0.5, (1.0, 1.0)),  # 9.5, 10.5, 11.5: one inside, the end is exclusive
        record(5.0, 0.5, (1.0,), status="failed"),  # 5.5, 6.5
        record(9.9, 0.1, status="unfinished"),  # exactly 10.0: outside
    ]
    assert metrics.output_tps(log(records), records) == pytest.approx(5 / 10)


def test_events_are_scaled_to_the_tokens_of_usage_also_where_an_unfinished_answer_has_no_usage() -> None:
    usage = {"output_tokens": 10, "output_tokens_source": "usage"}
    records = [record(1.0, 0.1, (0.1,) * 4, **usage), record(2.0, 0.1, (0.1,), status="unfinished", end_s=20.0)]
    assert metrics.tokens_per_event(records) == 2.0
    assert metrics.output_tps(log(records), records) == pytest.approx((10 + 4) / 10)


def test_throughput_without_a_token_is_null_not_zero() -> None:
    failed = [record(1.0, None, status="failed", end_s=0.0, error_class="connect")]
    assert metrics.output_tps(log(failed), failed) is None
    assert metrics.achieved_rps(log(failed), failed) is None
    assert metrics.completion_rate([]) is None


def test_achieved_rate_counts_completions_inside_the_window() -> None:
    records = [record(-0.5, 1.0, phase="warmup"), record(3.0), record(9.95, 0.1)]
    assert metrics.achieved_rps(log(records), records) == pytest.approx(2 / 10)


def test_b80_the_rate_of_a_flood_is_taken_between_its_completions() -> None:
    ends = np.linspace(3.4, 5.4, 20)
    assert len(ends) / ends[-1] == pytest.approx(3.704, abs=1e-3)  # the naive rate
    assert metrics.completion_rate(ends.tolist()) == pytest.approx(9.5)


def test_the_sum_of_decode_speeds_is_higher_than_the_throughput_it_is_published_as() -> None:
    # 24 users at 21 tok/s each while they decode: 504; with prefill in between about 367 tokens arrive a second.
    cycle_s = 20 / 21 + 0.4
    users = [
        record(start + turn * cycle_s, 0.4, (1 / 21,) * 20)
        for start in np.linspace(0, cycle_s, 24, endpoint=False)
        for turn in range(-1, 8)
    ]
    point = log(users, mode="closed", closed_at_ns=T0_NS + 20 * S)
    assert point.in_flight_mean == pytest.approx(24, rel=0.01)
    assert metrics.decode_rate_tps(24, users) == pytest.approx(504)
    assert metrics.output_tps(point, users) == pytest.approx(24 * 21 / cycle_s, rel=0.02)
    assert metrics.running_mean(metrics.output_tps(point, users), users) == pytest.approx(
        24 * 21 / cycle_s / 21, rel=0.02
    )


def test_prefill_rate_counts_overlapping_prefills_once_and_leaves_cached_tokens_out() -> None:
    usage = {"prompt_tokens": 1000, "cached_tokens": 200}
    records = [record(0.0, 1.0, **usage), record(0.5, 1.0, **usage), record(5.0, 0.5, **usage)]
    assert metrics.prefill_rate_tps(records) == pytest.approx(3 * 800 / 2.0)


def test_prompt_throughput_goes_by_the_first_token() -> None:
    records = [record(-1.0, 2.0, phase="warmup", prompt_tokens=300), record(9.0, 2.0, prompt_tokens=500)]
    assert metrics.prompt_tps(log(records), records) == pytest.approx(30.0)
    assert metrics.prompt_tps(log([record()]), [record()]) is None


def test_stalls_are_judged_by_the_gaps_between_reads_and_by_the_objective() -> None:
    gaps = np.array([0.0] * 300 + [0.02] * 100 + [0.07, 0.5])
    assert metrics.stalls(gaps, None) == {"count": 2, "total_s": pytest.approx(0.57), "longest_s": 0.5}
    assert metrics.stalls(gaps, 0.1)["count"] == 1
    assert metrics.stalls(np.empty(0), None) == {"count": 0, "total_s": 0.0, "longest_s": 0.0}


def test_pooled_gaps_carry_the_slice_of_time_they_ended_in() -> None:
    gaps, blocks = metrics.pooled_gaps([record(0.0, 0.1, (0.1,) * 50), record(100.0, 0.1, (0.2,) * 50)], "n_events")
    assert len(gaps) == len(blocks) == 100
    assert blocks[:50].max() < blocks[50:].min()
    assert blocks.max() == 39


def test_b49_warm_up_requests_are_excluded_from_every_statistic() -> None:
    ttfts = [1.4, 1.4] + [0.1] * 20
    records = [record(i, t, phase="warmup" if i < 2 else "measured", index=i) for i, t in enumerate(ttfts)]
    values = [metrics.ttft(r, "sent") for r in metrics.measured(records)]
    assert (len(values), max(values)) == (20, pytest.approx(0.1))
    assert distribution(values)["p50"] == pytest.approx(0.1)
    assert max(metrics.ttft(r, "sent") for r in records) == pytest.approx(1.4)


def test_every_published_metric_has_a_definition() -> None:
    for name, function in metrics.DEFINED.items():
        assert len(metrics.definition(function)) > 30, name
    assert set(metrics.ALIASES) <= {*metrics.DEFINED, "goodput_rps"}


def test_the_throughput_interval_holds_the_mean_and_narrows_with_a_steady_stream() -> None:
    steady = [record(0.1 * i, 0.05, (0.01,) * 9, index=i) for i in range(100)]
    point_log = log(steady)
    tps = metrics.output_tps(point_log, steady)
    interval = metrics.output_tps_interval(point_log, steady)
    assert tps is not None
    assert interval is not None
    assert interval[0] <= tps <= interval[1]
    assert interval[1] - interval[0] < 0.05 * tps
    # The same tokens in bursts: half of the window is silent, so the interval is wide.
    bursts = [record(0.05 * (i % 10) + 2 * (i // 10) / 2, 0.05, (0.001,) * 9, index=i) for i in range(50)]
    wide = metrics.output_tps_interval(log(bursts), bursts)
    assert wide is not None
    assert wide[1] - wide[0] > 0.5 * (wide[1] + wide[0]) / 2
    assert metrics.output_tps_interval(log([]), []) is None


def test_a_time_line_is_the_generators_counter_in_at_most_a_hundred_bins_with_its_window() -> None:
    bins = [float(i // 10) for i in range(250)]
    found = metrics.time_line(log([record()], (5.0, 20.0), bin_s=0.1, in_flight_bins=bins))
    assert found["bin_s"] == pytest.approx(0.3)
    assert found["window_s"] == [5.0, 20.0]
    assert len(found["in_flight"]) == 84
    assert found["in_flight"][0] == 0
    assert found["in_flight"][-1] == 24
    assert sum(found["in_flight"][:83]) * 3 + 24 == pytest.approx(sum(bins), rel=1e-3)
    assert metrics.time_line(log([record()], in_flight_bins=[]))["in_flight"] == []
