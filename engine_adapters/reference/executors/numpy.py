"""The CPU executor: a Llama-style decoder in numpy over a paged KV cache; float32 but for the cache, if so asked."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from engine_adapters.reference import tokenizer
from engine_adapters.reference.config import EngineConfig, ModelConfig
from engine_adapters.reference.executors.base import StepCost
from engine_adapters.reference.executors.numpy_cost import CostModel
from engine_adapters.reference.executors.numpy_kv import KV_STORES, Ints, KVCacheDtype
from engine_adapters.reference.executors.numpy_ops import (
    experts_mlp,
    linear,
    mlp,
    rms_norm,
    rope_table,
    rotate,
    softmax_in_place,
)
from engine_adapters.reference.request import Request
from engine_adapters.reference.safetensors import Array
from engine_adapters.reference.sampling import draw, logprobs_of
from engine_adapters.reference.scheduler import ScheduledRequest, SchedulerOutput
from engine_adapters.reference.weights import LayerWeights, Weights


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

    def __init__(
        self,
        model: ModelConfig,
        engine: EngineConfig,
        weights: Weights,
        text: tokenizer.Tokenizer = tokenizer.BYTES,
        kv_cache_dtype: KVCacheDtype = "auto",
    ) -> None:
        self.model = model
        self.block_size, self.num_blocks = engine.block_size, engine.num_blocks
        self.weights = weights
        store = KV_STORES[kv_cache_dtype]
        layers = range(model.num_hidden_layers)
        self.k_cache = [store(model, engine.num_blocks, engine.block_size) for _ in layers]
        self.v_cache = [store(model, engine.num_blocks, engine.block_size) for _ in layers]
        self.cos, self.sin = rope_table(model, engine.max_model_len)
        self.scale = np.float32(model.head_dim**-0.5)
        self.hidden_tokens = np.array(
            [i in text.eos_token_ids or not text.is_visible(i) for i in range(model.vocab_size)]
        )
        self.cost = CostModel(model, kv_cache_dtype)

    def capacity(self) -> int:
        """KV blocks that it holds."""
        return self.num_blocks

    def step_cost(self, output: SchedulerOutput) -> StepCost:
        """Weights and contexts read once; multiply-adds of all scheduled tokens."""
        return self.cost.of(output)

    def close(self) -> None:
        """Nothing is held but memory."""

    def warmup(self) -> None:
        """Run one short prompt through block 0, which nobody holds yet."""
        request = Request("warmup", [0] * min(self.block_size, len(self.cos)), 1)
        request.block_ids = [0]
        self.execute(SchedulerOutput([ScheduledRequest(request, len(request.token_ids), True)]))

    def execute(self, output: SchedulerOutput) -> list[list[int]]:
        """One forward pass over all scheduled tokens, then the tokens of each request that samples."""
        with np.errstate(over="ignore"):  # exp(-gate) may be inf: silu is then 0, as it should be
            logits = self.logits(self.prepare(output.scheduled))
        return self.sample(logits, output.scheduled)

    def logits(self, batch: Batch) -> Array:
        """[rows that sample, vocab]: the whole model."""
        weights, eps = self.weights, self.model.rms_norm_eps
        cos, sin = self.cos[batch.positions], self.sin[batch.positions]
        x = weights.embedding[batch.token_ids]
        for index, layer in enumerate(weights.layers):
            x += self._attention(index, layer, rms_norm(x, layer.attn_norm, eps), batch, cos, sin)
            x += self._mlp(layer, rms_norm(x, layer.mlp_norm, eps))
        assert x.dtype == np.float32  # one float64 scalar on the way would silently halve the speed (NEP 50)
        return linear(rms_norm(x[batch.sample_rows], weights.norm, eps), weights.head)

    def _mlp(self, layer: LayerWeights, x: Array) -> Array:
        if layer.router is None:
            return mlp(x, layer.gate_up, layer.down)
        return experts_mlp(self.model, x, layer.router, layer.gate_up, layer.down)

    def _attention(self, index: int, layer: LayerWeights, x: Array, batch: Batch, cos: Array, sin: Array) -> Array:
        model, n_rows = self.model, len(x)
        n_qk_heads = model.num_attention_heads + model.num_key_value_heads
        heads = linear(x, layer.qkv).reshape(n_rows, -1, model.head_dim)
        qk = rotate(self._normed(layer, heads[:, :n_qk_heads]), cos, sin)
        self.k_cache[index].write(qk[:, model.num_attention_heads :], batch.slots)
        self.v_cache[index].write(heads[:, n_qk_heads:], batch.slots)
        queries = qk[:, : model.num_attention_heads] * self.scale
        out = np.empty_like(queries)
        for group in batch.groups:
            out[group.rows] = self._attend(index, queries[group.rows], group)
        return linear(out.reshape(n_rows, -1), layer.o)

    def _normed(self, layer: LayerWeights, qk: Array) -> Array:
        """Queries and keys [rows, heads, head_dim], each head normalised where the model has norms for it."""
        if layer.q_norm is None or layer.k_norm is None:
            return qk
        n_q, eps = self.model.num_attention_heads, self.model.rms_norm_eps
        return np.concatenate([rms_norm(qk[:, :n_q], layer.q_norm, eps), rms_norm(qk[:, n_q:], layer.k_norm, eps)], 1)

    def _attend(self, index: int, queries: Array, group: AttentionGroup) -> Array:
        """Grouped-query attention. `queries` and the result are [seqs, queries, heads, head_dim]."""
        n_seqs, n_queries, n_heads, head_dim = queries.shape
        n_kv = self.model.num_key_value_heads
        keys = self.k_cache[index].gather(group.block_table)
        values = self.v_cache[index].gather(group.block_table)
        q = queries.reshape(n_seqs, n_queries, n_kv, -1, head_dim).transpose(2, 0, 3, 1, 4)
        q = q.reshape(n_kv, n_seqs, -1, head_dim)
        scores = q @ keys.swapaxes(-1, -2)
        by_query = scores.reshape(n_kv, n_seqs, -1, n_queries, scores.shape[-1])
        by_query += group.mask[:, None]
        out = softmax_in_place(scores) @ values
        out = out.reshape(n_kv, n_seqs, -1, n_queries, head_dim).transpose(1, 3, 0, 2, 4)
        return out.reshape(n_seqs, n_queries, n_heads, head_dim)

    def prepare(self, scheduled: Sequence[ScheduledRequest]) -> Batch:
        """Lay a step's tokens out in one batch."""
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts: list[int] = []
        sample_rows: list[int] = []
        for item in scheduled:
            starts.append(len(token_ids))
            first, last = item.request.num_computed_tokens, item.request.num_computed_tokens + item.num_tokens
            token_ids += item.request.token_ids[first:last]
            token_ids += item.draft_token_ids
            positions += range(first, last)
            slots += self._slots(item.request.block_ids, first, last)
            sample_rows += range(len(token_ids) - _n_rows(item), len(token_ids))
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

    def sample(self, logits: Array, scheduled: Sequence[ScheduledRequest]) -> list[list[int]]:
        """The tokens of each scheduled request from `logits`, of which each that samples has 1 + drafts rows.

        Tokens without visible text are never emitted, and those that end an answer only once it has min_tokens. A draft
        is right if it is what would have been drawn anyway, so speculation changes no token.
        """
        ends = list(itertools.accumulate(map(_n_rows, scheduled)))
        spans = [slice(end - _n_rows(item), end) for item, end in zip(scheduled, ends, strict=True)]
        raw = logits.copy() if any(item.request.sampling.logprobs is not None for item in scheduled) else logits
        self._mask(logits, scheduled, spans)
        greedy = logits.argmax(axis=1).tolist()
        results = [_verified(item, logits[span], greedy[span]) for item, span in zip(scheduled, spans, strict=True)]
        for item, span, tokens in zip(scheduled, spans, results, strict=True):
            _note_logprobs(item.request, raw[span], tokens)
        return results

    def _mask(self, logits: Array, scheduled: Sequence[ScheduledRequest], spans: Sequence[slice]) -> None:
        """Set to -inf, in each row, what must not be drawn there."""
        ending = [
            (item.request, span) for item, span in zip(scheduled, spans, strict=True) if item.request.end_token_ids
        ]
        kept = [logits[span, list(request.end_token_ids)] for request, span in ending]
        logits[:, self.hidden_tokens] = -np.inf
        for (request, span), values in zip(ending, kept, strict=True):
            values[: max(request.min_tokens - request.num_output_tokens, 0)] = -np.inf
            logits[span, list(request.end_token_ids)] = values


