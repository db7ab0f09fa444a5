"""Model folders as Hugging Face has them, made from a seed: config.json and safetensors, whole or in shards."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

TINY: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "vocab_size": 48,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}
EXPERTS = {"moe_intermediate_size": 20, "num_local_experts": 6, "num_experts_per_tok": 2}
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}


def _model(architecture: str, model_type: str, **more: Any) -> dict[str, Any]:
    return {"architectures": [architecture], "model_type": model_type, "rope_parameters": DEFAULT_ROPE, **TINY, **more}


# The models that are compared with transformers.
MODELS: dict[str, dict[str, Any]] = {
    "llama": _model("LlamaForCausalLM", "llama", tie_word_embeddings=False),
    "llama-3": _model("LlamaForCausalLM", "llama", tie_word_embeddings=True, rope_parameters=LLAMA3),
    "qwen3": _model("Qwen3ForCausalLM", "qwen3", tie_word_embeddings=True),
    "qwen3-moe": _model("Qwen3MoeForCausalLM", "qwen3_moe", tie_word_embeddings=False, norm_topk_prob=True, **EXPERTS),
}


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a model, by its name."""
    hidden, vocab, dim = config["hidden_size"], config["vocab_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        layer = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (q, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q),
            **_mlp_shapes(config),
        }
        if config["model_type"].startswith("qwen3"):
            layer |= {"self_attn.q_norm": (dim,), "self_attn.k_norm": (dim,)}
        found |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return found


def _mlp_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, n_experts = config["hidden_size"], config.get("num_local_experts", 0)
    ffn = config["moe_intermediate_size"] if n_experts else config["intermediate_size"]
    names = {"gate_proj": (ffn, hidden), "up_proj": (ffn, hidden), "down_proj": (hidden, ffn)}
    if not n_experts:
        return {f"mlp.{name}": shape for name, shape in names.items()}
    experts = {f"mlp.experts.{i}.{name}": shape for i in range(n_experts) for name, shape in names.items()}
    return {"mlp.gate": (n_experts, hidden), **experts}


def tensors(config: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Random float32 weights: norms about 1, and matrices strong enough that attention and experts matter."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in shapes(config).items():
        values = rng.standard_normal(shape)
        scaled = 1.0 + 0.3 * values if len(shape) == 1 else values * 1.5 / math.sqrt(shape[-1])
        made[name] = scaled.astype(np.float32)
    return made


def write_safetensors(path: Path, values: dict[str, np.ndarray], dtype: str = "F32") -> None:
    """One safetensors file; BF16 keeps the upper half of each value."""
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, array in values.items():
        blob = as_bytes(array, dtype)
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def as_bytes(array: np.ndarray, dtype: str) -> bytes:
    if dtype == "BF16":
        return (array.view(np.uint32) >> 16).astype("<u2").tobytes()
    return array.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def write_model(
    folder: Path, config: dict[str, Any], seed: int = 0, dtype: str = "F32", n_shards: int = 1
) -> dict[str, np.ndarray]:
    """A model folder; returns its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"dtype": "float32", **config}))
    made = tensors(config, seed)
    if n_shards == 1:
        write_safetensors(folder / "model.safetensors", made, dtype)
        return made
    names = list(made)
    weight_map = {}
    for i in range(n_shards):
        file = f"model-{i + 1:05}-of-{n_shards:05}.safetensors"
        write_safetensors(folder / file, {name: made[name] for name in names[i::n_shards]}, dtype)
        weight_map |= dict.fromkeys(names[i::n_shards], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return made
