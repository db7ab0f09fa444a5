"""Short ways to run the numpy executor in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_adapters.reference.config import EngineConfig
from engine_adapters.reference.executors.numpy import NumpyExecutor
from engine_adapters.reference.request import Request
from engine_adapters.reference.scheduler import ScheduledRequest
from engine_adapters.reference.tokenizer import ByteTokenizer


class AnyToken(ByteTokenizer):
    """Every token may be emitted; none ends an answer."""

    eos_token_ids: frozenset[int] = frozenset()

    def is_visible(self, token_id: int) -> bool:  # type: ignore[override]
        return True


def folder_executor(folder: Path, **more: Any) -> NumpyExecutor:
    """The executor of a model folder whose vocabulary is too small for the byte-level tokenizer."""
    from engine_adapters.reference.hf_config import read_model_config
    from engine_adapters.reference.weights import load_weights

    model = read_model_config(folder)
    return NumpyExecutor(model, EngineConfig(max_model_len=256), load_weights(model, folder), AnyToken(), **more)


def all_logits(executor: NumpyExecutor, token_ids: list[int], chunks: list[int]) -> NDArray[np.float32]:
    """[positions, vocab] of one sequence computed in `chunks`: every token but a chunk's first counts as a draft."""
    request = Request("0", list(token_ids), 1)
    request.block_ids = list(range(5, 5 + -(-len(token_ids) // executor.block_size)))
    rows = []
    for size in chunks:
        first = request.num_computed_tokens
        known, drafts = token_ids[: first + 1], token_ids[first + 1 : first + size]
        request.token_ids = list(known)
        rows.append(executor.logits(executor.prepare([ScheduledRequest(request, size, True, drafts)])))
        request.num_computed_tokens += size
    return np.concatenate(rows)
