"""A scenario scaled for a CPU keeps its shape, and says what was done to it."""

from __future__ import annotations

import pytest

from loadgen.scenario import describe, lengths
from loadgen.scenario.loader import load_scenario, shipped_names
from loadgen.scenario.scale import scale_for_cpu


def test_rag_becomes_256_in_and_32_out():
    scaled, sentence = scale_for_cpu(load_scenario("rag"))
    workload = scaled.workload
    assert lengths.describe(workload.prompt.tokens) == "lognormal median 256, p95 512, 44 to 683"
    assert lengths.describe(workload.output.tokens) == "lognormal median 32, p95 80, up to 160"
    assert workload.shared_prefix.tokens == 44
    assert workload.shared_prefix.groups == 8
    assert sentence == (
        "Scaled to what a CPU serves: prompts x 0.0853 (median 3,000 -> 256 tokens); "
        "outputs x 0.16 (median 200 -> 32 tokens); 16s measured after 3s of warm-up."
    )


def test_times_shrink_the_target_stays_and_the_roofline_is_cleared():
    rag = load_scenario("rag")
    scaled, _ = scale_for_cpu(rag)
    assert (scaled.load.duration_s, scaled.load.warmup_s, scaled.load.cooldown_max_s) == (16, 3, 10)
    assert scaled.load.max_points == 10
    assert (scaled.slo, scaled.seed, scaled.name) == (rag.slo, rag.seed, rag.name)
    assert (scaled.roofline.model, scaled.roofline.hardware) == (None, None)


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_scenario_becomes_small_and_stays_valid(name):
    scaled, sentence = scale_for_cpu(load_scenario(name))
    assert lengths.median(scaled.workload.prompt.tokens) <= 256
    assert lengths.median(scaled.workload.output.tokens) <= 32
    assert sentence.startswith("Scaled to what a CPU serves: ")
    again, _ = scale_for_cpu(scaled)
    assert again == scaled


def test_a_small_scenario_keeps_its_lengths_and_its_shorter_times():
    smoke = load_scenario("smoke")
    scaled, sentence = scale_for_cpu(smoke)
    assert scaled.workload == smoke.workload
    assert scaled.load == smoke.load
    assert "prompts as written (median 32 tokens)" in sentence


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("2560", "fixed 256"),
        ("{uniform: {low: 1000, high: 4120}}", "uniform 100 to 412"),
        ("{normal: {mean: 2560, std: 200}}", "normal mean 256, std 20"),
        ("{lognormal: {median: 2560, sigma: 0.7}}", "lognormal median 256, sigma 0.7"),
        ("{histogram: {values: [10, 2560], weights: [1, 9]}}", "histogram of 2 values, mean 231"),
        ("{histogram: {bins: [2500, 2501, 2660], weights: [1, 99]}}", "histogram of 2 bins, mean 256"),
    ],
)
def test_every_shape_is_scaled_by_one_factor(written, text):
    scenario = load_scenario("code", [f"workload.prompt.tokens={written}"])
    scaled, _ = scale_for_cpu(scenario)
    assert lengths.describe(scaled.workload.prompt.tokens) == text


def test_the_four_variables_are_said_in_words():
    rag = load_scenario("rag")
    assert describe.input_lengths(rag) == (
        "lognormal median 3,000, p95 6,000, 512 to 8,000 tokens; the first 512 shared (8 texts)"
    )
    assert describe.output_lengths(rag) == "lognormal median 200, p95 500, up to 1,000 tokens"
    assert describe.load(rag) == "open loop, poisson arrivals, rates found from light load to saturation"
    assert describe.latency_target(rag) == "TTFT p95 < 500ms, ITL p95 < 50ms"
    assert describe.load(load_scenario("smoke")) == "open loop, poisson arrivals, 2, 4, 8 requests/s"
    assert describe.load(load_scenario("batch", ["load.concurrency=[1,8]"])) == "closed loop, concurrency 1, 8"
    assert describe.latency_target(load_scenario("batch")) == "none"


def test_times_that_the_user_named_are_kept():
    rag = load_scenario("rag", ["load.duration=40s"])
    scaled, sentence = scale_for_cpu(rag, keep_times=True)
    assert scaled.load == rag.load
    assert "40s measured" in sentence
