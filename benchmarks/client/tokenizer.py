"""A tokenizer of a few hundred whole words, written as plain files, so that no peer needs a model hub."""

from __future__ import annotations

import json
from pathlib import Path

from loadgen.scenario.words import WORDS

SPECIAL = ("<unk>", "<s>", "</s>")
CONTEXT = 131_072
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def write_tokenizer(folder: Path) -> Path:
    """Write a tokenizer that transformers, and all that builds on it, loads from `folder`; one word is one token."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {word: i for i, word in enumerate((*SPECIAL, *WORDS))}
    write(folder / "tokenizer.json", backend(vocabulary))
    write(folder / "tokenizer_config.json", wrapper())
    write(folder / "config.json", model(len(vocabulary)))
    return folder


def backend(vocabulary: dict[str, int]) -> dict[str, object]:
    """The format of the `tokenizers` library."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": text} | flags for i, text in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": SPECIAL[0]},
    }


def wrapper() -> dict[str, object]:
    """What transformers wants to know beside it."""
    unknown, begin, end = SPECIAL
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "chat_template": TEMPLATE,
        "unk_token": unknown,
        "bos_token": begin,
        "eos_token": end,
        "pad_token": end,
        "clean_up_tokenization_spaces": False,
    }


def model(n_words: int) -> dict[str, object]:
    """A model for the tokenizer to belong to; its weights do not exist."""
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": n_words,
        "n_positions": CONTEXT,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def write(path: Path, data: dict[str, object]) -> None:
    """One JSON file."""
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
