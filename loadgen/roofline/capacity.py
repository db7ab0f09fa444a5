"""Owns KV-cache capacity: how many bytes, tokens and sequences fit beside the weights."""

from __future__ import annotations

from loadgen.roofline.hardware import GIB
from loadgen.roofline.model_shape import ModelShape


def weight_bytes(model: ModelShape, precision: str | None) -> float:
    """Bytes of all weights at `precision`, embeddings and head included: the least that must be resident."""
    return model.total_params * model.weight_size(precision)


def checkpoint_bytes(model: ModelShape, precision: str) -> float:
    """As `weight_bytes`, with embeddings and head left at 2 bytes or more, as quantised checkpoints leave them."""
    size = model.weight_size(precision)
    inner = model.total_params - model.embedding_params
    return inner * size + model.embedding_params * max(size, 2.0)


def kv_pool_upper_bytes(model: ModelShape, mem_bytes: float, devices: int, precision: str | None) -> float:
    """KV bytes that could exist at most: all memory of all devices less the weights, no overhead; 0 when they don't
    fit. `mem_bytes` is per device."""
    return max(0.0, devices * mem_bytes - weight_bytes(model, precision))


def kv_tokens(pool_bytes: float, model: ModelShape, kv_precision: str, block_tokens: int = 16) -> int:
    """Tokens of whole blocks that fit in `pool_bytes` (vLLM's "GPU KV cache size" for full attention)."""
    return int(pool_bytes // (block_tokens * model.kv_bytes_per_token(kv_precision))) * block_tokens


def expected_sequences(
    model: ModelShape,
    mem_bytes: float,
    *,
    devices: int,
    tensor_parallel: int,
    precision: str,
    kv_precision: str,
    context_tokens: int,
    mlp_devices: int | None = None,
    memory_share: float = 0.9,
    overhead_bytes: float = 3 * GIB,
    block_tokens: int = 16,
) -> int:
    """Sequences of `context_tokens` that a server is likely to hold: an estimate, not a bound.

    Per device: memory x share - overhead - weights / TP is the pool; a sequence takes its context in whole blocks,
    times kv, times rho / TP, where rho = TP / n_kv when TP exceeds the KV heads (they are stored more than once).
    Replicas of TP devices add. `mlp_devices` share one copy of the MLP: TP by default, more where attention runs data
    parallel over one split MLP. Give the largest context for engines that reserve it (TensorRT-LLM, TGI, llama.cpp:
    "admissible"), the mean resident one, P + O/2, for those that allocate on demand (vLLM, SGLang: "sustainable").
    """
    if devices % tensor_parallel:
        raise ValueError(f"{devices} devices are no whole number of replicas of {tensor_parallel}")
    mlp_bytes = model.mlp_params * model.weight_size(precision)
    rest_bytes = checkpoint_bytes(model, precision) - mlp_bytes
    weights = rest_bytes / tensor_parallel + mlp_bytes / (mlp_devices or tensor_parallel)
    pool = mem_bytes * memory_share - overhead_bytes - weights
    replication = max(1.0, tensor_parallel / model.n_kv_heads)
    blocks = -(-context_tokens // block_tokens)
    share = blocks * block_tokens * model.kv_bytes_per_token(kv_precision) * replication / tensor_parallel
    return max(0, int(pool // share)) * (devices // tensor_parallel)
