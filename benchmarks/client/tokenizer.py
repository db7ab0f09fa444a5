"""A small tokenizer, written as plain files, so that no peer needs a model hub: common words are one token each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from loadgen.scenario.words import WORDS

SPECIAL = ("<unk>", "<s>", "</s>")
CONTEXT = 131_072
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
SPACE, NEWLINE = "\u0120", "\u010a"  # as byte-level tokenizers write them
LETTERS = [chr(code) for code in range(0x21, 0x7F)]
SERVERS = ("the",)  # what the mock server says


def write_tokenizer(folder: Path) -> Path:
    """Write a tokenizer that transformers, and all that builds on it, loads from `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    merges = list(merges_of(sorted({*WORDS, *SERVERS})))
    tokens = (*SPECIAL, SPACE, NEWLINE, *LETTERS, *(left + right for left, right in merges))
    vocabulary = {text: i for i, text in enumerate(tokens)}
    write(folder / "tokenizer.json", backend(vocabulary, merges))
    write(folder / "tokenizer_config.json", wrapper())
    write(folder / "config.json", model(len(vocabulary)))
    return folder


def merges_of(words: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Pairs that build each word letter by letter from the space before it; another word stays letters."""
    pairs: dict[tuple[str, str], None] = {}
    for word in words:
        for n in range(len(word)):
            pairs[SPACE + word[:n], word[n]] = None
    return pairs


def backend(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> dict[str, object]:
    """The format of the `tokenizers` library: byte-level BPE."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    bytes_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": text} | flags for i, text in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": bytes_level,
        "post_processor": None,
        "decoder": bytes_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges, "unk_token": SPECIAL[0], "fuse_unk": False},
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
