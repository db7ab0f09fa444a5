"""The CPU executor: a Llama-style decoder in numpy over a paged KV cache, greedy, all float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine_adapters.reference import tokenizer
from engine_adapters.reference.config import EngineConfig, ModelConfig
from engine_adapters.reference.executors.base import StepCost
from engine_adapters.reference.request import Request
from engine_adapters.reference.scheduler import ScheduledRequest, SchedulerOutput
from engine_adapters.reference.weights import Array, LayerWeights, Weights

Ints = NDArray[np.intp]
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
    angles = np.outer(np.arange(n_positions), inverse)[:, None, :]
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


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


def softmax_in_place(scores: Array) -> Array:
    """Softmax over the last axis, written over `scores`."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Sequences that attend together. rows: [seqs, queries] into the step's tokens; block_table: [seqs, blocks];

    mask: [seqs, queries, keys], -inf where a query must not look (later keys, and padding up to whole blocks).
    """

    rows: Ints
    block_table: Ints
    mask: Array


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's tokens, flattened over its sequences, and where each goes."""

    token_ids: Ints
    positions: Ints
    slots: Ints  # place in the KV cache: block x block_size + offset
    groups: list[AttentionGroup]
    sample_rows: Ints


class NumpyExecutor:
    """Weights plus a KV cache of [kv heads, blocks, block, head_dim] for keys and for values in each layer.

    The same prompt gives the same tokens whatever shares the step with it, up to rounding: BLAS sums in another
    order for another batch shape, which decides about 1 token in 10^5 (the best two logits being that close).
    """

    def __init__(self, model: ModelConfig, engine: EngineConfig, weights: Weights) -> None:
        self.model = model
        self.block_size, self.num_blocks = engine.block_size, engine.num_blocks
        self.weights = weights
        shape = (model.num_key_value_heads, engine.num_blocks, engine.block_size, model.head_dim)
        self.k_cache = [np.zeros(shape, np.float32) for _ in range(model.num_hidden_layers)]
        self.v_cache = [np.zeros(shape, np.float32) for _ in range(model.num_hidden_layers)]
        self.cos, self.sin = rope_table(model, engine.max_model_len)
        self.scale = np.float32(model.head_dim**-0.5)
        self.hidden_tokens = np.array([not tokenizer.is_visible(i) for i in range(model.vocab_size)])

    def warmup(self) -> None:
        """Run one short prompt through block 0, which nobody holds yet."""
        request = Request("warmup", [0] * min(self.block_size, len(self.cos)), 1)
        request.block_ids = [0]
        self.execute(SchedulerOutput([ScheduledRequest(request, len(request.token_ids), True)]))

    def capacity(self) -> int:
        """KV blocks that it holds."""
        return self.num_blocks

    def step_cost(self, output: SchedulerOutput) -> StepCost:
        """Weights once and the KV of every context; multiply-adds of every token."""
        return StepCost(0.0, 0.0)

    def close(self) -> None:
        """Nothing is held but memory."""

    def execute(self, output: SchedulerOutput) -> list[list[int]]:
        """One forward pass over all scheduled tokens, then the most likely token of each request that samples."""
        batch = self.prepare(output.scheduled)
        logits = self.logits(batch)
        sampled = iter(self.sample(logits, [item.request for item in output.scheduled if item.samples]))
        return [[next(sampled)] if item.samples else [] for item in output.scheduled]

    def logits(self, batch: Batch) -> Array:
        """[sampling requests, vocab]: the whole model."""
        weights, eps = self.weights, self.model.rms_norm_eps
        cos, sin = self.cos[batch.positions], self.sin[batch.positions]
        x = weights.embedding[batch.token_ids]
        for index, layer in enumerate(weights.layers):
            x += self._attention(index, layer, rms_norm(x, layer.attn_norm, eps), batch, cos, sin)
            x += linear(swiglu(linear(rms_norm(x, layer.mlp_norm, eps), layer.gate_up)), layer.down)
        assert x.dtype == np.float32  # one float64 scalar on the way would silently halve the speed (NEP 50)
        return linear(rms_norm(x[batch.sample_rows], weights.norm, eps), weights.head)

    def _attention(self, index: int, layer: LayerWeights, x: Array, batch: Batch, cos: Array, sin: Array) -> Array:
        model, n_rows = self.model, len(x)
        n_qk_heads = model.num_attention_heads + model.num_key_value_heads
        heads = linear(x, layer.qkv).reshape(n_rows, -1, model.head_dim)
        qk = rotate(heads[:, :n_qk_heads], cos, sin)
        self._store(self.k_cache[index], qk[:, model.num_attention_heads :], batch.slots)
        self._store(self.v_cache[index], heads[:, n_qk_heads:], batch.slots)
        queries = qk[:, : model.num_attention_heads] * self.scale
        out = np.empty_like(queries)
        for group in batch.groups:
            out[group.rows] = self._attend(index, queries[group.rows], group)
        return linear(out.reshape(n_rows, -1), layer.o)

    def _store(self, cache: Array, values: Array, slots: Ints) -> None:
        """Write `values` [rows, kv heads, head_dim] to their places in one layer's cache."""
        cache.reshape(cache.shape[0], -1, cache.shape[-1])[:, slots] = values.swapaxes(0, 1)

    def _attend(self, index: int, queries: Array, group: AttentionGroup) -> Array:
        """Grouped-query attention. `queries` and the result are [seqs, queries, heads, head_dim]."""
        n_seqs, n_queries, n_heads, head_dim = queries.shape
        n_kv = self.model.num_key_value_heads
        keys = self._gather(self.k_cache[index], group.block_table)
        values = self._gather(self.v_cache[index], group.block_table)
        q = queries.reshape(n_seqs, n_queries, n_kv, -1, head_dim).transpose(2, 0, 3, 1, 4)
        q = q.reshape(n_kv, n_seqs, -1, head_dim)
        scores = q @ keys.swapaxes(-1, -2)
        by_query = scores.reshape(n_kv, n_seqs, -1, n_queries, scores.shape[-1])
        by_query += group.mask[:, None]
        out = softmax_in_place(scores) @ values
        out = out.reshape(n_kv, n_seqs, -1, n_queries, head_dim).transpose(1, 3, 0, 2, 4)
        return out.reshape(n_seqs, n_queries, n_heads, head_dim)

    def _gather(self, cache: Array, block_table: Ints) -> Array:
        """The blocks of each sequence side by side: [kv heads, seqs, keys, head_dim]."""
        n_kv, _, _, head_dim = cache.shape
        return cache.take(block_table, axis=1).reshape(n_kv, len(block_table), -1, head_dim)

    def prepare(self, scheduled: Sequence[ScheduledRequest]) -> Batch:
        """Lay a step's tokens out in one batch."""
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts: list[int] = []
        for item in scheduled:
            starts.append(len(token_ids))
            first, last = item.request.num_computed_tokens, item.request.num_computed_tokens + item.num_tokens
            token_ids += item.request.token_ids[first:last]
            positions += range(first, last)
            slots += self._slots(item.request.block_ids, first, last)
        ends = [start + item.num_tokens for start, item in zip(starts, scheduled, strict=True)]
        sample_rows = [end - 1 for end, item in zip(ends, scheduled, strict=True) if item.samples]
        groups = [self._group(members) for members in _groups(list(zip(starts, scheduled, strict=True)))]
        return Batch(_ints(token_ids), _ints(positions), _ints(slots), groups, _ints(sample_rows))

    def _slots(self, block_ids: list[int], first: int, last: int) -> list[int]:
        size = self.block_size
        return [block_ids[position // size] * size + position % size for position in range(first, last)]

    def _group(self, members: Sequence[tuple[int, ScheduledRequest]]) -> AttentionGroup:
        """Members of equally many queries; shorter block tables are filled up with block 0, which the mask hides."""
        n_queries = members[0][1].num_tokens
        first = _ints([item.request.num_computed_tokens for _, item in members])
        n_blocks = (int(first.max()) + n_queries - 1) // self.block_size + 1
        tables = [item.request.block_ids[:n_blocks] for _, item in members]
        table = _ints([blocks + [0] * (n_blocks - len(blocks)) for blocks in tables])
        own = first[:, None] + np.arange(n_queries)
        later = np.arange(n_blocks * self.block_size) > own[:, :, None]
        mask = np.where(later, np.float32(-np.inf), np.float32(0.0))
        rows = _ints([start for start, _ in members])[:, None] + np.arange(n_queries)
        return AttentionGroup(rows, table, mask)

    def sample(self, logits: Array, requests: Sequence[Request]) -> list[int]:
        """Greedy. Tokens without visible text are never emitted; the end of sequence only where it is allowed."""
        eos_logits = logits[:, tokenizer.EOS_ID].copy()
        logits[:, self.hidden_tokens] = -np.inf
        allowed = [request.eos_allowed for request in requests]
        logits[allowed, tokenizer.EOS_ID] = eos_logits[allowed]
        sampled: list[int] = logits.argmax(axis=1).tolist()
        return sampled


def _groups(members: list[tuple[int, ScheduledRequest]]) -> Iterator[list[tuple[int, ScheduledRequest]]]:
    """Decodes together where padding stays within 25% of the shortest context; each prefill chunk by itself."""
    decodes = [member for member in members if member[1].num_tokens == 1]
    decodes.sort(key=lambda member: member[1].request.num_computed_tokens)
    while decodes:
        limit = decodes[0][1].request.num_computed_tokens * 1.25 + 16
        together = [member for member in decodes if member[1].request.num_computed_tokens <= limit]
        yield together
        decodes = decodes[len(together) :]
    yield from ([member] for member in members if member[1].num_tokens > 1)


def _ints(values: Sequence[int] | Sequence[Sequence[int]]) -> Ints:
    return np.array(values, np.intp)
