"""The plan is complete, the same for the same seed, and each stream of it stands alone."""

from __future__ import annotations

import json
import statistics

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loadgen.scenario.errors import ScenarioError
from loadgen.scenario.loader import load_scenario
from loadgen.scenario.schedule import (
    MIN_OWN_TOKENS,
    closed_loop_requests,
    mean_tokens,
    n_tokens,
    plan_point,
    schedule_id,
    schedule_rows,
)

RAG = load_scenario("rag")


def rag(*overrides: str):
    return load_scenario("rag", overrides)


def column(plan, name: str) -> list:
    return [getattr(request, name) for request in plan.requests]


@settings(max_examples=30, deadline=None)
@given(rate=st.floats(0.05, 200), faster=st.floats(1, 20))
def test_one_seed_at_any_rate_is_the_same_stream(rate, faster):
    times = {"warmup_s": 1.0, "duration_s": 8.0, "cooldown_s": 1.0}
    slow = plan_point(RAG, point=0, rate_rps=rate, **times)
    fast = plan_point(RAG, point=3, rate_rps=rate * faster, **times)
    n = min(len(slow.requests), len(fast.requests))
    assert np.array(column(fast, "at_s")[:n]) * faster == pytest.approx(np.array(column(slow, "at_s")[:n]))
    for name in ("prompt_tokens", "output_tokens", "prefix_group", "prefix_tokens"):
        assert column(slow, name)[:n] == column(fast, name)[:n]


STREAMS = {"at_s", "prompt_tokens", "output_tokens", "prefix_group"}


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("workload.output.tokens={uniform: {low: 5, high: 500}}", {"output_tokens"}),
        ("workload.prompt.tokens={uniform: {low: 1000, high: 5000}}", {"prompt_tokens"}),
        ("workload.shared_prefix.groups=5", {"prefix_group"}),
        ("load.arrivals=constant", {"at_s"}),
        ("seed=8", STREAMS),
        ("load.max_in_flight=5", set()),
    ],
)
def test_editing_one_stream_leaves_the_others_as_they_were(override, changed):
    before, after = (plan_point(s, point=0, rate_rps=5).requests[:200] for s in (RAG, rag(override)))
    differing = {name for name in STREAMS if [getattr(r, name) for r in before] != [getattr(r, name) for r in after]}
    assert differing == changed


def test_streams_do_not_follow_each_other():
    plan = plan_point(RAG, point=0, rate_rps=100)
    columns = [np.diff(column(plan, "at_s"), prepend=0)]
    columns += [np.array(column(plan, name), float) for name in ("prompt_tokens", "output_tokens", "prefix_group")]
    correlations = np.corrcoef(columns)[np.triu_indices(4, 1)]
    # Standard error 1/sqrt(n) of each of 6; 4.2 sigma: false alarm about 1 in 6,000 together.
    assert np.abs(correlations).max() < 4.2 / np.sqrt(len(plan.requests))


def test_phases_follow_intended_time_and_load_goes_on_through_the_cool_down():
    plan = plan_point(RAG, point=0, rate_rps=20, warmup_s=5.0, duration_s=30.0, cooldown_s=10.0)
    assert column(plan, "at_s") == sorted(column(plan, "at_s"))
    for request in plan.requests:
        at = request.at_s
        assert request.phase == ("warmup" if at < 5 else "measured" if at < 35 else "cooldown")
    assert plan.requests[-1].at_s == pytest.approx(45, abs=1)
    assert (plan.warmup_s, plan.duration_s, plan.cooldown_s, plan.mode) == (5, 30, 10, "open")
    assert column(plan, "index") == list(range(len(plan.requests)))


def test_constant_arrivals_fill_the_window_with_exactly_rate_times_duration():
    plan = plan_point(rag("load.arrivals=constant"), point=0, rate_rps=2, warmup_s=5.0, duration_s=30.0)
    assert column(plan, "phase").count("measured") == 60
    assert np.diff(column(plan, "at_s")) == pytest.approx(0.5)


