"""Owns the simulated machine: a model on devices, how it is split, and how long a step of it takes.

A step takes max(bytes / bandwidth, FLOPs / peak), each divided by its efficiency, plus launching and communicating.
With efficiencies of at most 1 it is never faster than `loadgen.roofline` allows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from engine_adapters.reference.step_cost import StepLoad
from loadgen.roofline.hardware import GIB, Hardware, datasheet_peak
from loadgen.roofline.model_shape import KV_BYTES, WEIGHT_BYTES, ModelShape

ACTIVATION_BYTES = 2  # what devices send each other is bf16
# int4 weights are widened to bf16 before they are multiplied (AWQ, GPTQ): their peak is that of bf16.
COMPUTE_FORMAT = {"int4": "bf16"}


class DeploymentProblem(ValueError):
    """A split, a size or an assumption that can't be; the text tells the user why and what to change."""


def _assumed(default: float, source: str) -> Any:
    return field(default=default, metadata={"source": source})


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What a datasheet does not tell; each with a default and its source, all of them open to change by name."""

    bandwidth_efficiency: float = _assumed(
        0.8, "share of the datasheet's bytes/s: fit to vLLM's dense points in aiconfigurator's silicon samples"
    )
    compute_efficiency: float = _assumed(
        0.45, "share of the dense peak: fit to TensorRT-LLM's dense points; 0.446 in NIM's table for Llama-3.3-70B"
    )
    launch_s: float = _assumed(1.53e-3, "seconds a step beside reading and computing: fit to vLLM's dense points")
    collective_s: float = _assumed(27.5e-6, "seconds to start one all-reduce, two a layer: fit (55 us a layer, vLLM)")
    link_gbs: float = _assumed(450.0, "GB/s a device sends to its peers: NVLink 4 (H100, H200), one direction")
    memory_share: float = _assumed(0.9, "share of memory that the engine may use: vLLM's gpu_memory_utilization")
    overhead_gib: float = _assumed(3.0, "GiB a device for activations, graphs and libraries: 2.5 to 4 are typical")
    transfer_gbs: float = _assumed(50.0, "GB/s of KV from a prefill to a decode replica: one 400 Gbit/s adapter")
    transfer_s: float = _assumed(1e-3, "seconds before the first byte of a KV transfer arrives: an assumption")
    draft_cost: float = _assumed(0.0, "a drafted token's share of a step's time: 0 for n-gram drafts")
    peak_tflops: float = _assumed(0.0, "dense TFLOP/s of a device where the table has none; 0: the table's")

    def __post_init__(self) -> None:
        for name in ("bandwidth_efficiency", "compute_efficiency", "memory_share"):
            if not 0 < getattr(self, name) <= 1:
                raise DeploymentProblem(f"{name} must be above 0 and at most 1, not {getattr(self, name):g}")
        for name in ("link_gbs", "transfer_gbs"):
            if not getattr(self, name) > 0:
                raise DeploymentProblem(f"{name} must be above 0, not {getattr(self, name):g}")
        if bad := [f.name for f in fields(self) if not 0 <= getattr(self, f.name) < math.inf]:
            raise DeploymentProblem(f"{bad[0]} must not be negative")


def assumptions_from(given: Mapping[str, float]) -> Assumptions:
    """The defaults with changes by name; raises DeploymentProblem for an unknown name."""
    known = [f.name for f in fields(Assumptions)]
    if unknown := [name for name in given if name not in known]:
        raise DeploymentProblem(f"unknown assumption {unknown[0]!r}: known are {', '.join(known)}")
    return replace(Assumptions(), **given)


def assumption_rows() -> list[tuple[str, float, str]]:
    """(name, default, meaning and source) of every assumption."""
    return [(f.name, f.default, f.metadata["source"]) for f in fields(Assumptions)]  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class Speculation:
    """`n_tokens` drafted for each decode step, each accepted with probability `acceptance` when those before it were.

    A step then emits (1 - a^(k+1)) / (1 - a) tokens on average (Leviathan et al., arXiv 2211.17192).
    """

    n_tokens: int = 0
    acceptance: float = 0.0

    def __post_init__(self) -> None:
        if self.n_tokens < 0 or not 0 <= self.acceptance <= 1:
            raise DeploymentProblem("speculation drafts at least 0 tokens, accepted with a probability of 0 to 1")

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens that one decode step emits."""
        a, k = self.acceptance, self.n_tokens
        return k + 1.0 if a == 1 else (1 - a ** (k + 1)) / (1 - a)


