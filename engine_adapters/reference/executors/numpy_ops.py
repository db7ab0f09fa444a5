"""Owns the arithmetic of a decoder layer in numpy: products, norms, rotary embedding, SwiGLU, experts, softmax."""

from __future__ import annotations

import math

import numpy as np

from engine_adapters.reference.config import ModelConfig, RopeScaling
from engine_adapters.reference.safetensors import Array

MAX_GEMV_ROWS = 3
MAX_TILED_ROWS = 16
TILE_MACS = 1_000_000  # OpenBLAS multiplies without packing up to this many multiply-adds (AVX-512 builds)


def linear(x: Array, w: Array) -> Array:
    """`x` [rows, in] @ `w` [in, out], by the cheapest BLAS calls for few rows.

    One gemm packs all of `w` first, which makes 2 rows cost over three times as much as 1. So: a gemv a row for up to 3
    rows, then products over tiles of columns small enough that they are not packed, one gemm from 17 rows on.
    """
    rows, n_in = x.shape
    if rows == 1 or rows > MAX_TILED_ROWS:
        return x @ w
    out = np.empty((rows, w.shape[1]), np.float32)
    if rows <= MAX_GEMV_ROWS:
        for i in range(rows):
            np.matmul(x[i], w, out=out[i])
        return out
    width = max(TILE_MACS // (rows * n_in) // 64 * 64, 64)
    for start in range(0, w.shape[1], width):
        np.matmul(x, w[:, start : start + width], out=out[:, start : start + width])
    return out


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Root-mean-square norm over the last axis."""
    mean_square: Array = np.einsum("...i,...i->...", x, x)[..., None] * np.float32(1.0 / x.shape[-1])
    normalised: Array = x / np.sqrt(mean_square + np.float32(eps))
    return normalised * weight


def rope_table(model: ModelConfig, n_positions: int) -> tuple[Array, Array]:
    """Cosines and sines [positions, 1, head_dim / 2] of rotary position embedding (RoFormer, arXiv 2104.09864)."""
    inverse = model.rope_theta ** (-np.arange(0, model.head_dim, 2) / model.head_dim)
    if model.rope_scaling is not None:
        inverse = _stretch(inverse, model.rope_scaling)
    angles = np.outer(np.arange(n_positions), inverse)[:, None, :]
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _stretch(inverse: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    """Llama 3.1: frequencies below the low one are divided by `factor`, those above the high one are kept."""
    turns = scaling.original_max_position_embeddings * inverse / (2 * math.pi)  # within the original context
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.clip(kept, 0.0, 1.0)
    stretched: np.ndarray = kept * inverse + (1.0 - kept) * inverse / scaling.factor
    return stretched


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotary embedding of `x` [rows, heads, head_dim]; dimension i is paired with i + head_dim / 2, as Llama does."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    out = np.empty_like(x)
    np.subtract(first * cos, second * sin, out=out[..., :half])
    np.add(second * cos, first * sin, out=out[..., half:])
    return out


def swiglu(gate_up: Array) -> Array:
    """silu(gate) x up, for `gate_up` [rows, 2 x ffn]."""
    gate, up = np.split(gate_up, 2, axis=1)
    denominator: Array = np.exp(-gate)
    denominator += np.float32(1.0)
    return gate * up / denominator


def mlp(x: Array, gate_up: Array, down: Array) -> Array:
    """The dense MLP of a layer, or one expert."""
    return linear(swiglu(linear(x, gate_up)), down)


def experts_mlp(model: ModelConfig, x: Array, router: Array, gate_up: Array, down: Array) -> Array:
    """Each row through the `num_experts_per_tok` experts that its router scores favour, weighted by their softmax."""
    chances = softmax_in_place(linear(x, router))
    chosen = np.argpartition(-chances, model.num_experts_per_tok - 1, axis=1)[:, : model.num_experts_per_tok]
    shares = np.take_along_axis(chances, chosen, axis=1)
    if model.norm_topk_prob:
        shares /= shares.sum(axis=1, keepdims=True)
    out = np.zeros_like(x)
    for expert in np.unique(chosen):
        rows, places = np.nonzero(chosen == expert)
        out[rows] += mlp(x[rows], gate_up[expert], down[expert]) * shares[rows, places, None]
    return out


def softmax_in_place(scores: Array) -> Array:
    """Softmax over the last axis, written over `scores`."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores
