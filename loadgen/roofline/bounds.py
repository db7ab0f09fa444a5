"""Owns the roofline bound: output tokens/s that no engine can exceed on given hardware, and where its curve bends.

All bounds hold for a steady state: lengths as in the mix, a window of several residences, in which the number in
flight does not depend on how far contexts have grown. They assume nothing about an engine: prefill and decode overlap
perfectly, all devices share all work without talking to each other, and nothing but weights and KV is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from loadgen.roofline import capacity
from loadgen.roofline.hardware import Hardware, datasheet_peak, strict_peak
from loadgen.roofline.model_shape import ModelShape

Limiter = Literal["bandwidth", "compute", "kv capacity", "latency"]
Tokens = npt.NDArray[Any]
KNEE_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Target:
    """A model on `devices` equal devices, `replicas` times over: each replica holds all weights and has its own users.

    `precision` is of the weights; None = unknown: the smallest bytes and the largest peak that could apply are taken.
    `kv_precision` None = unknown: 1 byte an element. `kv_pool_bytes` is the engine's own KV pool over all devices
    of all replicas, where known; else all memory that the weights leave.
    """

    model: ModelShape
    hardware: Hardware
    devices: int = 1
    precision: str | None = None
    kv_precision: str | None = None
    kv_pool_bytes: float | None = None
    replicas: int = 1

    def __post_init__(self) -> None:
        for name in ("devices", "replicas"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        self.model.weight_size(self.precision)
        self.model.kv_bytes_per_token(self.kv_precision)
        strict_peak(self.hardware, self.precision)

    @property
    def bandwidth_bps(self) -> float:
        """Bytes/s of all devices together."""
        return self.replicas * self.devices * self.hardware.bandwidth_bps

    @property
    def flops(self) -> float | None:
        """FLOP/s of all devices together that must not be exceeded; None where no figure is known."""
        peak = strict_peak(self.hardware, self.precision)
        return None if peak is None else self.replicas * self.devices * peak.flops

    @property
    def step_bytes(self) -> float:
        """W: weight bytes that one forward pass reads, whatever its batch."""
        return self.model.read_params * self.model.weight_size(self.precision)

    @property
    def kv_token_bytes(self) -> float:
        """KV bytes of one context token. Not multiplied where TP exceeds the KV heads: a bound must err high."""
        return self.model.kv_bytes_per_token(self.kv_precision)


@dataclass(frozen=True, slots=True, eq=False)
class Mix:
    """Lengths of the run's requests, one element each: prompt, output and, if known, prompt tokens found in a cache.

    Real lengths, not their means: attention grows with the square and resident context with the product. Cached
    tokens are taken as shared by all: neither computed nor read again nor held twice, so that the bound errs high.
    Leave them out only if the server caches no prefixes.
    """

    prompt_tokens: Tokens
    output_tokens: Tokens
    cached_tokens: Tokens | None = None

    def __post_init__(self) -> None:
        lengths = [self.prompt_tokens, self.output_tokens]
        lengths += [] if self.cached_tokens is None else [self.cached_tokens]
        if any(np.ndim(a) != 1 or len(a) != len(self.prompt_tokens) for a in lengths) or not len(self.prompt_tokens):
            raise ValueError("a mix needs one prompt and one output length for each of at least one request")
        if np.min(self.prompt_tokens) < 1 or np.min(self.output_tokens) < 1:
            raise ValueError("prompt and output lengths must be at least 1")


@dataclass(frozen=True, slots=True)
class Bound:
    """Output tokens/s at `concurrency` in flight, the roof that gives it, and each roof by itself.

    `compute_tps` is None where no peak is known, `kv_concurrency` where memory sets no limit or the weights don't fit;
    `reason` tells of the latter.
    """

    concurrency: float
    output_tps: float
    limiter: Limiter
    bandwidth_tps: float
    compute_tps: float | None
    latency_tps: float
    kv_concurrency: float | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class _Roofs:
    """What the roofs need, per output token of the mix: KV bytes read, FLOPs, and seconds alone on the machine."""

    step_bytes: float
    bandwidth_bps: float
    kv_read_bytes: float
    compute_tps: float | None
    alone_s: float
    kv_concurrency: float | None

    def bandwidth_tps(self, concurrency: float) -> float:
        """See `bound_at`."""
        return self.bandwidth_bps / (self.step_bytes / concurrency + self.kv_read_bytes)

    def max_tps(self) -> float:
        """The bound at unlimited concurrency; infinite if nothing limits it."""
        roofs = [math.inf if self.compute_tps is None else self.compute_tps]
        if self.kv_read_bytes:
            roofs.append(self.bandwidth_tps(self.kv_concurrency or math.inf))
        return min(roofs)


def bound_at(target: Target, mix: Mix, concurrency: float) -> Bound:
    """The largest output tokens/s with `concurrency` requests in flight (time mean): min of four roofs.

    W weight bytes a pass, kv bytes a context token, P, O, H prompt, output and cached tokens, BW and F of all devices.
    Decode step j of a request (j = 1..O-1; prefill emits the first token) reads P-H+j-1 context tokens, so a request
    reads R = (O-1)(P-H) + (O-1)(O-2)/2 and an output token k = kv * sum(R) / sum(O) bytes on average.

    bandwidth: one pass of the weights serves each request in flight with at most one token (no speculation), so N
      tokens at C in flight need N/C passes and N*k bytes of KV: X <= BW / (W/C + k). Exact for a C that never exceeds
      the given one; concave in C, so by Jensen also true for the mean of a C that varies in a steady state.
    kv capacity: no pass can read more KV than the pool M holds, so N*k bytes need at least N*k/M passes: the same roof
      at C = M/k, the mean resident context (on-demand admission), whatever the admission policy.
    compute: X <= F * sum(O) / sum(FLOPs), with 2 FLOPs a weight and token, the head for emitted tokens only,
      4*n_q*d*L a pair of attention; prefill P-H tokens and P(P+1)/2 - H(H+1)/2 pairs, decode P+j pairs.
    latency: a request takes at least t = max(prefill FLOPs/F, W/BW) + max(((O-1)W + kv*R)/BW, decode FLOPs/F) even
      alone, so by Little's law X <= C * sum(O) / sum(t).

    With n replicas, BW and F are those of all together. They share C, evenly at best (concave), so n*W stands for W in
    the bandwidth roof; and a lone request has the nth part of BW and F.

    Source: design notes on the roofline model; strict, so max(memory, compute) a step and never their sum.
    Raises ValueError unless concurrency > 0.
    """
    if not concurrency > 0:
        raise ValueError(f"concurrency must be positive, not {concurrency}")
    return _bound(_roofs(target, mix), concurrency, _misfit(target))


def curve(target: Target, mix: Mix, concurrencies: Iterable[float]) -> list[Bound]:
    """`bound_at` for each concurrency."""
    roofs, reason = _roofs(target, mix), _misfit(target)
    return [_bound(roofs, c, reason) for c in concurrencies if c > 0]


def model_knee(target: Target, mix: Mix) -> float | None:
    """The smallest concurrency at which the bound reaches 0.9 of its maximum; None if it grows without limit.

    Inverts the two roofs that rise with C: latency linearly, bandwidth C = xW / (BW - x*k) at x = 0.9 X_max.
    (The batch at which memory time equals compute time is another figure: `ridge_batch`.)
    """
    roofs = _roofs(target, mix)
    wanted_tps = KNEE_SHARE * roofs.max_tps()
    if math.isinf(wanted_tps):
        return None
    by_bandwidth = wanted_tps * roofs.step_bytes / (roofs.bandwidth_bps - wanted_tps * roofs.kv_read_bytes)
    return max(by_bandwidth, wanted_tps * roofs.alone_s)


def kv_wall(target: Target, mix: Mix) -> float | None:
    """Concurrency at which the KV pool is full: pool / k of `bound_at`, an upper estimate; None if there is none.

    More than this can't decode at once, so more in flight only queue.
    """
    return _roofs(target, mix).kv_concurrency


def ridge_batch(target: Target, context_tokens: float) -> float | None:
    """B*: the decode batch at which memory time equals compute time; None = memory bound at every batch.

    W + B*kv*S = B*f(S)*BW/F, so B* = W / (BW*f(S)/F - kv*S); the number of devices cancels. Datasheet peak.
    """
    ratio = _bytes_per_flop(target)
    if ratio is None:
        return None
    model = target.model
    flops = model.flops_per_token + model.head_flops + model.attention_flops_per_context_token * context_tokens
    spare = ratio * flops - target.kv_token_bytes * context_tokens
    return target.step_bytes / spare if spare > 0 else None


def ridge_context(target: Target) -> float | None:
    """S*: the context above which `ridge_batch` has no solution, so that no batch makes decode compute bound.

    f(S)*BW/F = kv*S gives S* = f(0)*BW/F / (kv - f_attn*BW/F); None if attention alone is compute bound.
    """
    ratio = _bytes_per_flop(target)
    if ratio is None:
        return None
    spare = target.kv_token_bytes - target.model.attention_flops_per_context_token * ratio
    return ratio * (target.model.flops_per_token + target.model.head_flops) / spare if spare > 0 else None


def assumptions(target: Target) -> list[str]:
    """What was assumed for want of knowledge, one sentence each, for people who read the bound."""
    said = []
    if target.precision is None and target.model.bytes_per_weight is None:
        said.append(f"precision unknown: {target.model.weight_size(None)} bytes a weight and the largest peak assumed")
    if target.kv_precision is None:
        said.append("KV precision unknown: 1 byte an element assumed")
    peak = strict_peak(target.hardware, target.precision)
    if peak is None:
        said.append(f"no peak FLOP/s known for {target.hardware.name}: no compute bound")
    elif peak.basis != "datasheet":
        said.append(f"compute roof {peak.flops / 1e12:.4g} TFLOP/s a device ({peak.operands}): {peak.basis}")
    if not target.hardware.confirmed:
        said.append(f"the figures of {target.hardware.name} are not confirmed")
    return said


def describe_unknown(*, model_known: bool = False, hardware_known: bool = False) -> str:
    """Why there is no bound, and the options that would give one."""
    what = {
        (False, False): "the model and the hardware",
        (False, True): "the model",
        (True, False): "the hardware",
    }.get((model_known, hardware_known), "more")
    options = ["--model-config"] if hardware_known else ["--hardware", "--devices", "--precision", "--model-config"]
    return f"bound unknown: tell me {what} ({', '.join(options)})"


def _bound(roofs: _Roofs, concurrency: float, reason: str | None) -> Bound:
    candidates: dict[Limiter, float] = {"bandwidth": roofs.bandwidth_tps(concurrency)}
    if roofs.kv_concurrency is not None and roofs.kv_concurrency < concurrency:
        candidates["kv capacity"] = roofs.bandwidth_tps(roofs.kv_concurrency)
    if roofs.compute_tps is not None:
        candidates["compute"] = roofs.compute_tps
    candidates["latency"] = concurrency / roofs.alone_s
    limiter = min(candidates, key=lambda name: candidates[name])
    return Bound(
        concurrency=concurrency,
        output_tps=candidates[limiter],
        limiter=limiter,
        bandwidth_tps=candidates["bandwidth"],
        compute_tps=roofs.compute_tps,
        latency_tps=candidates["latency"],
        kv_concurrency=roofs.kv_concurrency,
        reason=reason,
    )


def _roofs(target: Target, mix: Mix) -> _Roofs:
    prompt = np.asarray(mix.prompt_tokens, dtype=np.float64)
    output = np.asarray(mix.output_tokens, dtype=np.float64)
    cached = np.zeros_like(prompt) if mix.cached_tokens is None else np.asarray(mix.cached_tokens, dtype=np.float64)
    cached = np.clip(cached, 0.0, prompt - 1)  # an engine computes the last prompt token even when all are cached
    steps, n = output - 1, target.replicas
    kv_bytes = target.kv_token_bytes * (steps * (prompt - cached) + steps * (steps - 1) / 2)
    prefill_flops, decode_flops = _flops(target.model, prompt, steps, cached)
    first_s = np.full_like(prompt, n * target.step_bytes / target.bandwidth_bps)
    rest_s = n * (steps * target.step_bytes + kv_bytes) / target.bandwidth_bps
    compute_tps = None
    if target.flops is not None:
        first_s = np.maximum(first_s, n * prefill_flops / target.flops)
        rest_s = np.maximum(rest_s, n * decode_flops / target.flops)
        compute_tps = float(target.flops * output.sum() / (prefill_flops + decode_flops).sum())
    kv_read_bytes = float(kv_bytes.sum() / output.sum())
    return _Roofs(
        step_bytes=n * target.step_bytes,
        bandwidth_bps=target.bandwidth_bps,
        kv_read_bytes=kv_read_bytes,
        compute_tps=compute_tps,
        alone_s=float((first_s + rest_s).sum() / output.sum()),
        kv_concurrency=_kv_concurrency(target, kv_read_bytes),
    )


def _flops(model: ModelShape, prompt: Tokens, steps: Tokens, cached: Tokens) -> tuple[Tokens, Tokens]:
    """FLOPs of prefill and of all decode steps, for each request."""
    pairs = (prompt * (prompt + 1) - cached * (cached + 1)) / 2
    attention = model.attention_flops_per_context_token
    prefill = model.flops_per_token * (prompt - cached) + model.head_flops + attention * pairs
    context = steps * prompt + steps * (steps + 1) / 2
    return prefill, steps * (model.flops_per_token + model.head_flops) + attention * context


def _kv_concurrency(target: Target, kv_read_bytes: float) -> float | None:
    pool = target.kv_pool_bytes
    if pool is None:
        each = capacity.kv_pool_upper_bytes(target.model, target.hardware.mem_bytes, target.devices, target.precision)
        pool = target.replicas * each
    if pool <= 0 or math.isinf(pool) or kv_read_bytes <= 0:
        return None
    return pool / kv_read_bytes


def _misfit(target: Target) -> str | None:
    """A sentence when the weights can't be resident; the bound then still holds, since offloading is slower."""
    need = capacity.weight_bytes(target.model, target.precision)
    have = target.devices * target.hardware.mem_bytes
    if need <= have:
        return None
    return (
        f"the weights of {target.model.name} ({need / 1e9:.4g} GB) don't fit in "
        f"{target.devices} x {target.hardware.name} ({have / 1e9:.4g} GB): wrong devices, precision or model"
    )


def _bytes_per_flop(target: Target) -> float | None:
    peak = datasheet_peak(target.hardware, target.precision)
    return None if peak is None else target.hardware.bandwidth_bps / peak.flops
