"""The bound: hand-computed figures, its shape in concurrency, and what it says when something is unknown."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.roofline.bounds import (
    Mix,
    Target,
    assumptions,
    bound_at,
    curve,
    describe_unknown,
    kv_wall,
    model_knee,
    ridge_batch,
    ridge_context,
)
from loadgen.roofline.hardware import find_hardware
from loadgen.roofline.model_shape import find_model


def _target(model: str = "llama-3.1-8b", hardware: str = "h100-sxm", **more: Any) -> Target:
    return Target(find_model(model), find_hardware(hardware), **{"precision": "bf16", "kv_precision": "bf16"} | more)


def _mix(prompt: int, output: int, n: int = 1) -> Mix:
    return Mix(np.full(n, prompt), np.full(n, output))


@pytest.mark.parametrize(
    ("hardware", "precision", "batch"),
    [("h100-sxm", "bf16", 295), ("h100-sxm", "fp8", 295), ("h200-sxm", "bf16", 206), ("b200-sxm", "bf16", 281)],
)
def test_ridge_batch_without_kv_is_the_published_one(hardware: str, precision: str, batch: int) -> None:
    got = ridge_batch(_target(hardware=hardware, precision=precision), 0)
    assert got is not None
    assert round(got) == batch


@pytest.mark.parametrize(("model", "context"), [("llama-3.1-8b", 393), ("qwen3-32b", 849), ("llama-3.1-70b", 1476)])
def test_ridge_context_is_the_published_one_and_ends_the_ridge_batch(model: str, context: int) -> None:
    got = ridge_context(_target(model))
    assert got is not None
    assert got == pytest.approx(context, abs=1)
    assert ridge_batch(_target(model), got * 0.99) is not None
    assert ridge_batch(_target(model), got * 1.01) is None


def test_the_roofs_of_llama_8b_are_what_a_hand_computes() -> None:
    # P 1000, O 101: 100 decode steps read 1000..1099 tokens = 104,950 contexts, 131,072 bytes each, over 101 tokens.
    bound = bound_at(_target(), _mix(1000, 101), 32)
    read_weights = 2 * (8_030_261_248 - 128_256 * 4096)
    kv_read = 104_950 * 131_072 / 101
    assert bound.bandwidth_tps == pytest.approx(3350e9 / (read_weights / 32 + kv_read), rel=1e-9)
    # 2 FLOPs a weight of 6,979,321,856; the head for 101 tokens; 524,288 a pair; clock headroom 1070.5 TFLOP/s.
    pairs = 1000 * 1001 // 2 + sum(range(1001, 1101))
    flops = 2 * 6_979_321_856 * 1100 + 2 * 128_256 * 4096 * 101 + 524_288 * pairs
    assert bound.compute_tps == pytest.approx(1070.5e12 * 101 / flops, rel=1e-9)
    alone_s = max(
        read_weights / 3350e9, (2 * 6_979_321_856 * 1000 + 2 * 128_256 * 4096 + 524_288 * 500_500) / 1070.5e12
    )
    alone_s += (100 * read_weights + 104_950 * 131_072) / 3350e9
    assert bound.latency_tps == pytest.approx(32 * 101 / alone_s, rel=1e-9)
    pool = 81559 * 2**20 - 2 * 8_030_261_248
    assert bound.kv_concurrency == pytest.approx(pool / kv_read, rel=1e-9)
    assert bound.limiter == "bandwidth"
    assert bound.output_tps == bound.bandwidth_tps


def test_one_user_gets_no_more_than_bandwidth_over_weights() -> None:
    bound = bound_at(_target(), _mix(1, 1000), 1)
    assert bound.output_tps < 3350e9 / (2 * 7.5e9)
    assert bound.output_tps == pytest.approx(3350e9 / (2 * 7.505e9), rel=0.01)


def test_answers_of_one_token_are_bounded_by_prefill() -> None:
    bound = bound_at(_target(), _mix(2000, 1), 1000)
    assert bound.limiter == "compute"
    assert bound.kv_concurrency is None
    assert 0 < bound.output_tps < math.inf


def test_each_roof_can_be_the_lowest() -> None:
    assert bound_at(_target(), _mix(1000, 200), 16).limiter == "bandwidth"
    assert bound_at(_target(), _mix(4000, 20), 256).limiter == "compute"
    assert bound_at(_target(), _mix(3000, 2000), 5000).limiter == "kv capacity"
    assert bound_at(_target(), _mix(1000, 20), 1).limiter == "latency"


def test_beyond_the_kv_wall_the_bound_is_flat_at_the_bound_of_the_wall() -> None:
    target, mix = _target(), _mix(3000, 2000)
    wall = kv_wall(target, mix)
    assert wall is not None
    at, beyond = bound_at(target, mix, wall), bound_at(target, mix, 3 * wall)
    assert beyond.output_tps == pytest.approx(at.output_tps)
    assert beyond.kv_concurrency == wall


def test_a_pool_told_by_the_engine_replaces_the_arithmetic() -> None:
    mix = _mix(3000, 2000)
    wall, whole = kv_wall(_target(kv_pool_bytes=10e9), mix), kv_wall(_target(), mix)
    assert wall is not None
    assert whole is not None
    assert wall < whole / 5


def test_lengths_count_one_by_one_not_by_their_means() -> None:
    rng = np.random.default_rng(3)
    prompt = rng.lognormal(7, 1, 400).astype(int) + 1
    output = (prompt // 4) + 1
    real = bound_at(_target(), Mix(prompt, output), 64)
    means = bound_at(_target(), Mix(np.array([prompt.mean()]), np.array([output.mean()])), 64)
    assert real.output_tps < 0.9 * means.output_tps


@pytest.mark.parametrize("knowing", ["precision", "kv_precision"])
@settings(deadline=None)
@given(st.integers(1, 8000), st.integers(1, 2000), st.floats(0.1, 1000), st.sampled_from(["fp32", "bf16", "fp8"]))
def test_what_is_unknown_only_raises_the_bound(
    knowing: str, prompt: int, output: int, concurrency: float, value: str
) -> None:
    mix = _mix(prompt, output)
    told: dict[str, Any] = {knowing: value}
    untold: dict[str, Any] = {knowing: None}
    known = bound_at(_target(**told), mix, concurrency)
    unknown = bound_at(_target(**untold), mix, concurrency)
    assert unknown.output_tps >= known.output_tps * (1 - 1e-12)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 500)), min_size=1, max_size=8), st.floats(0.05, 2000))
def test_the_bound_rises_with_concurrency_and_is_concave(lengths: list[tuple[int, int]], c: float) -> None:
    mix = Mix(np.array([p for p, _ in lengths]), np.array([o for _, o in lengths]))
    low, mid, high = (b.output_tps for b in curve(_target(kv_pool_bytes=20e9), mix, [c, 2 * c, 3 * c]))
    assert low <= mid * (1 + 1e-12)
    assert mid <= high * (1 + 1e-12)
    assert mid >= (low + high) / 2 * (1 - 1e-12)


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(2, 500), st.floats(0.5, 500), st.integers(2, 8))
def test_more_of_anything_never_lowers_the_bound(prompt: int, output: int, c: float, devices: int) -> None:
    mix, base = _mix(prompt, output), _target()
    faster = replace(base.hardware, bandwidth_bps=base.hardware.bandwidth_bps * 1.5)
    cached = Mix(mix.prompt_tokens, mix.output_tokens, mix.prompt_tokens // 2)
    floor = bound_at(base, mix, c).output_tps * (1 - 1e-12)
    assert bound_at(replace(base, devices=devices), mix, c).output_tps >= floor
    assert bound_at(replace(base, hardware=faster), mix, c).output_tps >= floor
    assert bound_at(base, cached, c).output_tps >= floor


def test_cached_prompt_tokens_cost_neither_compute_nor_kv_reads() -> None:
    def roofs(cached: int) -> tuple[float, float]:
        bound = bound_at(_target(), Mix(np.array([1000]), np.array([101]), np.array([cached])), 1e9)
        assert bound.compute_tps is not None
        return bound.compute_tps, bound.bandwidth_tps

    pairs = 1000 * 1001 // 2 - 900 * 901 // 2 + sum(range(1001, 1101))
    flops = 2 * 6_979_321_856 * 200 + 2 * 128_256 * 4096 * 101 + 524_288 * pairs
    assert roofs(900)[0] == pytest.approx(1070.5e12 * 101 / flops, rel=1e-9)
    assert roofs(900)[1] == pytest.approx(3350e9 * 101 / (131_072 * (104_950 - 100 * 900)), rel=1e-6)
    assert roofs(1000) == roofs(999)  # the last prompt token is always computed


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(1, 500))
def test_the_knee_is_where_the_bound_reaches_nine_tenths_of_its_maximum(prompt: int, output: int) -> None:
    target, mix = _target(), _mix(prompt, output)
    knee = model_knee(target, mix)
    assert knee is not None
    top = bound_at(target, mix, 1e9).output_tps
    assert bound_at(target, mix, knee).output_tps == pytest.approx(0.9 * top, rel=1e-6)
    assert bound_at(target, mix, knee * 0.9).output_tps < 0.9 * top


def test_without_any_limit_there_is_no_knee() -> None:
    assert model_knee(_target(hardware="m4-max"), _mix(100, 1)) is None


def test_weights_that_do_not_fit_are_told_and_still_bounded_from_above() -> None:
    bound = bound_at(_target("llama-2-70b"), _mix(1, 100), 1)
    assert bound.output_tps == pytest.approx(24.3, rel=0.02)
    assert bound.reason is not None
    assert "don't fit" in bound.reason


def test_a_device_without_a_peak_has_no_compute_roof() -> None:
    target = _target(hardware="m4-max", precision="fp8")
    assert bound_at(target, _mix(100, 100), 4).compute_tps is None
    assert any("no compute bound" in said for said in assumptions(target))


def test_assumptions_are_said() -> None:
    said = " | ".join(assumptions(_target(precision=None, kv_precision=None)))
    assert "precision unknown" in said
    assert "KV precision unknown" in said
    assert "clock headroom" in " ".join(assumptions(_target()))
    assert assumptions(_target(hardware="mi300x")) == []


@pytest.mark.parametrize("concurrency", [0.0, -1.0, math.nan])
def test_a_concurrency_that_is_none_is_refused(concurrency: float) -> None:
    with pytest.raises(ValueError, match="concurrency"):
        bound_at(_target(), _mix(1, 1), concurrency)


@pytest.mark.parametrize(("prompt", "output"), [([], []), ([1, 2], [1]), ([0], [1]), ([1], [0]), ([[1]], [[1]])])
def test_a_mix_without_usable_lengths_is_refused(prompt: list[int], output: list[int]) -> None:
    with pytest.raises(ValueError):
        Mix(np.array(prompt), np.array(output))


@pytest.mark.parametrize("wrong", [{"devices": 0}, {"precision": "bf17"}, {"kv_precision": "e5m2"}])
def test_a_target_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        _target(**wrong)


def test_an_unknown_bound_names_the_options() -> None:
    text = describe_unknown(model_known=True)
    assert text == "bound unknown: tell me the hardware (--hardware, --devices, --precision, --model-config)"
    assert "the model (" in describe_unknown(hardware_known=True)


@pytest.mark.parametrize("pool", [None, 200e9])
def test_replicas_bear_as_much_as_one_does_with_its_even_share(pool: float | None) -> None:
    one, mix = _target(kv_pool_bytes=pool), _mix(1000, 300)
    eight = replace(one, replicas=8, kv_pool_bytes=None if pool is None else 8 * pool)
    for concurrency in (8.0, 100.0, 3000.0, 1e6):
        shared, alone = bound_at(eight, mix, concurrency), bound_at(one, mix, concurrency / 8)
        assert shared.output_tps == pytest.approx(8 * alone.output_tps)
        assert shared.limiter == alone.limiter
    assert (model_knee(eight, mix) or 0) == pytest.approx(8 * (model_knee(one, mix) or 0))
    # More devices under one model can always do at least what as many devices with a copy each can.
    together = replace(one, devices=8, kv_pool_bytes=None)
    assert (
        bound_at(together, mix, 100.0).output_tps > bound_at(replace(eight, kv_pool_bytes=None), mix, 100.0).output_tps
    )
