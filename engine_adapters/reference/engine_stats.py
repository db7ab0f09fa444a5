"""What happened in the engine, step by step and request by request: the histograms and counters behind GET /metrics.

No clock: instants are those that the engine stamps. The engine's thread writes, the server's reads, so two samples of
one scrape may be a step apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from engine_adapters.reference.engine import EngineCore
from engine_adapters.reference.prometheus import Histogram
from engine_adapters.reference.request import Request, TokenOutput

# vLLM's bucket bounds.
TTFT_S: tuple[float, ...] = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20)
TTFT_S += (40, 80, 160, 640, 2560)
ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
LATENCY_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
STEP_TOKENS = (1, *(2**i for i in range(3, 15)))
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)

RATE_MEMORY_S = 1.0  # the live rates forget what lies a few times this much computing time back


def request_tokens_bounds(max_model_len: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 and so on up to `max_model_len`, as vLLM has them."""
    bounds = (mantissa * 10**exponent for exponent in range(12) for mantissa in (1, 2, 5))
    return [bound for bound in bounds if bound <= max_model_len]


@dataclass(slots=True)
class LiveRate:
    """Bytes/s and FLOP/s over recent steps; what was computed RATE_MEMORY_S ago counts 1/e of what is computed now."""

    n_bytes: float = 0.0
    flops: float = 0.0
    busy_s: float = 0.0

    def add(self, n_bytes: float, flops: float, took_s: float) -> None:
        """One more step."""
        fade = math.exp(-took_s / RATE_MEMORY_S)
        self.n_bytes = self.n_bytes * fade + n_bytes
        self.flops = self.flops * fade + flops
        self.busy_s = self.busy_s * fade + took_s

    @property
    def bytes_per_s(self) -> float:
        """Bytes that steps must read, over the time that they took."""
        return self.n_bytes / self.busy_s if self.busy_s > 0.0 else 0.0

    @property
    def flops_per_s(self) -> float:
        """FLOPs that steps must compute, over the time that they took."""
        return self.flops / self.busy_s if self.busy_s > 0.0 else 0.0


class EngineStats:
    """Histograms over steps, tokens and requests, and the live rates. It is the `observe` of an EngineCore."""

    def __init__(self, core: EngineCore) -> None:
        lengths = request_tokens_bounds(core.config.max_model_len)
        self.ttft = Histogram(TTFT_S)
        self.itl = Histogram(ITL_S)
        self.step_tokens = Histogram(STEP_TOKENS)
        self.by_request = {name: Histogram(bounds or lengths) for name, bounds, _ in REQUEST_FAMILIES}
        self.live = LiveRate()
        self._core = core
        self._before = replace(core.totals)
        self._last_token_at_s: dict[str, float] = {}
        core.observe = self.observe

    def observe(self, outputs: Sequence[TokenOutput], at_s: float) -> None:
        """A step ended and brought these outputs, or a request was aborted."""
        self._step()
        for output in outputs:
            if output.token_ids:
                self._tokens(output.request, at_s)
            if output.finish_reason is not None:
                self._last_token_at_s.pop(output.request_id, None)
                self._ended(output.request)

    def _step(self) -> None:
        before, now = self._before, self._core.totals
        if now.n_steps == before.n_steps:
            return
        self.step_tokens.observe(now.n_tokens - before.n_tokens)
        self.live.add(now.n_bytes - before.n_bytes, now.flops - before.flops, now.busy_s - before.busy_s)
        self._before = replace(now)

    def _tokens(self, request: Request, at_s: float) -> None:
        """The first output counts for TTFT; a later one is one ITL, as in vLLM, however many tokens it brings."""
        last_at_s = self._last_token_at_s.get(request.request_id)
        self._last_token_at_s[request.request_id] = at_s
        if last_at_s is not None:
            self.itl.observe(at_s - last_at_s)
        elif request.arrived_at_s is not None:
            self.ttft.observe(at_s - request.arrived_at_s)

    def _ended(self, request: Request) -> None:
        """A phase that the request never reached is not observed."""
        for name, value in _observations(request):
            if value is not None:
                self.by_request[name].observe(value)


def _observations(request: Request) -> Iterable[tuple[str, float | None]]:
    queued, started = request.arrived_at_s, request.first_scheduled_at_s
    first, ended, n_output = request.first_token_at_s, request.finished_at_s, request.num_output_tokens
    decode = _between(first, ended)
    yield "request_prompt_tokens", len(request.prompt_token_ids)
    yield "request_generation_tokens", n_output
    yield "request_max_num_generation_tokens", n_output
    yield "request_params_max_tokens", request.max_tokens
    yield "e2e_request_latency_seconds", _between(queued, ended)
    yield "request_queue_time_seconds", _between(queued, started)
    yield "request_inference_time_seconds", _between(started, ended)
    yield "request_prefill_time_seconds", _between(started, first)
    yield "request_decode_time_seconds", decode
    yield "request_time_per_output_token_seconds", None if decode is None else decode / max(n_output - 1, 1)
    yield "request_num_preemptions", request.num_preemptions
    yield "request_prefill_kv_computed_tokens", len(request.prompt_token_ids) - request.num_cached_tokens


def _between(begin_s: float | None, end_s: float | None) -> float | None:
    return None if begin_s is None or end_s is None else end_s - begin_s


# Name, bounds (None: request lengths) and text of what is observed once a request.
REQUEST_FAMILIES: tuple[tuple[str, tuple[float, ...] | None, str], ...] = (
    ("request_prompt_tokens", None, "Prompt tokens of a request."),
    ("request_generation_tokens", None, "Output tokens of a request."),
    ("request_max_num_generation_tokens", None, "Output tokens of the longest choice of a request."),
    ("request_params_max_tokens", None, "The parameter max_tokens of a request."),
    ("e2e_request_latency_seconds", LATENCY_S, "From arrival to the last token."),
    ("request_queue_time_seconds", LATENCY_S, "From arrival to the first step that computes the request."),
    ("request_inference_time_seconds", LATENCY_S, "From the first step to the last token."),
    ("request_prefill_time_seconds", LATENCY_S, "From the first step to the first token."),
    ("request_decode_time_seconds", LATENCY_S, "From the first token to the last."),
    ("request_time_per_output_token_seconds", ITL_S, "Decode time over output tokens after the first."),
    ("request_num_preemptions", PREEMPTIONS, "How often a request was preempted."),
    ("request_prefill_kv_computed_tokens", None, "Prompt tokens computed, not found in the prefix cache."),
)
