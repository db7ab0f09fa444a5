"""Owns the shape of a dense GQA model: parameters, bytes and FLOPs, from the table, a config.json or plain numbers."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib import resources
from typing import Any

# Bytes an element, scales included (int4: groups of 128; fp4: NVFP4 with one scale for 16).
WEIGHT_BYTES: dict[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "fp4": 0.5625,
    "int4": 0.5156,
}
KV_BYTES: dict[str, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5625}

_DENSE = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
# Words that name a fine-tune, a format or a vendor and leave the shape as it is.
_NOISE = {"meta", "instruct", "chat", "hf", "it", "base", "awq", "gptq", "gguf", "dynamic"}
_NOISE |= {"bf16", "fp16", "fp8", "fp4", "nvfp4", "int8", "int4", "w4a16", "w8a8"}
# Keys of a config.json whose presence (not null, not zero, not false) means arithmetic that isn't here.
_BEYOND: dict[str, str] = {
    "num_experts": "mixture of experts",
    "num_local_experts": "mixture of experts",
    "n_routed_experts": "mixture of experts",
    "kv_lora_rank": "multi-head latent attention",
    "linear_num_value_heads": "linear-attention layers",
    "index_topk": "sparse attention",
    "attention_chunk_size": "chunked attention",
}


class UnknownModel(ValueError):
    """No model of that name in the table; the text names the nearest."""


class UnsupportedModel(ValueError):
    """A model whose bound would be wrong with the arithmetic of this version; the text says why."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder of dense (grouped-query) attention and gated MLP layers, every layer seeing the whole context.

    `bytes_per_weight` overrides the precision's size (a GGUF file: file bytes / parameters). Sizes in elements.
    """

    name: str
    n_layers: int
    hidden: int
    n_q_heads: int
    n_kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    bytes_per_weight: float | None = None

    def __post_init__(self) -> None:
        sizes = ("n_layers", "hidden", "n_q_heads", "n_kv_heads", "head_dim", "ffn", "vocab")
        bad = [name for name in sizes if getattr(self, name) < 1]
        if bad:
            raise ValueError(f"model {self.name}: {', '.join(bad)} must be at least 1")

    @property
    def attention_params(self) -> int:
        """h*n_q*d (query) + 2*h*n_kv*d (key, value) + n_q*d*h (out), all layers, plus query/key/value biases."""
        q, kv = self.n_q_heads * self.head_dim, self.n_kv_heads * self.head_dim
        bias = q + 2 * kv if self.qkv_bias else 0
        return self.n_layers * (2 * self.hidden * q + 2 * self.hidden * kv + bias)

    @property
    def mlp_params(self) -> int:
        """Gate, up and down projection: 3*h*ffn, all layers."""
        return self.n_layers * 3 * self.hidden * self.ffn

    @property
    def norm_params(self) -> int:
        """Two norms a layer and a last one; two more of head_dim a layer with query/key norms."""
        return (2 * self.n_layers + 1) * self.hidden + (2 * self.n_layers * self.head_dim if self.qk_norm else 0)

    @property
    def embedding_params(self) -> int:
        """The input table, and the head's where it isn't the same one."""
        return self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def total_params(self) -> int:
        """Parameters that a checkpoint holds."""
        return self.attention_params + self.mlp_params + self.norm_params + self.embedding_params

    @property
    def read_params(self) -> int:
        """Parameters that one forward pass reads: all but the input table, of which it gathers single rows.

        A tied head is still read in full: tying saves parameters, not traffic.
        """
        return self.attention_params + self.mlp_params + self.norm_params + self.vocab * self.hidden

    @property
    def flops_per_token(self) -> float:
        """FLOPs of the layers' matrices for one token, without head and attention: 2 a parameter."""
        return 2.0 * (self.attention_params + self.mlp_params)

    @property
    def head_flops(self) -> float:
        """FLOPs of the head for one sampled position: 2*V*h."""
        return 2.0 * self.vocab * self.hidden

    @property
    def attention_flops_per_context_token(self) -> float:
        """FLOPs for one new token to attend to one context token, all layers: 4*n_q*d*L (scores and values)."""
        return 4.0 * self.n_q_heads * self.head_dim * self.n_layers

    def weight_size(self, precision: str | None) -> float:
        """Bytes a weight; None = unknown: the smallest known, so that a bound errs high."""
        if self.bytes_per_weight is not None:
            return self.bytes_per_weight
        return _size(WEIGHT_BYTES, precision, min(WEIGHT_BYTES.values()))

    def kv_bytes_per_token(self, kv_precision: str | None) -> float:
        """2*L*n_kv*d bytes times the element's; None = unknown: 1 byte, the smallest in common use."""
        elements = 2 * self.n_layers * self.n_kv_heads * self.head_dim
        return elements * _size(KV_BYTES, kv_precision, 1.0)


