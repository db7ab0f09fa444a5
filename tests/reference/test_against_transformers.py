"""The numpy executor against transformers itself, at every position; needs openloop[reference-tests]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.hf_folder import LLAMA3, MODELS, write_model
from support.numpy_models import all_logits, folder_executor
from support.transformers_logits import TOKEN_IDS, logits

pytest.importorskip("torch", reason="compared where openloop[reference-tests] is installed")
pytest.importorskip("transformers", reason="compared where openloop[reference-tests] is installed")

LARGER = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "vocab_size": 48, "head_dim": 32}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as recorded": ({}, {}),
    "larger": (LARGER, {}),
    "one key head": ({"num_key_value_heads": 1}, {}),
    "a key head each": ({"num_key_value_heads": 4}, {}),
    "other rotary base": ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, {}),
    "llama3 scaling": ({"rope_parameters": LLAMA3}, {}),
    "bfloat16, in shards": ({}, {"dtype": "BF16", "n_shards": 3}),
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_agree_with_transformers_to_1e_4(name: str, variant: str, tmp_path: Path) -> None:
    change, how = VARIANTS[variant]
    write_model(tmp_path, {**MODELS[name], **change}, seed=1, **how)
    theirs = logits(tmp_path, TOKEN_IDS)
    ours = all_logits(folder_executor(tmp_path), TOKEN_IDS, [40])
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < 1e-4


@pytest.mark.parametrize("norm", [True, False])
def test_experts_are_weighted_as_transformers_does(norm: bool, tmp_path: Path) -> None:
    write_model(tmp_path, {**MODELS["qwen3-moe"], "norm_topk_prob": norm, "num_experts_per_tok": 3})
    ours = all_logits(folder_executor(tmp_path), TOKEN_IDS, [40])
    assert np.abs(ours - logits(tmp_path, TOKEN_IDS)).max() < 1e-4


def test_fp8_codes_are_those_of_torch() -> None:
    import torch

    from engine_adapters.reference.executors.numpy_kv import FP8_VALUES, fp8_encode

    values = np.random.default_rng(0).standard_normal(200_000, dtype=np.float32) * np.float32(3.0)
    values = np.concatenate([values, values * np.float32(1e-3), FP8_VALUES[np.isfinite(FP8_VALUES)]])
    theirs = torch.from_numpy(values).to(torch.float8_e4m3fn)
    assert np.array_equal(fp8_encode(values), theirs.view(torch.uint8).numpy())
