"""Owns reading a Hugging Face config.json: which models the numpy executor computes, and their shape. No arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine_adapters.reference.config import ModelConfig, RopeScaling

ARCHITECTURES = ("LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")


class ModelError(ValueError):
    """A model folder that can't be served; the text says which file, and why."""


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises ModelError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: not a JSON object")
    return value


def read_model_config(folder: Path) -> ModelConfig:
    """The model in `folder`, called as the folder is; generation_config.json may add end tokens. Raises ModelError."""
    path, generation = folder / "config.json", folder / "generation_config.json"
    config = read_json(path)
    ends = read_json(generation).get("eos_token_id") if generation.exists() else None
    if ends is not None:
        config = {**config, "eos_token_id": ends}
    try:
        return model_config(config, folder.resolve().name)
    except (ValueError, TypeError) as error:
        raise ModelError(f"{path}: {error}") from None


def model_config(config: Mapping[str, Any], name: str) -> ModelConfig:
    """The shape that a config.json states; raises ModelError for arithmetic that the executor does not have."""
    architecture = next(iter(config.get("architectures") or ()), None)
    if architecture not in ARCHITECTURES:
        raise ModelError(f"the architecture is {architecture or 'not given'}; known are {', '.join(ARCHITECTURES)}")
    _refuse_what_is_not_here(config)
    experts = architecture == "Qwen3MoeForCausalLM"
    hidden, n_heads = _positive(config, "hidden_size"), _positive(config, "num_attention_heads")
    n_kv_heads = config.get("num_key_value_heads") or n_heads
    head_dim = config.get("head_dim") or hidden // n_heads
    if n_heads % n_kv_heads or head_dim % 2:
        raise ModelError(f"{n_heads} query heads, {n_kv_heads} key heads and head_dim {head_dim} don't fit together")
    theta, scaling = _rope(config)
    return ModelConfig(
        name=name,
        num_hidden_layers=_positive(config, "num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=_positive(config, "moe_intermediate_size" if experts else "intermediate_size"),
        num_attention_heads=n_heads,
        num_key_value_heads=n_kv_heads,
        head_dim=head_dim,
        vocab_size=_positive(config, "vocab_size"),
        rope_theta=theta,
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qk_norm=architecture.startswith("Qwen3"),
        rope_scaling=scaling,
        num_experts=_positive(config, _experts_key(config)) if experts else 0,
        num_experts_per_tok=_positive(config, "num_experts_per_tok") if experts else 0,
        norm_topk_prob=experts and bool(config.get("norm_topk_prob", False)),
        max_position_embeddings=config.get("max_position_embeddings"),
        eos_token_ids=_eos_token_ids(config.get("eos_token_id")),
    )


def _refuse_what_is_not_here(config: Mapping[str, Any]) -> None:
    """Raise ModelError for a setting that would silently change the numbers."""
    missing = {
        f"{key} is {config[key]!r}": reason
        for key, usual, reason in (
            ("hidden_act", "silu", "only silu is"),
            ("attention_bias", False, "only attention without biases is"),
            ("mlp_bias", False, "only MLPs without biases are"),
            ("use_sliding_window", False, "only full attention is"),
            ("quantization_config", None, "only float weights are"),
            ("decoder_sparse_step", 1, "only experts in every layer are"),
            ("mlp_only_layers", [], "only experts in every layer are"),
            ("pretraining_tp", 1, "only 1 is"),
        )
        if key in config and config[key] not in (usual, None)
    }
    if missing:
        raise ModelError("; ".join(f"{what}, and {reason} supported" for what, reason in missing.items()))


def _rope(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """The base of the rotary embedding and its scaling, from `rope_parameters` (new) or `rope_scaling` and its like."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ModelError(f"rotary scaling of type {kind!r} is not supported; known are default and llama3")
    try:
        return theta, RopeScaling(
            factor=float(rope["factor"]),
            low_freq_factor=float(rope["low_freq_factor"]),
            high_freq_factor=float(rope["high_freq_factor"]),
            original_max_position_embeddings=int(rope["original_max_position_embeddings"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"rotary scaling of type llama3 is incomplete: {error}") from None


def _experts_key(config: Mapping[str, Any]) -> str:
    """transformers writes `num_experts` up to its version 4."""
    return "num_experts" if "num_experts" in config else "num_local_experts"


def _eos_token_ids(value: object) -> tuple[int, ...]:
    """End tokens, however many: an id, a list of them, or none."""
    ids = value if isinstance(value, list) else [value]
    return tuple(i for i in ids if isinstance(i, int))


def _positive(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise ModelError(f"{key} must be a positive whole number, not {value!r}")
    return value