def known_models() -> tuple[str, ...]:
    """Names in the shipped table."""
    return tuple(_table()["dense"])


def find_model(name: str) -> ModelShape:
    """The table's shape for `name`: "llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct-FP8".

    Raises UnsupportedModel for a known model that needs other arithmetic, UnknownModel for any other name. A name is
    never matched by likeness: a wrong shape gives a wrong bound.
    """
    dense, refused = _table()["dense"], _table()["refused"]
    keys = {_key(alias): known for known, row in dense.items() for alias in (known, *row["aliases"])}
    key = _key(name)
    if key in keys:
        return _from_row(keys[key], dense[keys[key]])
    for other, reason in refused.items():
        if key == _key(other):
            raise UnsupportedModel(_cannot(name, reason))
    near = [keys[k] for k in difflib.get_close_matches(key, keys, n=3, cutoff=0.6)] or list(dense)
    raise UnknownModel(
        f"unknown model {name!r}: the table has {', '.join(dict.fromkeys(near))}; "
        "or give its config.json (--model-config)"
    )


def from_config(config: Mapping[str, Any], name: str = "") -> ModelShape:
    """The shape in a Hugging Face config.json (Llama, Mistral, Qwen2 and Qwen3 dense).

    Raises UnsupportedModel for any other architecture, or one of these with a sliding window or experts; ValueError
    for a missing key.
    """
    architecture = next(iter(config.get("architectures") or ()), "")
    label = name or config.get("_name_or_path") or architecture or "model"
    reason = _beyond(config, architecture)
    if reason:
        raise UnsupportedModel(_cannot(label, reason))
    hidden, n_q_heads = _need(config, "hidden_size"), _need(config, "num_attention_heads")
    return ModelShape(
        name=label,
        n_layers=_need(config, "num_hidden_layers"),
        hidden=hidden,
        n_q_heads=n_q_heads,
        n_kv_heads=config.get("num_key_value_heads") or n_q_heads,
        head_dim=config.get("head_dim") or hidden // n_q_heads,
        ffn=_need(config, "intermediate_size"),
        vocab=_need(config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        qk_norm=architecture == "Qwen3ForCausalLM",
        qkv_bias=bool(config.get("attention_bias", architecture == "Qwen2ForCausalLM")),
    )


def from_numbers(numbers: Mapping[str, Any]) -> ModelShape:
    """The shape in a mapping with the fields of `ModelShape`; raises ValueError for an unknown or missing one."""
    known = {f.name for f in fields(ModelShape)}
    if unknown := sorted(set(numbers) - known):
        raise ValueError(f"unknown model field {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    try:
        return ModelShape(**{"name": "model", **numbers})
    except TypeError as error:
        raise ValueError(f"the model's numbers are incomplete: {error}") from None


def _beyond(config: Mapping[str, Any], architecture: str) -> str | None:
    """Why a config needs arithmetic that isn't here; None when it doesn't."""
    if architecture not in _DENSE:
        return f"the architecture is {architecture or 'not given'}; known are {', '.join(_DENSE)}"
    for key, reason in _BEYOND.items():
        if config.get(key):
            return f"{reason} ({key})"
    # Qwen2 and Qwen3 name a window and switch it off apart; Mistral has no switch.
    if config.get("sliding_window") and config.get("use_sliding_window", architecture == "MistralForCausalLM"):
        return "sliding-window attention (sliding_window)"
    if set(config.get("layer_types") or ()) - {"full_attention"}:
        return "layers without full attention (layer_types)"
    return None


def _cannot(name: str, reason: str) -> str:
    return f"no bound for {name} yet ({reason}): this version counts dense models with full attention only"


def _need(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"the model's config.json has no usable {key}: {value!r}")
    return value


def _size(table: Mapping[str, float], precision: str | None, unknown: float) -> float:
    if precision is None:
        return unknown
    if precision not in table:
        raise ValueError(f"unknown precision {precision!r}: use one of {', '.join(table)}")
    return table[precision]


def _key(name: str) -> str:
    words = re.split(r"[^a-z0-9.]+", name.rsplit("/", 1)[-1].lower())
    return "".join(word for word in words if word not in _NOISE).replace(".", "")


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("models.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def _from_row(name: str, row: Mapping[str, Any]) -> ModelShape:
    shape = {f.name: row[f.name] for f in fields(ModelShape) if f.name in row}
    return ModelShape(name=name, **shape)
