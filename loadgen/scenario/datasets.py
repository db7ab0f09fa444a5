"""Prompts from a user's JSONL or CSV file, and what happens when there are fewer than the run needs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from loadgen.scenario.errors import ScenarioError, did_you_mean

WhenShort = Literal["error", "repeat", "stop"]
_MAX_CSV_FIELD = 2**31 - 1  # the csv module's own limit of 131,072 characters is one long prompt


@dataclass(frozen=True, slots=True)
class Dataset:
    """The usable prompts of a file, in its order. `sha256` is of the file's bytes."""

    path: str
    prompts: tuple[str, ...]
    n_empty: int  # rows left out because the prompt was empty
    n_too_long: int  # rows left out because they exceeded max_prompt_tokens
    sha256: str


def estimate_tokens(text: str) -> int:
    """Tokens of a text without its tokenizer: its whitespace-separated words.

    English runs at about 1.3 BPE tokens a word, so this errs low; the records carry the server's own count.
    """
    return len(text.split())


def load_dataset(path: str, field: str = "prompt", max_prompt_tokens: int | None = None) -> Dataset:
    """Read the prompts of `path` (.jsonl, .ndjson or .csv; UTF-8, a byte order mark is fine).

    Blank lines are skipped; empty prompts and, by `estimate_tokens`, those above `max_prompt_tokens` are left out and
    counted. ScenarioError names file and line.
    """
    readers = {".jsonl": _jsonl_prompts, ".ndjson": _jsonl_prompts, ".csv": _csv_prompts}
    reader = readers.get(Path(path).suffix.lower())
    if reader is None:
        raise ScenarioError(f"{path}: unknown kind of data set; name it .jsonl or .csv")
    raw = _read(path)
    texts = [_checked(text, path, line) for line, text in reader(_decode(raw, path), path, field)]
    filled = [text for text in texts if text.strip()]
    usable = [text for text in filled if max_prompt_tokens is None or estimate_tokens(text) <= max_prompt_tokens]
    return Dataset(path, tuple(usable), len(texts) - len(filled), len(filled) - len(usable), sha256(raw).hexdigest())


def take(dataset: Dataset, n_wanted: int, when_short: WhenShort) -> list[tuple[str, bool]]:
    """The prompts of `n_wanted` requests as (text, is a repeat), fewer only under the policy `stop`.

    Policies when the file has too few usable prompts: `error` raises ScenarioError with both numbers, `repeat` starts
    again from the top and marks the repeats, `stop` ends early.
    """
    n_usable = len(dataset.prompts)
    if n_usable == 0:
        raise ScenarioError(f"{dataset.path}: no usable prompt{_left_out(dataset)}")
    if n_usable < n_wanted and when_short == "error":
        raise ScenarioError(
            f"{dataset.path}: {n_usable} usable prompts for {n_wanted} requests{_left_out(dataset)}; "
            "shorten the run, or set when_short to repeat or stop"
        )
    n_sent = min(n_wanted, n_usable) if when_short == "stop" else n_wanted
    return [(dataset.prompts[i % n_usable], i >= n_usable) for i in range(n_sent)]


def _left_out(dataset: Dataset) -> str:
    if not dataset.n_empty and not dataset.n_too_long:
        return ""
    return f" ({dataset.n_empty} empty and {dataset.n_too_long} too long were left out)"


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ScenarioError(f"{path}: cannot read the data set: {error.strerror or error}") from None


def _decode(raw: bytes, path: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ScenarioError(f"{path}:{line}: not UTF-8 (byte 0x{raw[error.start]:02x})") from None


def _checked(text: object, path: str, line: int) -> str:
    if not isinstance(text, str):
        raise ScenarioError(f"{path}:{line}: the prompt is not a text but {type(text).__name__}")
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise ScenarioError(f"{path}:{line}: half a surrogate pair: the prompt is not valid Unicode")
    return text


def _jsonl_prompts(text: str, path: str, field: str) -> Iterator[tuple[int, object]]:
    # Not splitlines(): it also splits at U+2028 and form feeds, which are legal inside a JSON string.
    for line, content in enumerate(text.split("\n"), start=1):
        if content.strip():
            yield line, _json_field(content, path, line, field)


def _json_field(content: str, path: str, line: int, field: str) -> object:
    try:
        row = json.loads(content)
    except ValueError as error:
        raise ScenarioError(f"{path}:{line}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ScenarioError(f"{path}:{line}: not a JSON object")
    if field not in row:
        raise ScenarioError(f"{path}:{line}: no field '{field}'{did_you_mean(field, row)}")
    return row[field]


def _csv_prompts(text: str, path: str, field: str) -> Iterator[tuple[int, object]]:
    old_limit = csv.field_size_limit(_MAX_CSV_FIELD)
    try:
        rows = list(_csv_rows(text, path))
    finally:
        csv.field_size_limit(old_limit)
    if not rows:
        return
    header = rows[0][1]
    if field not in header:
        raise ScenarioError(f"{path}:{rows[0][0]}: no column '{field}'{did_you_mean(field, header)}")
    for line, cells in rows[1:]:
        if len(cells) != len(header):
            problem = f"{len(cells)} cells under a header of {len(header)} (a comma in a prompt needs quotes)"
            raise ScenarioError(f"{path}:{line}: {problem}")
        yield line, cells[header.index(field)]


def _csv_rows(text: str, path: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ScenarioError(f"{path}:{line}: not CSV: {error}") from None
        if cells:
            yield line, cells
        line = reader.line_num + 1
