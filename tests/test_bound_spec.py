"""Whose bound is drawn: the served model's on hardware that the user named, and nothing that was merely assumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine_adapters.reference.calibrate import Ceilings
from engine_adapters.reference.config import reference_model_shape
from loadgen.bound_spec import BoundProblem, check_roofline, spec_for_bundled, spec_for_server, target_from
from loadgen.scenario.loader import load_scenario
from loadgen.scenario.schema import Roofline

RAG = load_scenario("rag").roofline  # llama-3.1-8b on h100-sxm in bf16


def test_a_scenarios_hardware_is_believed_when_its_model_is_served() -> None:
    target = target_from(spec_for_server(RAG, "meta-llama/Llama-3.1-8B-Instruct", False))
    assert target is not None
    assert target.hardware.name == "H100-SXM"


def test_a_scenarios_hardware_is_not_believed_for_another_model() -> None:
    spec = spec_for_server(RAG, "Qwen/Qwen3-8B", False)
    assert target_from(spec) is None
    assert "tell me the hardware" in spec["reason"]


def test_hardware_named_by_the_user_is_believed() -> None:
    target = target_from(spec_for_server(RAG, "Qwen/Qwen3-8B", True))
    assert target is not None
    assert target.model.name == "Qwen3-8B"


def test_an_unknown_model_without_config_has_no_bound() -> None:
    assert "tell me the model" in spec_for_server(Roofline(hardware="h100-sxm"), "house-blend", True)["reason"]


def test_a_config_json_gives_the_shape_of_any_dense_model(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 256,
        "vocab_size": 1024,
    }
    path.write_text(json.dumps(config))
    roofline = Roofline.model_validate({"hardware": "h100-sxm", "model_config": str(path)})
    target = target_from(spec_for_server(roofline, "house-blend", True))
    assert target is not None
    assert target.model.hidden == 128


def test_a_spec_survives_the_manifest() -> None:
    ceilings = Ceilings(70e9, 100e9, "measured", 13_600_000)
    spec = spec_for_bundled(reference_model_shape("tiny"), ceilings, 24e9)
    again = json.loads(json.dumps(spec, allow_nan=False))
    assert target_from(again) == target_from(spec)


def test_the_bundled_shape_has_the_parameters_that_the_engine_counts() -> None:
    shape = reference_model_shape("tiny")
    target = target_from(spec_for_bundled(shape, Ceilings(70e9, 100e9, "m", 13_600_000), 24e9))
    assert target is not None
    assert target.model.total_params == sum(shape["params"].values())
    assert target.kv_token_bytes == shape["kv_bytes_per_token"]
    assert target.kv_pool_bytes == shape["kv_capacity_tokens"] * shape["kv_bytes_per_token"]


def test_without_calibration_the_bound_is_unknown() -> None:
    assert target_from(spec_for_bundled(reference_model_shape("tiny"), None, 24e9)) is None


@pytest.mark.parametrize(
    ("roofline", "words"),
    [
        ({"hardware": "h1000"}, "H100"),
        ({"precision": "bf61"}, "bf16"),
        ({"model_config": "/nowhere/config.json"}, "config.json"),
    ],
)
def test_what_can_not_be_used_is_refused_early(roofline: dict[str, str], words: str) -> None:
    with pytest.raises(BoundProblem, match=words):
        check_roofline(Roofline.model_validate(roofline))
