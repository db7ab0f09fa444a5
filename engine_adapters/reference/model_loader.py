"""Owns turning what a user names (a preset, or a folder with a config.json) into a model that can be served."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from engine_adapters.reference import tokenizer
from engine_adapters.reference.config import MODELS, ModelConfig
from engine_adapters.reference.hf_config import ModelError, read_model_config
from engine_adapters.reference.hf_tokenizer import load_tokenizer
from engine_adapters.reference.tokenizer import Tokenizer
from engine_adapters.reference.weights import Weights, load_weights, random_weights


class LoadedModel(NamedTuple):
    """What an executor and a server need of a model."""

    config: ModelConfig
    weights: Weights
    tokenizer: Tokenizer


def load_model(name: str, seed: int = 0) -> LoadedModel:
    """A preset, or the model in a folder; raises ModelError, one line for the user.

    A folder without weights gets random ones from `seed`, and one without a tokenizer.json the byte-level tokenizer,
    so that a config.json alone gives a model of that shape.
    """
    if name in MODELS:
        return LoadedModel(MODELS[name], random_weights(MODELS[name], seed), tokenizer.BYTES)
    folder = Path(name)
    if not folder.is_dir():
        raise ModelError(f"no model {name!r}: known are {', '.join(MODELS)}, or the folder of a config.json")
    config = read_model_config(folder)
    text = _tokenizer(config, folder / "tokenizer.json")
    has_weights = any(folder.glob("*.safetensors*"))
    return LoadedModel(config, load_weights(config, folder) if has_weights else random_weights(config, seed), text)


def _tokenizer(config: ModelConfig, path: Path) -> Tokenizer:
    if path.exists():
        return load_tokenizer(path, config.vocab_size, config.eos_token_ids or ())
    if config.vocab_size < tokenizer.FIRST_TEXT_ID:
        raise ModelError(f"{path} is missing, and {config.vocab_size} tokens are too few for the byte-level tokenizer")
    return tokenizer.BYTES
