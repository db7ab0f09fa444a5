"""GET /metrics speaks the Prometheus text format under vLLM's names, and its figures are the engine's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support import prometheus_text

from engine_adapters.reference.config import EngineConfig
from engine_adapters.reference.engine import EngineCore
from engine_adapters.reference.engine_stats import EngineStats, LiveRate
from engine_adapters.reference.executors.base import StepCost
from engine_adapters.reference.metrics import Ceilings, Scrape, exposition
from engine_adapters.reference.prometheus import Histogram, family, histogram
from engine_adapters.reference.request import Request
from engine_adapters.reference.scheduler import SchedulerOutput
from engine_adapters.reference.server_stats import ServerStats

DATA = Path(__file__).parent.parent / "data" / "vllm"
ENGINE = frozenset({"engine", "model_name"})
# Written by vLLM's client library or about parts that are not here.
NOT_OURS: frozenset[str] = frozenset()


class Clock:
    """Goes on by a second whenever it is read."""

    now_s = 100.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


class OneToken:
    """Emits an `A` for whoever samples."""

    def warmup(self) -> None: ...

    def capacity(self) -> int:
        return 1 << 20

    def step_cost(self, output: SchedulerOutput) -> StepCost:
        return StepCost(1000.0, 50.0)

    def close(self) -> None: ...

    def execute(self, output: SchedulerOutput) -> list[list[int]]:
        return [[65] if item.samples else [] for item in output.scheduled]


def scrape_of() -> Scrape:
    core = EngineCore(EngineConfig(max_num_seqs=1, num_blocks=256), OneToken(), clock=Clock())
    return Scrape("tiny", core, EngineStats(core), ServerStats(), Ceilings(2000.0, 500.0))


def run(scrape: Scrape, *requests: Request) -> None:
    for request in requests:
        scrape.core.add(request)
    while scrape.core.scheduler.has_work:
        scrape.core.step()


def value(scrape: Scrape, name: str, **labels: str) -> float:
    """The one sample of `name` that has `labels`."""
    families = prometheus_text.parse(exposition(scrape))
    found = [
        each
        for family in families.values()
        for (found, has), each in family.samples.items()
        if found == name and set(labels.items()) <= has
    ]
    (only,) = found
    return only


def busy_scrape() -> Scrape:
    """After some requests, of which one was aborted, and some HTTP exchanges."""
    scrape = scrape_of()
    scrape.core.add(Request("gone", [1] * 5, 4))
    scrape.core.abort("gone")
    run(scrape, *[Request(str(i), [1] * 20, 4, ignore_eos=True) for i in range(3)])
    scrape.server.ended("/v1/completions", "POST", 200, 0.2)
    scrape.server.choices.observe(1)
    return scrape


def test_counters_and_gauges_follow_the_scheduler() -> None:
    scrape = scrape_of()
    for i in range(2):
        scrape.core.add(Request(str(i), [1] * 20, 2, ignore_eos=True))
    scrape.core.step()
    assert value(scrape, "vllm:num_requests_running") == 1
    assert value(scrape, "vllm:num_requests_waiting") == 1
    assert value(scrape, "vllm:num_requests_waiting_by_reason", reason="capacity") == 1
    assert value(scrape, "vllm:kv_cache_usage_perc") == 2 / 256
    assert value(scrape, "vllm:prompt_tokens_total") == 40
    assert value(scrape, "vllm:generation_tokens_total") == 1
    run(scrape)
    assert value(scrape, "vllm:request_success_total", finished_reason="length") == 2
    assert value(scrape, "vllm:generation_tokens_total") == 4
    assert value(scrape, "vllm:kv_cache_usage_perc") == 0
    assert value(scrape, "vllm:cache_config_info", block_size="16", num_gpu_blocks="256") == 1


def test_prefix_hits_are_counted_in_tokens_and_add_up_with_what_was_computed() -> None:
    scrape = scrape_of()
    run(scrape, Request("0", [1] * 40, 2, ignore_eos=True))
    run(scrape, Request("1", [1] * 40, 2, ignore_eos=True))
    assert value(scrape, "vllm:prefix_cache_queries_total") == 80
    assert value(scrape, "vllm:prefix_cache_hits_total") == 32
    assert value(scrape, "vllm:prompt_tokens_by_source_total", source="local_cache_hit") == 32
    assert value(scrape, "vllm:prompt_tokens_by_source_total", source="local_compute") == 48
    assert value(scrape, "vllm:request_prefill_kv_computed_tokens_sum") == 48


def test_latencies_of_a_request_add_up_from_arrival_to_its_end() -> None:
    scrape = scrape_of()
    run(scrape, Request("0", [1] * 20, 5, ignore_eos=True))
    phases = [value(scrape, f"vllm:request_{phase}_time_seconds_sum") for phase in ("queue", "prefill", "decode")]
    assert all(phase > 0 for phase in phases)
    assert sum(phases) == pytest.approx(value(scrape, "vllm:e2e_request_latency_seconds_sum"))
    assert value(scrape, "vllm:time_to_first_token_seconds_sum") == pytest.approx(phases[0] + phases[1])
    assert value(scrape, "vllm:inter_token_latency_seconds_count") == 4
    assert value(scrape, "vllm:inter_token_latency_seconds_sum") == pytest.approx(phases[2])
    assert value(scrape, "vllm:request_time_per_output_token_seconds_sum") == pytest.approx(phases[2] / 4)


def test_a_request_aborted_while_it_waited_has_no_latency_of_phases_it_never_reached() -> None:
    scrape = scrape_of()
    scrape.core.add(Request("0", [1] * 5, 5))
    scrape.core.abort("0")
    assert value(scrape, "vllm:request_success_total", finished_reason="abort") == 1
    assert value(scrape, "vllm:request_prompt_tokens_count") == 1
    assert value(scrape, "vllm:request_queue_time_seconds_count") == 0
    assert value(scrape, "vllm:time_to_first_token_seconds_count") == 0


def test_no_request_is_remembered_after_its_end() -> None:
    scrape = scrape_of()
    scrape.core.add(Request("0", [1] * 5, 5, ignore_eos=True))
    scrape.core.step()
    scrape.core.abort("0")
    run(scrape, *[Request(str(i), [1] * 5, 5, ignore_eos=True) for i in range(3)])
    assert scrape.engine._last_token_at_s == {}


def test_live_rates_are_cost_over_the_time_of_steps_and_shares_of_the_ceilings() -> None:
    scrape = scrape_of()
    run(scrape, Request("0", [1] * 20, 5, ignore_eos=True))
    step_s = value(scrape, "openloop_step_seconds_total") / value(scrape, "openloop_steps_total")
    assert value(scrape, "openloop_bandwidth_bytes_per_second") == pytest.approx(1000.0 / step_s)
    assert value(scrape, "openloop_bandwidth_fraction") == pytest.approx(1000.0 / step_s / 2000.0)
    assert value(scrape, "openloop_compute_fraction") == pytest.approx(50.0 / step_s / 500.0)
    assert value(scrape, "vllm:estimated_read_bytes_per_gpu_total") == 5000.0


def test_live_rates_forget_what_lies_back() -> None:
    rate = LiveRate()
    for _ in range(1000):
        rate.add(100.0, 1.0, 0.01)
    assert rate.bytes_per_s == pytest.approx(10_000.0)
    for _ in range(1000):
        rate.add(200.0, 1.0, 0.01)
    assert rate.bytes_per_s == pytest.approx(20_000.0, rel=1e-3)


def test_without_ceilings_there_are_rates_and_no_fractions() -> None:
    core = EngineCore(EngineConfig(), OneToken())
    text = exposition(Scrape("tiny", core, EngineStats(core), ServerStats()))
    assert "openloop_bandwidth_bytes_per_second" in text
    assert "fraction" not in text


def test_every_family_of_a_recorded_vllm_is_there_with_its_type_labels_and_buckets() -> None:
    recorded = prometheus_text.parse((DATA / "metrics.txt").read_text())
    ours = prometheus_text.parse(exposition(busy_scrape()))
    assert set(recorded) - set(ours) == NOT_OURS
    for name, theirs in recorded.items():
        assert ours[name].kind == theirs.kind, name
        for sample in {sample for sample, _ in theirs.samples}:
            if name != "vllm:cache_config_info":  # its labels are vLLM's settings; ours are a part of them
                assert theirs.labels(sample) == ours[name].labels(sample), sample
    for sample, labels in recorded["vllm:cache_config_info"].samples:
        assert next(iter(ours["vllm:cache_config_info"].labels(sample))) < {key for key, _ in labels}


def test_histograms_have_the_bucket_bounds_of_a_recorded_vllm() -> None:
    def bounds(family: Any) -> set[str]:
        return {dict(labels)["le"] for name, labels in family.samples if name.endswith("_bucket")}

    ours = prometheus_text.parse(exposition(busy_scrape()))
    recorded = prometheus_text.parse((DATA / "metrics.txt").read_text())
    histograms = [name for name, family in recorded.items() if family.kind == "histogram"]
    # Step sizes end at vLLM's own default budget, lengths at max_model_len: 4096 in the recording as here.
    assert len(histograms) > 15
    assert {name: bounds(ours[name]) for name in histograms} == {name: bounds(recorded[name]) for name in histograms}


@pytest.mark.parametrize(("dashboard", "queries"), json.loads((DATA / "dashboards.json").read_text()).items())
def test_what_vllms_own_dashboards_query_is_there(dashboard: str, queries: dict[str, list[str]]) -> None:
    """`queries`: the metrics that a dashboard of vLLM's repository selects, with the labels it filters or groups by."""
    samples = {key for family in prometheus_text.parse(exposition(busy_scrape())).values() for key in family.samples}
    for metric, wanted in queries.items():
        pairs = [label.partition("=") for label in wanted]
        found = [
            labels
            for name, labels in samples
            if name == metric and all(dict(labels).get(key, "") == text or not text for key, _, text in pairs)
        ]
        assert found, f"{dashboard}: {metric} {wanted}"
        assert all(key in dict(found[0]) for key, _, _ in pairs), f"{dashboard}: {metric} lacks a label"


def test_a_histogram_counts_a_value_on_a_bound_below_it() -> None:
    values = Histogram([1.0, 2.0])
    for each in (1.0, 1.5, 2.0, 3.0):
        values.observe(each)
    text = histogram("x", "X.", [({}, values)])
    assert re.findall(r'le="(.*?)"} (\S+)', text) == [("1.0", "1.0"), ("2.0", "3.0"), ("+Inf", "4.0")]
    assert "x_sum 7.5\n" in text


def test_label_values_are_escaped() -> None:
    text = family("x", "gauge", "X.", [({"name": 'a"b\\c\nd'}, 1)])
    assert text.splitlines()[-1] == 'x{name="a\\"b\\\\c\\nd"} 1.0'
    assert prometheus_text.parse(text)
