"""Owns what a step of the numpy executor costs: the shared arithmetic for the model's shape and the KV cache's type."""

from __future__ import annotations

from engine_adapters.reference.config import BYTES_PER_WEIGHT, ModelConfig
from engine_adapters.reference.executors.base import StepCost
from engine_adapters.reference.executors.numpy_kv import KVCacheDtype
from engine_adapters.reference.scheduler import SchedulerOutput
from engine_adapters.reference.step_cost import load_of, step_flops
from loadgen.roofline.model_shape import ModelShape

KV_SCALE_BYTES = 4


def kv_bytes_per_token(model: ModelConfig, kv_cache_dtype: KVCacheDtype) -> int:
    """Keys and values of one token over all layers: 4 bytes an element, or 1; int8 has a scale for each head."""
    head_bytes = {"auto": 4 * model.head_dim, "int8": model.head_dim + KV_SCALE_BYTES, "fp8": model.head_dim}
    return 2 * model.num_hidden_layers * model.num_key_value_heads * head_bytes[kv_cache_dtype]


def active_shape(model: ModelConfig) -> ModelShape:
    """The dense model that computes as much for a token as `model` does: its chosen experts side by side."""
    return ModelShape(
        name=model.name,
        n_layers=model.num_hidden_layers,
        hidden=model.hidden_size,
        n_q_heads=model.num_attention_heads,
        n_kv_heads=model.num_key_value_heads,
        head_dim=model.head_dim,
        ffn=model.intermediate_size * (model.num_experts_per_tok or 1),
        vocab=model.vocab_size,
        tied=model.tie_word_embeddings,
        qk_norm=model.qk_norm,
    )


class CostModel:
    """Bytes and FLOPs of steps; what does not depend on the step is worked out once."""

    def __init__(self, model: ModelConfig, kv_cache_dtype: KVCacheDtype) -> None:
        self.model = model
        self.shape = active_shape(model)
        self.kv_token_bytes = kv_bytes_per_token(model, kv_cache_dtype)

    def of(self, output: SchedulerOutput) -> StepCost:
        """The cost of a step: every weight that it needs once, each context once."""
        load = load_of(
            (item.request.num_computed_tokens, item.num_tokens, 1 + len(item.draft_token_ids) if item.samples else 0)
            for item in output.scheduled
        )
        n_bytes = self._weight_bytes(load.n_tokens) + self.kv_token_bytes * load.context_tokens
        return StepCost(n_bytes, step_flops(load, self.shape))

    def _weight_bytes(self, n_tokens: int) -> float:
        """All weights, of the experts as many as n tokens are expected to meet if each is as likely: E(1-(1-k/E)^n)."""
        params = float(self.shape.read_params)
        if self.model.num_experts:
            share = self.model.num_experts_per_tok / self.model.num_experts
            n_met = self.model.num_experts * (1.0 - (1.0 - share) ** n_tokens)
            params += self.shape.mlp_params * (n_met / self.model.num_experts_per_tok - 1.0)
        return params * BYTES_PER_WEIGHT
