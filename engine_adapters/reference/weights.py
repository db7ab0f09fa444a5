"""Seeded random weights, scaled so that greedy output wanders instead of repeating itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine_adapters.reference.config import ModelConfig

Array = NDArray[np.float32]

# With unit-variance projections and averaging attention the next token would depend on the last one alone and the
# greedy output would soon be a short cycle. Sharp attention (scores of standard deviation QK_GAIN**2) and strong
# blocks against a weak embedding make it depend on the whole context.
EMBEDDING_GAIN = 0.1
QK_GAIN = 1.5


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Matrices are [in, out]; `qkv` is queries, keys, values side by side, `gate_up` likewise."""

    attn_norm: Array
    qkv: Array
    o: Array
    mlp_norm: Array
    gate_up: Array
    down: Array


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights, float32. `embedding` is [vocab, hidden]; `head` is its transpose, stored for speed."""

    embedding: Array
    layers: list[LayerWeights]
    norm: Array
    head: Array


def random_weights(model: ModelConfig, seed: int) -> Weights:
    """The weights of `model` from `seed`: the same on every machine with the same numpy generator."""
    rng = np.random.default_rng(seed)
    embedding = _normal(rng, model.vocab_size, model.hidden_size, EMBEDDING_GAIN)
    layers = [_random_layer(model, rng) for _ in range(model.num_hidden_layers)]
    norm = np.ones(model.hidden_size, np.float32)
    return Weights(embedding, layers, norm, np.ascontiguousarray(embedding.T))


def _random_layer(model: ModelConfig, rng: np.random.Generator) -> LayerWeights:
    hidden, ffn = model.hidden_size, model.intermediate_size
    in_scale = hidden**-0.5
    qkv = _normal(rng, hidden, model.q_size + 2 * model.kv_size, in_scale)
    qkv[:, : model.q_size + model.kv_size] *= np.float32(QK_GAIN)
    return LayerWeights(
        attn_norm=np.ones(hidden, np.float32),
        qkv=qkv,
        o=_normal(rng, model.q_size, hidden, model.q_size**-0.5),
        mlp_norm=np.ones(hidden, np.float32),
        gate_up=_normal(rng, hidden, 2 * ffn, in_scale),
        down=_normal(rng, ffn, hidden, 2 * ffn**-0.5),
    )


def _normal(rng: np.random.Generator, n_in: int, n_out: int, scale: float) -> Array:
    values = rng.standard_normal((n_in, n_out), dtype=np.float32)
    values *= np.float32(scale)
    return values
