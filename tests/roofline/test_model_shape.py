"""Model shapes: published totals, names as people write them, and refusal of what can't be counted yet."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest

from loadgen.roofline.model_shape import (
    UnknownModel,
    UnsupportedModel,
    find_model,
    from_config,
    from_numbers,
    known_models,
)

TABLE = json.loads(resources.files("loadgen.roofline").joinpath("models.json").read_text())
LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
QWEN25_7B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
    "sliding_window": 131072,
    "use_sliding_window": False,
}
MISTRAL_7B: dict[str, Any] = LLAMA_8B | {
    "architectures": ["MistralForCausalLM"],
    "vocab_size": 32768,
    "sliding_window": None,
}


@pytest.mark.parametrize("name", known_models())
def test_parameter_totals_agree_with_the_published_ones_within_1_percent(name: str) -> None:
    published = TABLE["dense"][name]["published_params_b"] * 1e9
    assert find_model(name).total_params == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("Llama-3.1-8B", 8_030_261_248),
        ("Llama-3.1-70B", 70_553_706_496),
        ("Llama-3.1-405B", 405_853_388_800),
        ("Qwen3-0.6B", 596_049_920),
        ("Qwen3-32B", 32_762_123_264),
        ("Phi-4", 14_659_507_200),
        ("Llama-2-7B", 6_738_415_616),
    ],
)
def test_totals_are_exact_where_the_instantiated_architecture_is_known(name: str, total: int) -> None:
    assert find_model(name).total_params == total


def test_llama_8b_keeps_131072_kv_bytes_a_token_in_bf16() -> None:
    model = find_model("llama-3.1-8b")
    assert model.kv_bytes_per_token("bf16") == 131_072
    assert model.kv_bytes_per_token("fp8") == 65_536


@pytest.mark.parametrize(
    "written",
    ["llama-3.1-8b", "Llama_3.1_8B", "meta-llama/Llama-3.1-8B-Instruct", "nvidia/Meta-Llama-3.1-8B-Instruct-FP8"],
)
def test_names_are_matched_as_people_write_them(written: str) -> None:
    assert find_model(written).name == "Llama-3.1-8B"


@pytest.mark.parametrize("written", ["llama-3.1-9b", "llama-3.1-8b-eagle-draft", "qwen3", ""])
def test_a_name_is_never_matched_by_likeness(written: str) -> None:
    with pytest.raises(UnknownModel, match="--model-config"):
        find_model(written)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("Qwen/Qwen3-30B-A3B", "mixture of experts"),
        ("deepseek-ai/DeepSeek-V3", "latent attention"),
        ("google/gemma-3-27b-it", "sliding-window"),
        ("mistralai/Mistral-7B-v0.1", "sliding-window"),
        ("qwen3.5-27b", "linear-attention"),
    ],
)
def test_a_known_model_that_cannot_be_counted_is_refused_with_the_reason(written: str, reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        find_model(written)


def test_a_config_json_gives_the_shape_of_the_table() -> None:
    shape, known = from_config(LLAMA_8B), find_model("llama-3.1-8b")
    assert (shape.total_params, shape.head_dim) == (known.total_params, known.head_dim)


def test_qwen2_has_biases_and_qwen3_has_norms_on_query_and_key() -> None:
    assert from_config(QWEN25_7B).total_params == 7_615_616_512
    qwen3 = QWEN25_7B | {"architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 128}
    assert from_config(qwen3).total_params == 7_615_616_512 - 28 * (3584 + 2 * 512) + 28 * 2 * 128


def test_mistral_without_a_window_is_counted() -> None:
    assert from_config(MISTRAL_7B).total_params == pytest.approx(7.248e9, rel=1e-3)


def test_a_tied_head_saves_parameters_but_is_still_read() -> None:
    tied, untied = from_config(LLAMA_8B | {"tie_word_embeddings": True}), from_config(LLAMA_8B)
    assert untied.total_params - tied.total_params == 128256 * 4096
    assert untied.read_params == tied.read_params


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (LLAMA_8B | {"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        (LLAMA_8B | {"architectures": []}, "not given"),
        (LLAMA_8B | {"num_local_experts": 8}, "mixture of experts"),
        (LLAMA_8B | {"kv_lora_rank": 512}, "latent attention"),
        (MISTRAL_7B | {"sliding_window": 4096}, "sliding-window"),
        (QWEN25_7B | {"use_sliding_window": True}, "sliding-window"),
        (QWEN25_7B | {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
    ],
)
def test_a_config_that_needs_other_arithmetic_is_refused(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        from_config(config)


@pytest.mark.parametrize("value", [None, "4096", 0, True])
def test_a_config_without_a_usable_size_names_the_key(value: object) -> None:
    with pytest.raises(ValueError, match="hidden_size"):
        from_config(LLAMA_8B | {"hidden_size": value})


TINY: dict[str, Any] = {
    "n_layers": 4,
    "hidden": 256,
    "n_q_heads": 4,
    "n_kv_heads": 2,
    "head_dim": 64,
    "ffn": 768,
    "vocab": 1024,
    "tied": True,
}


def test_plain_numbers_give_a_shape_and_a_size_for_each_weight() -> None:
    tiny = from_numbers(TINY | {"bytes_per_weight": 4})
    assert tiny.total_params == pytest.approx(3.4e6, rel=0.02)
    assert tiny.weight_size("bf16") == tiny.weight_size(None) == 4
    assert tiny.kv_bytes_per_token("fp32") == 4096


@pytest.mark.parametrize("numbers", [TINY | {"experts": 8}, {"n_layers": 4}, TINY | {"hidden": 0}])
def test_wrong_numbers_are_a_value_error(numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        from_numbers(numbers)


def test_an_unknown_precision_takes_the_smallest_bytes() -> None:
    model = find_model("llama-3.1-8b")
    assert all(model.weight_size(None) <= model.weight_size(p) for p in ("fp32", "bf16", "fp8", "fp4", "int4"))
    with pytest.raises(ValueError, match="bf17"):
        model.weight_size("bf17")