@settings(max_examples=30, deadline=None)
@example(n=3, rate=5.0, warmup_s=0.0, seed=1, burstiness=0.01)  # gaps below a nanosecond
@given(
    n=st.integers(1, 800),
    rate=st.floats(0.1, 50),
    warmup_s=st.floats(0, 20),
    seed=st.integers(0, 99),
    burstiness=st.floats(0.01, 5),
)
def test_n_requests_are_exactly_n_measured_requests(n, rate, warmup_s, seed, burstiness):
    scenario = rag(f"seed={seed}", f"load.arrivals={{gamma: {{burstiness: {burstiness}}}}}")
    plan = plan_point(scenario, point=0, rate_rps=rate, warmup_s=warmup_s, n_requests=n)
    measured = [request.at_s for request in plan.requests if request.phase == "measured"]
    assert len(measured) == n
    assert measured[-1] < plan.warmup_s + plan.duration_s <= measured[-1] + 1e-5
    assert round(measured[-1] * 1e9) < round((plan.warmup_s + plan.duration_s) * 1e9)  # as the generator compares


def test_n_requests_take_n_over_the_rate_on_average_and_not_always():
    durations = [
        plan_point(rag(f"seed={s}"), point=0, rate_rps=10, n_requests=400, warmup_s=0.0).duration_s for s in range(60)
    ]
    # Each is gamma of mean 40 s, sd 2 s: 4.5 standard errors of the mean of 60.
    assert statistics.mean(durations) == pytest.approx(40, abs=4.5 * 2 / 60**0.5)
    assert statistics.stdev(durations) > 1


def test_prompts_no_longer_than_the_prefix_keep_some_tokens_of_their_own():
    plan = plan_point(rag("workload.prompt.tokens={uniform: {low: 500, high: 600}}"), point=0, rate_rps=20)
    assert all(request.prefix_tokens <= request.prompt_tokens - MIN_OWN_TOKENS for request in plan.requests)
    assert max(column(plan, "prefix_tokens")) == 512


def test_without_a_shared_prefix_there_is_no_group():
    plan = plan_point(load_scenario("code"), point=0, rate_rps=2)
    assert set(column(plan, "prefix_group")) == {None}
    assert set(column(plan, "prefix_tokens")) == {0}


def test_closed_loop_has_requests_for_users_served_at_1000_tokens_a_second():
    plan = plan_point(RAG, point=0, concurrency=16, warmup_s=5.0, duration_s=20.0)
    assert (plan.mode, plan.concurrency, plan.rate_rps) == ("closed", 16, None)
    assert set(column(plan, "at_s")) == {0.0}
    assert len(plan.requests) == closed_loop_requests(RAG, 16, 25.0) >= 16 * 25 / (mean_tokens(RAG)[1] / 1000)
    assert closed_loop_requests(RAG, 10_000, 25.0) == 40_000  # 4 a user beyond the cap


def test_closed_loop_has_the_lengths_of_the_open_loop():
    opened = plan_point(RAG, point=0, rate_rps=5).requests[:100]
    closed = plan_point(RAG, point=0, concurrency=2).requests[:100]
    assert [r.prompt_tokens for r in opened] == [r.prompt_tokens for r in closed]


def test_closed_loop_with_n_requests_has_exactly_those():
    plan = plan_point(RAG, point=0, concurrency=4, n_requests=10)
    assert len(plan.requests) == 10
    assert plan.warmup_s == 0


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({}, "either a rate or a concurrency"),
        ({"rate_rps": 1, "concurrency": 1}, "either a rate or a concurrency"),
        ({"rate_rps": 0}, "above 0"),
        ({"rate_rps": float("inf")}, "above 0"),
        ({"concurrency": 0}, "at least 1"),
        ({"rate_rps": 1, "n_requests": 0}, "at least 1"),
        ({"rate_rps": 1e6}, "lower the rate or the duration"),
    ],
)
def test_an_impossible_point_is_refused(wrong, complaint):
    with pytest.raises(ScenarioError, match=complaint):
        plan_point(RAG, point=0, **wrong)


