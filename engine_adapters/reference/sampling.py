"""Owns drawing tokens from logits: greedy, or temperature with top-k and top-p, and their log-probabilities.

A draw depends on the request's seed and on how many tokens it has so far, on nothing else: the same request draws the
same tokens whatever shares its steps, after a preemption, and with or without speculation.
"""

from __future__ import annotations

import zlib

import numpy as np

from engine_adapters.reference.request import Logprobs, Request, SamplingParams
from engine_adapters.reference.safetensors import Array


def draw(logits: Array, request: Request, num_output_tokens: int) -> int:
    """The token after `num_output_tokens` of a request's answer, from `logits` [vocab]; -inf is never drawn."""
    params = request.sampling
    if params.temperature <= 0.0:
        return int(logits.argmax())
    candidates, chances = candidate_tokens(logits, params)
    uniform = np.random.Generator(np.random.Philox(key=seed_of(request), counter=num_output_tokens)).random()
    return int(candidates[min(int(np.searchsorted(np.cumsum(chances), uniform, "right")), len(candidates) - 1)])


def seed_of(request: Request) -> int:
    """The request's seed; where it gives none, one made of its id, so that no two requests share it."""
    seed = request.sampling.seed
    return zlib.crc32(request.request_id.encode()) if seed is None else seed % 2**64


def candidate_tokens(logits: Array, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that may be drawn, likeliest first, and their chances, which sum to 1.

    First top_k: that many of the likeliest. Then top_p: of those the fewest whose chances reach it (at least one).
    """
    k = min(params.top_k, len(logits)) if params.top_k > 0 else len(logits)
    best = np.argpartition(-logits, k - 1)[:k]
    best = best[np.argsort(-logits[best], kind="stable")]
    scaled = (logits[best] - logits[best[0]]).astype(np.float64) / params.temperature
    chances = np.exp(scaled)
    chances /= chances.sum()
    if params.top_p < 1.0:
        n_kept = int(np.searchsorted(np.cumsum(chances), params.top_p)) + 1
        best, chances = best[:n_kept], chances[:n_kept] / chances[:n_kept].sum()
    return best, chances


def logprobs_of(logits: Array, token_id: int, n_top: int) -> Logprobs:
    """Log-probabilities under `logits` as the model gave them: before temperature, top_k and top_p, as in vLLM."""
    shifted = logits.astype(np.float64) - logits.max()
    log_sum = np.log(np.exp(shifted).sum())
    best = np.argsort(-shifted, kind="stable")[:n_top]
    top = [(int(i), float(shifted[i] - log_sum)) for i in best]
    return Logprobs(token_id, float(shifted[token_id] - log_sum), top)
