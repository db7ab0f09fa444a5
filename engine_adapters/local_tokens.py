"""Counting text with a local `tokenizer.json`, for servers that count nothing themselves."""

from __future__ import annotations

from pathlib import Path

from engine_adapters.base import PreflightError
from engine_adapters.stream import CountTokens


def load_counter(path: Path) -> CountTokens:
    """Text -> tokens, special tokens not added; `path` is a tokenizer.json or the folder of one.

    Raises PreflightError, one line for the user, when the file or the package `tokenizers` is missing or broken.
    Nothing is ever downloaded.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise PreflightError(f"--tokenizer {path}: no such file; it takes a tokenizer.json or a folder with one")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise PreflightError("--tokenizer needs the package tokenizers: pip install 'openloop[tokenizers]'") from None
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise PreflightError(f"--tokenizer {file}: not a tokenizer.json ({error})") from None

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids) if text else 0

    return count