def test_the_id_does_not_depend_on_rates_durations_or_names():
    wanted = schedule_id(RAG)
    assert len(wanted) == 16
    assert int(wanted, 16) >= 0
    for same in ("load.rates=[3]", "load.duration=5s", "name=other", "slo.ttft=p95 < 9s", "roofline.devices=2"):
        assert schedule_id(rag(same)) == wanted


def test_the_id_depends_on_everything_that_changes_a_request():
    edits = [
        "seed=8",
        "api=completions",
        "load.arrivals=constant",
        "load.concurrency=[4]",
        "workload.ignore_eos=false",
        "workload.output.tokens.max=999",
        "workload.prompt.tokens.max=7999",
        "workload.shared_prefix.groups=7",
        "workload.shared_prefix.tokens=511",
    ]
    assert len({schedule_id(rag(edit)) for edit in edits} | {schedule_id(RAG)}) == len(edits) + 1


def test_the_ids_of_shipped_scenarios_are_the_same_on_every_machine():
    """Changes only with a deliberate change of the streams: results of before are then no longer comparable."""
    assert schedule_id(RAG) == "08d81f97498d9ad3"


def test_rows_are_strict_json_and_tell_the_whole_plan():
    plan = plan_point(RAG, point=2, rate_rps=3, duration_s=5.0)
    rows = [json.loads(json.dumps(row, allow_nan=False)) for row in schedule_rows(plan)]
    assert len(rows) == len(plan.requests)
    assert rows[0] == {
        "point": 2,
        "rate_rps": 3,
        "concurrency": None,
        "index": 0,
        "at_s": pytest.approx(plan.requests[0].at_s, abs=1e-9),
        "phase": "warmup",
        "prompt_tokens": plan.requests[0].prompt_tokens,
        "output_tokens": plan.requests[0].output_tokens,
        "prefix_tokens": 512,
        "prefix_group": plan.requests[0].prefix_group,
        "repeat": False,
    }


def test_token_totals_are_the_sums_of_the_plan():
    plan = plan_point(RAG, point=0, rate_rps=2)
    assert n_tokens(plan) == (sum(column(plan, "prompt_tokens")), sum(column(plan, "output_tokens")))


@pytest.fixture
def few_prompts(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"prompt": "a b c"}\n{"prompt": "d e f"}\n{"prompt": "g h"}\n')

    def scenario(*overrides: str):
        return load_scenario("smoke", [f"workload.prompt.dataset.path={tmp_path / 'p.jsonl'}", *overrides])

    return scenario


def test_a_short_data_set_is_refused_with_both_numbers(few_prompts):
    with pytest.raises(ScenarioError, match=r"3 usable prompts for \d+ requests"):
        plan_point(few_prompts(), point=0, rate_rps=2)


def test_a_repeated_data_set_is_marked_in_the_plan(few_prompts):
    scenario = few_prompts("workload.prompt.dataset.when_short=repeat")
    plan = plan_point(scenario, point=0, rate_rps=2, warmup_s=0.0, n_requests=10, cooldown_s=0.0)
    assert column(plan, "text")[:4] == ["a b c", "d e f", "g h", "a b c"]
    assert column(plan, "prompt_tokens")[:3] == [3, 3, 2]
    assert column(plan, "repeat") == [False] * 3 + [True] * 7
    assert mean_tokens(scenario)[0] == pytest.approx(8 / 3)


def test_a_data_set_that_stops_ends_the_plan(few_prompts):
    plan = plan_point(few_prompts("workload.prompt.dataset.when_short=stop"), point=0, rate_rps=2)
    assert len(plan.requests) == 3


def test_the_id_follows_the_data_sets_content_and_not_its_place(few_prompts, tmp_path):
    before = schedule_id(few_prompts())
    (tmp_path / "q.jsonl").write_bytes((tmp_path / "p.jsonl").read_bytes())
    assert schedule_id(few_prompts(f"workload.prompt.dataset.path={tmp_path / 'q.jsonl'}")) == before
    (tmp_path / "p.jsonl").write_text('{"prompt": "a b d"}\n')
    assert schedule_id(few_prompts()) != before
