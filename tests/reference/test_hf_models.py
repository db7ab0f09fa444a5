"""Models of Hugging Face folders: logits against transformers' (recorded), and what is refused, in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.hf_folder import LLAMA3, MODELS, as_bytes, write_model, write_safetensors
from support.numpy_models import all_logits, folder_executor
from support.transformers_logits import FILE, POSITIONS, TOKEN_IDS

from engine_adapters.reference import tokenizer
from engine_adapters.reference.config import RopeScaling, params_by_group
from engine_adapters.reference.hf_config import ModelError, model_config, read_model_config
from engine_adapters.reference.model_loader import load_model
from engine_adapters.reference.safetensors import Checkpoint
from engine_adapters.reference.weights import load_weights, random_weights

RECORDED = json.loads(FILE.read_text())


@pytest.mark.parametrize("chunks", [[40], [1] * 40, [17, 1, 22]], ids=["at once", "one by one", "chunked"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, chunks: list[int], tmp_path: Path) -> None:
    write_model(tmp_path, MODELS[name])
    ours = all_logits(folder_executor(tmp_path), TOKEN_IDS, chunks)
    assert RECORDED["positions"] == list(POSITIONS)
    assert np.abs(ours[list(POSITIONS)] - np.array(RECORDED["logits"][name])).max() < 1e-4


def test_every_part_that_tells_the_models_apart_moves_the_logits(tmp_path: Path) -> None:
    """The comparison would not notice a part that these weights make unimportant."""
    changes: dict[str, tuple[str, dict[str, Any]]] = {
        "rotary scaling": ("llama-3", {"rope_parameters": {"rope_theta": 500.0}}),
        "query and key norms": ("qwen3", {"architectures": ["LlamaForCausalLM"]}),
        "norm_topk_prob": ("qwen3-moe", {"norm_topk_prob": False}),
        "experts a token": ("qwen3-moe", {"num_experts_per_tok": 1}),
    }
    for part, (name, change) in changes.items():
        write_model(tmp_path / part, MODELS[name])
        (tmp_path / part / "config.json").write_text(json.dumps({**MODELS[name], **change}))
        ours = all_logits(folder_executor(tmp_path / part), TOKEN_IDS, [40])[list(POSITIONS)]
        assert np.abs(ours - np.array(RECORDED["logits"][name])).max() > 0.05, part


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_counted_as_the_checkpoint_holds_them(name: str, tmp_path: Path) -> None:
    made = write_model(tmp_path, MODELS[name])
    assert sum(params_by_group(read_model_config(tmp_path)).values()) == sum(array.size for array in made.values())


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_without_weights_gives_random_ones_of_the_same_shapes(name: str, tmp_path: Path) -> None:
    write_model(tmp_path, MODELS[name])
    model = read_model_config(tmp_path)
    made, loaded = random_weights(model, 0), load_weights(model, tmp_path)
    for field in ("attn_norm", "qkv", "o", "mlp_norm", "gate_up", "down", "q_norm", "k_norm", "router"):
        ours, theirs = getattr(made.layers[0], field), getattr(loaded.layers[0], field)
        assert (ours is None) == (theirs is None)
        assert ours is None or (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    assert made.head.shape == loaded.head.shape


@pytest.mark.parametrize(("dtype", "n_shards"), [("F32", 3), ("BF16", 1), ("BF16", 4), ("F16", 2)])
def test_safetensors_are_read_in_every_float_type_and_in_shards(dtype: str, n_shards: int, tmp_path: Path) -> None:
    made = write_model(tmp_path, MODELS["llama"], dtype=dtype, n_shards=n_shards)
    checkpoint = Checkpoint(tmp_path)
    for name, array in made.items():
        got = checkpoint.read(name, *array.shape)
        assert got.dtype == np.float32
        assert as_bytes(got, dtype) == as_bytes(array, dtype)
        assert np.abs(got - array).max() <= {"F32": 0.0, "BF16": 2**-7, "F16": 2**-10}[dtype] * np.abs(array).max()


def test_both_spellings_of_rotary_scaling_are_read() -> None:
    scaling = RopeScaling(8.0, 1.0, 4.0, 24)
    old = {k: v for k, v in LLAMA3.items() if k != "rope_theta"}
    for how in ({"rope_parameters": LLAMA3}, {"rope_parameters": None, "rope_scaling": old, "rope_theta": 500.0}):
        model = model_config({**MODELS["llama"], **how}, "m")
        assert (model.rope_theta, model.rope_scaling) == (500.0, scaling)


def test_end_tokens_come_from_the_generation_config_first(tmp_path: Path) -> None:
    write_model(tmp_path, {**MODELS["llama"], "eos_token_id": 2})
    assert read_model_config(tmp_path).eos_token_ids == (2,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 7]}')
    assert read_model_config(tmp_path).eos_token_ids == (5, 7)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "GemmaForCausalLM; known are Llama"),
        ({"architectures": None}, "not given"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"quantization_config": {"quant_method": "awq"}}, "only float weights"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "'yarn' is not supported"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 4.0}}, "incomplete: 'low_freq_factor'"),
        ({"hidden_size": 0}, "hidden_size must be a positive whole number, not 0"),
        ({"vocab_size": "48"}, "vocab_size must be"),
        ({"num_key_value_heads": 3}, "don't fit together"),
        ({"rms_norm_eps": "small"}, "could not convert"),
    ],
)
def test_a_model_that_would_be_computed_wrongly_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**MODELS["llama"], **change}))
    with pytest.raises(ModelError) as refusal:
        load_model(str(tmp_path))
    assert str(refusal.value).startswith(f"{tmp_path / 'config.json'}: ")
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def _not_safetensors(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")


def _header_only(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"[]")


def _int8(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"dtype": "F32"', b'"dtype": "I32"'))


def _one_tensor(folder: Path) -> None:
    write_safetensors(folder / "model.safetensors", {"model.norm.weight": np.ones(32, np.float32)})


def _other_shape(folder: Path) -> None:
    write_safetensors(folder / "model.safetensors", {"model.embed_tokens.weight": np.ones((48, 33), np.float32)})


def _missing_shard(folder: Path) -> None:
    write_model(folder, MODELS["llama"], n_shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()


def _shard_elsewhere(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../model.safetensors"}}')


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_cut, "cut short?"),
        (_not_safetensors, "not a safetensors file"),
        (_header_only, "not a safetensors file"),
        (_int8, "is I32; known are F32"),
        (_one_tensor, "no tensor model.embed_tokens.weight"),
        (_other_shape, "is [48, 33], and config.json asks for [48, 32]"),
        (_missing_shard, "model-00002-of-00002.safetensors: No such file"),
        (_shard_elsewhere, "outside of the folder"),
    ],
)
def test_damaged_weights_are_one_line_that_names_the_file(damage: Any, said: str, tmp_path: Path) -> None:
    write_model(tmp_path, MODELS["llama"])
    model = read_model_config(tmp_path)
    damage(tmp_path)
    with pytest.raises(ModelError) as refusal:
        load_weights(model, tmp_path)
    assert said in str(refusal.value)
    assert str(tmp_path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_folder_is_loaded_by_its_path_and_called_as_the_folder_is(tmp_path: Path) -> None:
    write_model(tmp_path / "my-model", {**MODELS["qwen3"], "vocab_size": 300})
    loaded = load_model(str(tmp_path / "my-model"))
    assert loaded.config.name == "my-model"
    assert loaded.tokenizer is tokenizer.BYTES
    assert load_model("tiny").config.name == "tiny"


@pytest.mark.parametrize(
    ("name", "said"), [("nosuch", "no model 'nosuch': known are tiny, small"), ("", "too few for the byte-level")]
)
def test_a_model_that_is_not_there_is_said_so(name: str, said: str, tmp_path: Path) -> None:
    write_model(tmp_path, MODELS["qwen3"])
    with pytest.raises(ModelError, match=said):
        load_model(name or str(tmp_path))
