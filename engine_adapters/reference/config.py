"""Owns the engine's settings and model shapes, under the names vLLM and Hugging Face use; imports no numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

Policy = Literal["fcfs", "priority"]
Admission = Literal["on_demand", "reserve"]
POSITIVE = ("max_num_seqs", "max_num_batched_tokens", "block_size", "num_blocks", "max_model_len", "rate_limit_burst")
NOT_NEGATIVE = ("max_waiting", "long_prefill_token_threshold", "num_speculative_tokens")

BYTES_PER_WEIGHT = 4  # everything is float32

# The environment the engine's process must have before numpy is imported. More BLAS threads than free cores make
# TTFT explode (20 -> 640 ms measured). The glibc settings keep step-sized buffers mapped: without them every step
# pays page faults for its temporaries, which halves the throughput at 64 sequences.
PROCESS_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the scheduler may do. The defaults hold 64 sequences of 700 tokens in the KV cache.

    max_num_seqs: most sequences in one step. max_num_batched_tokens: most tokens in one step, prefill chunks
    included, so it bounds how long a prefill can hold up the running decodes. block_size: tokens in one KV block.
    max_waiting: requests accepted beyond max_num_seqs; one more is answered 429. long_prefill_token_threshold: most
    tokens of one request in one step, 0 for no limit but the step's. policy: "fcfs" or "priority" (lower goes first).
    admission: "on_demand" gives blocks as tokens come, "reserve" gives every request max_model_len tokens at once, as
    engines with fixed slots do. num_speculative_tokens: most guesses to verify for one decode in one step, 0 for none.
    rate_limit_rps, rate_limit_burst: a token bucket before the queue, None for none: so many requests a second in the
    long run, and at most so many at once.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 256
    block_size: int = 16
    num_blocks: int = 2816
    max_model_len: int = 4096
    max_waiting: int = 4096
    long_prefill_token_threshold: int = 0
    enable_prefix_caching: bool = True
    policy: Policy = "fcfs"
    admission: Admission = "on_demand"
    num_speculative_tokens: int = 0
    rate_limit_rps: float | None = None
    rate_limit_burst: int = 1

    def __post_init__(self) -> None:
        for name in POSITIVE:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        for name, choices in (("policy", get_args(Policy)), ("admission", get_args(Admission))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be {' or '.join(choices)}, not {getattr(self, name)}")
        if self.rate_limit_rps is not None and not self.rate_limit_rps > 0:
            raise ValueError("rate_limit_rps must be above 0")
        if self.capacity_tokens < self.max_model_len:
            raise ValueError(
                f"num_blocks x block_size = {self.capacity_tokens} tokens of KV cache cannot hold one sequence of "
                f"max_model_len = {self.max_model_len}; raise num_blocks or lower max_model_len"
            )

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.num_blocks * self.block_size


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3.1's stretching of slow rotary frequencies (`rope_type: llama3`), under Hugging Face's names."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of grouped-query attention and SwiGLU layers: Llama, Qwen3 dense, Qwen3-MoE (Hugging Face names).

    qk_norm: queries and keys are normalised a head before the rotary embedding (Qwen3). num_experts: 0 for a dense
    MLP; else each token goes through `num_experts_per_tok` of them, `intermediate_size` wide each, and their weights
    are scaled to sum to 1 if `norm_topk_prob`. eos_token_ids: None for a preset, whose tokenizer says it.
    """

    name: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    qk_norm: bool = False
    rope_scaling: RopeScaling | None = None
    num_experts: int = 0
    num_experts_per_tok: int = 0
    norm_topk_prob: bool = False
    max_position_embeddings: int | None = None
    eos_token_ids: tuple[int, ...] | None = None

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together, which is also that of the value heads."""
        return self.num_key_value_heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token over all layers."""
        return 2 * self.num_hidden_layers * self.kv_size * BYTES_PER_WEIGHT


MODELS = {
    "tiny": ModelConfig("tiny", 4, 256, 768, 4, 2, 64, 1024),  # 3.4 M parameters
    "small": ModelConfig("small", 6, 512, 1536, 8, 2, 64, 4096),  # 20 M parameters
}


def params_by_group(model: ModelConfig) -> dict[str, int]:
    """Parameters of each part of the model, all layers together. A tied head stores nothing of its own."""
    layers, hidden = model.num_hidden_layers, model.hidden_size
    n_mlps, router = (model.num_experts, hidden * model.num_experts) if model.num_experts else (1, 0)
    return {
        "attn": layers * hidden * 2 * (model.q_size + model.kv_size),
        "mlp": layers * (n_mlps * hidden * 3 * model.intermediate_size + router),
        "embedding": model.vocab_size * hidden,
        "head": 0 if model.tie_word_embeddings else model.vocab_size * hidden,
        "norms": (2 * layers + 1) * hidden + (2 * layers * model.head_dim if model.qk_norm else 0),
    }


def reference_model_shape(model: str) -> dict[str, Any]:
    """The shape of a preset for the roofline: parameter counts by group, heads, bytes and default KV capacity.

    `head` is 0 among the parameters because it is tied to the embedding; a decode step still reads those
    `vocab` x `hidden` weights once, as the output head (`tied_embedding` is True). Raises KeyError for an unknown name.
    """
    config, engine = MODELS[model], EngineConfig()
    return {
        "model": model,
        "params": params_by_group(config),
        "tied_embedding": True,
        "n_layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "ffn": config.intermediate_size,
        "n_q_heads": config.num_attention_heads,
        "n_kv_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "vocab": config.vocab_size,
        "bytes_per_weight": BYTES_PER_WEIGHT,
        "kv_bytes_per_token": config.kv_bytes_per_token,
        "kv_capacity_tokens": engine.capacity_tokens,
        "num_blocks": engine.num_blocks,
        "block_size": engine.block_size,
        "max_num_seqs": engine.max_num_seqs,
    }
