"""Owns the weights: of a checkpoint, or random from a seed so that greedy output wanders and does not repeat itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine_adapters.reference.config import ModelConfig
from engine_adapters.reference.safetensors import Array, Checkpoint

# With unit-variance projections and averaging attention the next token would depend on the last one alone and the
# greedy output would soon be a short cycle. Sharp attention (scores of standard deviation QK_GAIN**2) and strong
# blocks against a weak embedding make it depend on the whole context.
EMBEDDING_GAIN = 0.1
QK_GAIN = 1.5


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Matrices are [in, out]; `qkv` is queries, keys, values side by side, `gate_up` likewise.

    With experts `gate_up` and `down` are [experts, in, out] and `router` is [hidden, experts].
    """

    attn_norm: Array
    qkv: Array
    o: Array
    mlp_norm: Array
    gate_up: Array
    down: Array
    q_norm: Array | None = None
    k_norm: Array | None = None
    router: Array | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights, float32. `embedding` is [vocab, hidden]; `head` is [hidden, vocab]: a transposed copy if tied."""

    embedding: Array
    layers: list[LayerWeights]
    norm: Array
    head: Array


def load_weights(model: ModelConfig, folder: Path) -> Weights:
    """The weights in a folder's safetensors, under Hugging Face's names; raises ModelError."""
    checkpoint = Checkpoint(folder)
    table = (model.vocab_size, model.hidden_size)
    embedding = checkpoint.read("model.embed_tokens.weight", *table)
    head = embedding if model.tie_word_embeddings else checkpoint.read("lm_head.weight", *table)
    return Weights(
        embedding,
        [_load_layer(model, checkpoint, f"model.layers.{i}.") for i in range(model.num_hidden_layers)],
        checkpoint.read("model.norm.weight", model.hidden_size),
        np.ascontiguousarray(head.T),
    )


def _load_layer(model: ModelConfig, checkpoint: Checkpoint, prefix: str) -> LayerWeights:
    hidden, dim = model.hidden_size, model.head_dim
    attention = prefix + "self_attn."
    names = {"q_proj": model.q_size, "k_proj": model.kv_size, "v_proj": model.kv_size}
    gate_up, down, router = _load_mlp(model, checkpoint, prefix + "mlp.")
    return LayerWeights(
        attn_norm=checkpoint.read(prefix + "input_layernorm.weight", hidden),
        qkv=_side_by_side([checkpoint.read(f"{attention}{name}.weight", n, hidden) for name, n in names.items()]),
        o=_side_by_side([checkpoint.read(attention + "o_proj.weight", hidden, model.q_size)]),
        mlp_norm=checkpoint.read(prefix + "post_attention_layernorm.weight", hidden),
        gate_up=gate_up,
        down=down,
        q_norm=checkpoint.read(attention + "q_norm.weight", dim) if model.qk_norm else None,
        k_norm=checkpoint.read(attention + "k_norm.weight", dim) if model.qk_norm else None,
        router=router,
    )


def _load_mlp(model: ModelConfig, checkpoint: Checkpoint, prefix: str) -> tuple[Array, Array, Array | None]:
    """`gate_up`, `down` and, with experts, `router`."""
    if not model.num_experts:
        return *_load_expert(model, checkpoint, prefix), None
    experts = [_load_expert(model, checkpoint, f"{prefix}experts.{i}.") for i in range(model.num_experts)]
    router = checkpoint.read(prefix + "gate.weight", model.num_experts, model.hidden_size)
    gate_ups, downs = zip(*experts, strict=True)
    return np.stack(gate_ups), np.stack(downs), _side_by_side([router])


def _load_expert(model: ModelConfig, checkpoint: Checkpoint, prefix: str) -> tuple[Array, Array]:
    hidden, ffn = model.hidden_size, model.intermediate_size
    gate_up = [checkpoint.read(f"{prefix}{name}_proj.weight", ffn, hidden) for name in ("gate", "up")]
    return _side_by_side(gate_up), _side_by_side([checkpoint.read(prefix + "down_proj.weight", hidden, ffn)])


def _side_by_side(matrices: list[Array]) -> Array:
    """Matrices stored [out, in], one after another, as one [in, out]."""
    return np.ascontiguousarray(np.concatenate(matrices).T)


def random_weights(model: ModelConfig, seed: int) -> Weights:
    """The weights of `model` from `seed`: the same on every machine with the same numpy generator."""
    rng = np.random.default_rng(seed)
    embedding = _normal(rng, EMBEDDING_GAIN, model.vocab_size, model.hidden_size)
    layers = [_random_layer(model, rng) for _ in range(model.num_hidden_layers)]
    norm = np.ones(model.hidden_size, np.float32)
    head = embedding if model.tie_word_embeddings else _normal(rng, EMBEDDING_GAIN, model.vocab_size, model.hidden_size)
    return Weights(embedding, layers, norm, np.ascontiguousarray(head.T))


def _random_layer(model: ModelConfig, rng: np.random.Generator) -> LayerWeights:
    hidden, ffn, dim = model.hidden_size, model.intermediate_size, model.head_dim
    in_scale, experts = hidden**-0.5, (model.num_experts,) if model.num_experts else ()
    qkv = _normal(rng, in_scale, hidden, model.q_size + 2 * model.kv_size)
    qkv[:, : model.q_size + model.kv_size] *= np.float32(QK_GAIN)
    return LayerWeights(
        attn_norm=np.ones(hidden, np.float32),
        qkv=qkv,
        o=_normal(rng, model.q_size**-0.5, model.q_size, hidden),
        mlp_norm=np.ones(hidden, np.float32),
        gate_up=_normal(rng, in_scale, *experts, hidden, 2 * ffn),
        down=_normal(rng, 2 * ffn**-0.5, *experts, ffn, hidden),
        q_norm=np.full(dim, QK_GAIN, np.float32) if model.qk_norm else None,
        k_norm=np.full(dim, QK_GAIN, np.float32) if model.qk_norm else None,
        router=_normal(rng, in_scale, hidden, model.num_experts) if experts else None,
    )


def _normal(rng: np.random.Generator, scale: float, *shape: int) -> Array:
    values = rng.standard_normal(shape, dtype=np.float32)
    values *= np.float32(scale)
    return values
