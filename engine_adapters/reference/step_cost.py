"""What one engine step reads and computes, counted from its schedule: the same arithmetic for every executor.

The counts are those of `loadgen.roofline`: weights once a step, KV of earlier tokens once a sequence, two FLOPs a
weight and token. An executor that divides them by the time of the step has its fraction of the roofline.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from loadgen.roofline.model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The size of one step.

    n_seqs: sequences in it. n_tokens: tokens that it computes. n_sampled: positions that need the head.
    context_tokens: tokens whose KV it reads, over all sequences. pairs: (token, token attended to) over all sequences.
    """

    n_seqs: int
    n_tokens: int
    n_sampled: int
    context_tokens: int
    pairs: int


def load_of(parts: Iterable[tuple[int, int, int]]) -> StepLoad:
    """The load of scheduled parts, each (tokens computed before, tokens to compute now, positions that it samples).

    A part of n tokens behind c earlier ones reads the KV of c tokens and attends to n*c + n(n+1)/2 pairs.
    """
    n_seqs = n_tokens = n_sampled = context_tokens = pairs = 0
    for computed, new, sampled in parts:
        n_seqs += 1
        n_tokens += new
        n_sampled += sampled
        context_tokens += computed
        pairs += new * computed + new * (new + 1) // 2
    return StepLoad(n_seqs, n_tokens, n_sampled, context_tokens, pairs)


def step_flops(load: StepLoad, model: ModelShape) -> float:
    """FLOPs of the step: 2 a weight and token, the head for sampled positions only, 4*n_q*d*L a pair of attention."""
    return (
        model.flops_per_token * load.n_tokens
        + model.head_flops * load.n_sampled
        + model.attention_flops_per_context_token * load.pairs
    )


def step_bytes(load: StepLoad, model: ModelShape, precision: str, kv_precision: str) -> float:
    """Bytes that the step reads: W + kv * context, for weights and KV of these precisions."""
    weight_bytes = model.read_params * model.weight_size(precision)
    return weight_bytes + model.kv_bytes_per_token(kv_precision) * load.context_tokens
