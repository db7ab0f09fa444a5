"""The simulated machine: never faster than the roofline, as large as its memory, and honest about what it can't do."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from support.simulated import deployment

from engine_adapters.reference.deployment import Assumptions, DeploymentProblem, Speculation, StepTimer
from engine_adapters.reference.simulated_setup import deployment_from, engine_from
from engine_adapters.reference.step_cost import load_of, step_bytes, step_flops
from loadgen.roofline.bounds import Target
from loadgen.roofline.hardware import GIB, find_hardware
from loadgen.roofline.model_shape import find_model

IDEAL = Assumptions(bandwidth_efficiency=1, compute_efficiency=1, launch_s=0, collective_s=0, link_gbs=1e9)


def test_step_costs_count_what_the_bound_counts() -> None:
    model = find_model("llama-3.1-8b")
    load = load_of([(100, 1, 1), (0, 8, 0)])
    assert (load.n_seqs, load.n_tokens, load.n_sampled, load.context_tokens, load.pairs) == (2, 9, 1, 100, 101 + 36)
    kv_bytes = 100 * model.kv_bytes_per_token("bf16")
    assert step_bytes(load, model, "bf16", "bf16") == 2 * model.read_params + kv_bytes
    assert step_flops(load, model) == pytest.approx(
        9 * model.flops_per_token + model.head_flops + 137 * model.attention_flops_per_context_token
    )


@pytest.mark.parametrize("seed", range(40))
def test_no_step_is_faster_than_the_roofline_however_the_model_is_split(seed: int) -> None:
    rng = Random(seed)
    split = {f"{kind}_parallel": rng.choice([1, 2, 4]) for kind in ("tensor", "data", "pipeline")}
    precision, kv = rng.choice(["bf16", "fp8", "int4"]), rng.choice(["bf16", "fp8"])
    d = deployment("llama-3.1-70b", precision=precision, kv_precision=kv, assumed=IDEAL, **split)
    load = load_of((rng.randrange(8000), rng.choice([1, 1, 1, 700]), 1) for _ in range(rng.randrange(1, 100)))
    target = Target(d.model, d.hardware, d.devices, precision, kv)
    assert target.flops is not None
    floor_s = max(
        step_bytes(load, d.model, precision, kv) / target.bandwidth_bps, step_flops(load, d.model) / target.flops
    )
    assert StepTimer(d).seconds(load) >= floor_s * (1 - 1e-9)


@pytest.mark.parametrize(
    ("model", "split", "precision", "kv_precision", "users"),
    [
        ("llama-3.1-8b", {}, "bf16", "bf16", 54),
        ("llama-3.1-8b", {}, "fp8", "bf16", 60),
        ("llama-3.1-8b", {}, "fp8", "fp8", 121),
        ("llama-3.1-70b", {"tensor_parallel": 2}, "bf16", "bf16", 2),
        ("llama-3.1-70b", {"tensor_parallel": 4}, "bf16", "bf16", 57),
        ("llama-3.1-70b", {"tensor_parallel": 2}, "fp8", "fp8", 56),
        ("llama-3.1-70b", {"tensor_parallel": 8}, "fp8", "fp8", 387),
    ],
)
def test_the_kv_pool_holds_as_many_users_as_the_worked_examples(
    model: str, split: dict[str, int], precision: str, kv_precision: str, users: int
) -> None:
    d = deployment(model, "h100-sxm", precision=precision, kv_precision=kv_precision, **split)
    d = replace(d, hardware=replace(d.hardware, mem_bytes=80 * GIB))
    assert d.kv_tokens // 8192 == users


def test_pipeline_stages_leave_a_lone_request_as_slow_and_a_batch_faster() -> None:
    one, two = (
        StepTimer(deployment("llama-3.1-70b", pipeline_parallel=n, precision="fp8", assumed=IDEAL)) for n in (1, 2)
    )
    lone, prefill = load_of([(1000, 1, 1)]), load_of([(0, 2000, 1)] * 8)
    assert two.seconds(lone) == pytest.approx(one.seconds(lone), rel=1e-3)
    assert two.seconds(prefill) == pytest.approx(one.seconds(prefill) / 2, rel=1e-3)


def test_more_tensor_parallel_than_kv_heads_stores_them_more_than_once() -> None:
    heads = find_model("llama-3.1-8b").n_kv_heads
    assert deployment(tensor_parallel=heads).kv_replication == 1
    assert deployment(tensor_parallel=2 * heads).kv_replication == 2


def test_dp_attention_holds_the_attention_weights_in_every_group() -> None:
    tensor, data = deployment(tensor_parallel=4), deployment(data_parallel=4)
    assert data.resident_bytes > tensor.resident_bytes
    assert data.resident_bytes < deployment().resident_bytes


def test_speculation_emits_the_mean_of_a_truncated_geometric() -> None:
    assert Speculation(0, 0.9).tokens_per_step == 1
    assert Speculation(3, 1.0).tokens_per_step == 4
    assert Speculation(2, 0.5).tokens_per_step == pytest.approx(1 + 0.5 + 0.25)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"devices": 3}, "32 query heads can't be split over 3"),
        ({"devices": 4, "data_parallel": 3}, "4 devices can't be split"),
        ({"precision": "fp9"}, "unknown precision 'fp9'"),
        ({"speculate": "three"}, "--speculate three"),
        ({"speculate": "3:1.5"}, "probability"),
        ({"assume": ["bandwith_efficiency=0.9"]}, "unknown assumption 'bandwith_efficiency'"),
        ({"assume": ["bandwidth_efficiency=1.2"]}, "at most 1"),
        ({"assume": ["launch_s=fast"]}, "a number is wanted"),
        ({"assume": ["launch_s"]}, "NAME=VALUE"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(changes: dict[str, object], says: str) -> None:
    with pytest.raises(DeploymentProblem, match=says) as refused:
        deployment_from(find_model("llama-3.1-8b"), find_hardware("h200-sxm"), **changes)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


def test_a_model_that_does_not_fit_and_a_device_without_a_peak_are_refused() -> None:
    with pytest.raises(DeploymentProblem, match="does not fit in 1 x L4"):
        _ = deployment("llama-3.1-70b", "l4").kv_tokens
    with pytest.raises(DeploymentProblem, match="no peak FLOP/s is known for M4-Max"):
        StepTimer(deployment(hardware="m4-max"))
    assert (
        StepTimer(deployment(hardware="m4-max", assumed=Assumptions(peak_tflops=30))).seconds(load_of([(0, 9, 1)])) > 0
    )


@pytest.mark.parametrize(
    ("setting", "says"),
    [("max_seqs=3", "unknown"), ("max_num_seqs=many", "not a value"), ("num_blocks=99999999", "only .* blocks")],
)
def test_engine_settings_that_cannot_be_are_refused(setting: str, says: str) -> None:
    with pytest.raises(DeploymentProblem, match=says):
        engine_from(deployment(), [setting])


def test_engine_settings_are_the_engines_own() -> None:
    engine = engine_from(deployment(), ["max_num_seqs=7", "enable_prefix_caching=false", "admission=reserve"])
    assert (engine.max_num_seqs, engine.enable_prefix_caching, engine.admission) == (7, False, "reserve")
    assert engine.num_blocks == deployment().kv_tokens // 16