@dataclass(frozen=True, slots=True)
class Deployment:
    """One replica: `tensor_parallel` x `data_parallel` x `pipeline_parallel` devices under one scheduler.

    tensor_parallel: devices that share each layer. KV heads are stored more than once where they are fewer.
    data_parallel: groups of such devices, each attending to its share of the sequences with attention weights of its
    own, while all share one MLP ("DP attention"). The shares are taken as even.
    pipeline_parallel: stages of layers one behind the other; sequences go through in as many parts as there are stages.
    """

    model: ModelShape
    hardware: Hardware
    tensor_parallel: int = 1
    data_parallel: int = 1
    pipeline_parallel: int = 1
    precision: str = "bf16"
    kv_precision: str = "bf16"
    speculation: Speculation = Speculation()
    assumed: Assumptions = Assumptions()

    def __post_init__(self) -> None:
        for name in ("tensor_parallel", "data_parallel", "pipeline_parallel"):
            if getattr(self, name) < 1:
                raise DeploymentProblem(f"{name} must be at least 1")
        if self.model.n_q_heads % self.tensor_parallel:
            heads = self.model.n_q_heads
            raise DeploymentProblem(f"{heads} query heads can't be split over {self.tensor_parallel} devices")
        if self.pipeline_parallel > self.model.n_layers:
            raise DeploymentProblem(f"{self.model.n_layers} layers make no {self.pipeline_parallel} stages")
        _known("precision", self.precision, WEIGHT_BYTES)
        _known("KV precision", self.kv_precision, KV_BYTES)

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.tensor_parallel * self.data_parallel * self.pipeline_parallel

    @property
    def split(self) -> str:
        """The split in the field's abbreviations."""
        parts = (("TP", self.tensor_parallel), ("DP", self.data_parallel), ("PP", self.pipeline_parallel))
        return " ".join(f"{name}{n}" for name, n in parts if n > 1) or "1 device"

    @property
    def peak_flops(self) -> float:
        """Dense FLOP/s of a device at the weights' precision; raises DeploymentProblem when none is known."""
        if self.assumed.peak_tflops:
            return self.assumed.peak_tflops * 1e12
        peak = datasheet_peak(self.hardware, COMPUTE_FORMAT.get(self.precision, self.precision))
        if peak is None:
            raise DeploymentProblem(
                f"no peak FLOP/s is known for {self.hardware.name}: give it with --assume peak_tflops=N"
            )
        return peak.flops

    @property
    def kv_replication(self) -> float:
        """How many devices hold each KV head: 1, or TP / heads where TP exceeds them."""
        return max(1.0, self.tensor_parallel / self.model.n_kv_heads)

    @property
    def kv_token_bytes(self) -> float:
        """Bytes of one token's KV, counted once."""
        return self.model.kv_bytes_per_token(self.kv_precision)

    @property
    def resident_bytes(self) -> float:
        """Weights on each device; embeddings and head at 2 bytes or more, as quantised checkpoints leave them."""
        model, size = self.model, self.model.weight_size(self.precision)
        rest = (model.attention_params + model.norm_params) * size + model.embedding_params * max(size, 2.0)
        mlp = model.mlp_params * size / self.data_parallel
        return (rest + mlp) / (self.tensor_parallel * self.pipeline_parallel)

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV pools of all devices hold; raises DeploymentProblem when the weights leave no room.

        Memory x share - overhead - weights is each device's pool, and a token takes kv * rho / (TP * PP) of it.
        """
        pool = self.hardware.mem_bytes * self.assumed.memory_share - self.assumed.overhead_gib * GIB
        pool -= self.resident_bytes
        share = self.kv_token_bytes * self.kv_replication / (self.tensor_parallel * self.pipeline_parallel)
        if pool < share:
            raise DeploymentProblem(
                f"{self.model.name} in {self.precision} does not fit in {self.devices} x {self.hardware.name} "
                f"({self.split}): {self.resident_bytes / GIB:.1f} GiB of weights a device; "
                "take more devices (--tp, --pp) or a smaller precision"
            )
        return int(pool / share) * self.data_parallel

    def transfer_s(self, n_tokens: int) -> float:
        """Seconds to send the KV of `n_tokens` to another replica over the link."""
        return self.assumed.transfer_s + n_tokens * self.kv_token_bytes / (self.assumed.transfer_gbs * 1e9)


def _known(what: str, name: str, table: Mapping[str, float]) -> None:
    if name not in table:
        raise DeploymentProblem(f"unknown {what} {name!r}: one of {', '.join(table)}")


class StepTimer:
    """Seconds of a step on a deployment; everything that does not depend on the step is worked out once."""

    def __init__(self, deployment: Deployment) -> None:
        d, model = deployment, deployment.model
        size, group = model.weight_size(d.precision), d.tensor_parallel * d.data_parallel
        rest_params = model.attention_params + model.norm_params + model.vocab * model.hidden
        read_bytes = rest_params * size / d.tensor_parallel + model.mlp_params * size / group
        bandwidth = d.hardware.bandwidth_bps * d.assumed.bandwidth_efficiency
        flops = d.peak_flops * d.assumed.compute_efficiency * group
        self._stages = d.pipeline_parallel
        self._weights_s = read_bytes / bandwidth
        self._context_s = d.kv_token_bytes * d.kv_replication / (group * bandwidth)
        self._token_s = model.flops_per_token / flops
        self._head_s = model.head_flops / flops
        self._pair_s = model.attention_flops_per_context_token / flops
        self._fixed_s = d.assumed.launch_s + _collectives_s(d)
        self._message_s = _message_s(d)
        self._fixed_share = 1.0 + d.assumed.draft_cost * d.speculation.n_tokens

    def seconds(self, load: StepLoad) -> float:
        """How long the step takes: the slower of reading and computing, with launches and messages on top.

        With p stages the sequences go through in m = min(p, sequences) parts: every device reads its weights in each
        of p rounds, and only 1/m of the KV and the work in each.
        """
        return self.raw_s(load.n_seqs, load.n_tokens, load.n_sampled, load.context_tokens, load.pairs)

    def raw_s(self, n_seqs: int, n_tokens: int, n_sampled: int, context_tokens: int, pairs: int) -> float:
        """`seconds` for the fields of a load."""
        parts = min(self._stages, n_seqs)
        memory_s = self._weights_s + self._context_s * context_tokens / parts
        compute_s = (self._token_s * n_tokens + self._head_s * n_sampled + self._pair_s * pairs) / parts
        busy_s = memory_s if memory_s > compute_s else compute_s
        return self._fixed_share * (busy_s + self._fixed_s + self._message_s * n_tokens / parts)


def _collectives_s(d: Deployment) -> float:
    """Time to start what devices tell each other in a step: two all-reduces a layer, one hop a stage boundary."""
    attention, mlp = d.tensor_parallel > 1, d.tensor_parallel * d.data_parallel > 1
    return d.assumed.collective_s * (d.model.n_layers * (attention + mlp) + d.pipeline_parallel - 1)


def _message_s(d: Deployment) -> float:
    """Time on the links for each token of a step: ring all-reduces of its hidden state, and the hop between stages."""
    hidden_bytes = d.model.hidden * ACTIVATION_BYTES
    tp, group = d.tensor_parallel, d.tensor_parallel * d.data_parallel
    reduced = d.model.n_layers * (2 * (tp - 1) / tp / d.data_parallel + 2 * (group - 1) / group)
    return hidden_bytes * (reduced + d.pipeline_parallel - 1) / (d.assumed.link_gbs * 1e9)