def _n_rows(item: ScheduledRequest) -> int:
    return 1 + len(item.draft_token_ids) if item.samples else 0


def _verified(item: ScheduledRequest, logits: Array, greedy: list[int]) -> list[int]:
    """What is drawn after each row, up to and with the first that is not the draft which the next row assumed."""
    request, tokens = item.request, list[int]()
    for i, best in enumerate(greedy):
        if request.sampling.temperature > 0.0:
            best = draw(logits[i], request, request.num_output_tokens + i)
        tokens.append(best)
        if i == len(item.draft_token_ids) or item.draft_token_ids[i] != best:
            break
    return tokens


def _note_logprobs(request: Request, logits: Array, tokens: list[int]) -> None:
    n_top = request.sampling.logprobs
    if n_top is not None:
        request.logprobs += [logprobs_of(logits[i], token, n_top) for i, token in enumerate(tokens)]


def _groups(members: list[tuple[int, ScheduledRequest]]) -> Iterator[list[tuple[int, ScheduledRequest]]]:
    """Decodes of as many drafts together where padding stays within 25%; each prefill chunk by itself."""
    decodes: dict[int, list[tuple[int, ScheduledRequest]]] = defaultdict(list)
    for member in members:
        if member[1].is_decode:
            decodes[member[1].num_tokens].append(member)
        else:
            yield [member]
    for alike in decodes.values():
        yield from _of_like_length(alike)


def _of_like_length(members: list[tuple[int, ScheduledRequest]]) -> Iterator[list[tuple[int, ScheduledRequest]]]:
    """Split where padding to the longest context would exceed 25% of the shortest."""
    members = sorted(members, key=lambda member: member[1].request.num_computed_tokens)
    while members:
        limit = members[0][1].request.num_computed_tokens * 1.25 + 16
        together = [member for member in members if member[1].request.num_computed_tokens <= limit]
        yield together
        members = members[len(together) :]


def _ints(values: Sequence[int] | Sequence[Sequence[int]]) -> Ints:
    return np.array(values, np.intp)
