"""Prompt text of a wanted token count, without a tokenizer: the server's own usage says what a unit of text costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from loadgen.scenario.schedule import PlannedRequest
from loadgen.scenario.streams import stream
from loadgen.scenario.words import WORDS

_WORDS = np.array(WORDS, dtype=object)
_SHORTEST = min(map(len, WORDS)) + 1  # with the space behind it
_N_UNIQUE = 4  # words that number the request: len(WORDS)^4 combinations
_SCATTER = 2_654_435_761
_INDEX_BITS = 24  # of the request's number; the load point has the bits above


@dataclass(frozen=True, slots=True)
class TextUnit:
    """What prompts are measured in: n units cost n x tokens_per_unit + overhead_tokens (chat template, BOS)."""

    kind: Literal["word", "char"]
    tokens_per_unit: float
    overhead_tokens: float


def unit_probes(share: float = 1.0) -> tuple[str, str, str]:
    """Three texts from which `fit_text_unit` learns: half of the word list, the other half, and both.

    Every word stands in the third exactly once, as often as prompts draw it, so that its mean is the list's own and no
    sample. `share` takes less of the list, for a server with a short context.
    """
    words = WORDS[: max(2, round(share * len(WORDS)))]
    first, second = " ".join(words[0::2]), " ".join(words[1::2])
    return first, second, f"{first} {second}"


def fit_text_unit(samples: Sequence[tuple[int, int, int]]) -> TextUnit:
    """The unit that explains the answers to `unit_probes`, given as (n_words, n_chars, prompt_tokens from usage).

    Tokens = characters + a constant means a byte-level tokenizer: prompts are then cut to the character and their
    counts are exact. Otherwise words: what the two halves cost above the whole is the template that was paid twice.
    ValueError when a probe has no count, or when the tokens do not grow with the words.
    """
    if len(samples) != 3:
        raise ValueError("the server reported no prompt_tokens for some of three lengths")
    overheads = {tokens - chars for _, chars, tokens in samples}
    if len(overheads) == 1 and min(overheads) >= 0:
        return TextUnit("char", 1.0, float(min(overheads)))
    (_, _, first), (_, _, second), (n_words, _, both) = samples
    overhead = max(0, first + second - both)
    per_word = (both - overhead) / n_words
    if per_word < 0.01:  # a server that reports a constant, or nothing but the template
        raise ValueError("the server's prompt_tokens do not grow with the prompt")
    return TextUnit("word", per_word, float(overhead))


def probe_prompt(n_words: int, salt: str) -> str:
    """A text of `n_words` words outside any schedule; another salt gives another text."""
    return _words(n_words, 0, "probe", salt, n_words)


def render_prompt(planned: PlannedRequest, unit: TextUnit, seed: int, point: int, salt: str) -> str:
    """The text of one request: its group's shared prefix, then words that no other request starts with, then words.

    The units of the text are the whole number nearest to (prompt_tokens - overhead) / tokens_per_unit: exact for
    characters, at least one. The prefix depends on (seed, group, salt), the rest on (seed, point, index, salt). `salt`
    is one text a run: with another one the same schedule sends other words, so that a live server's prefix cache does
    not know them. A data set's text is returned as it is.
    """
    if planned.text is not None:
        return planned.text
    n_units = max(1, round((planned.prompt_tokens - unit.overhead_tokens) / unit.tokens_per_unit))
    n_prefix = 0
    if planned.prefix_group is not None:
        n_prefix = min(round(planned.prefix_tokens / unit.tokens_per_unit), max(0, n_units - _N_UNIQUE))
    render = _RENDERERS[unit.kind]
    prefix = _prefix(unit.kind, n_prefix, seed, salt, planned.prefix_group or 0)
    own = render(n_units - n_prefix, seed, "content", salt, point, planned.index)
    return prefix + (" " if prefix and unit.kind == "word" else "") + own


@lru_cache(maxsize=256)
def _prefix(kind: Literal["word", "char"], n: int, seed: int, salt: str, group: int) -> str:
    return _RENDERERS[kind](n, seed, "prefix", salt, group)


def _words(n: int, seed: int, name: str, salt: str, *keys: int) -> str:
    rng = stream(seed, name, salt, *keys)
    chosen = rng.integers(0, len(WORDS), n, dtype=np.uint16)
    if name == "content":
        head = _unique_digits(salt, *keys)[:n]
        chosen[: len(head)] = head
    return " ".join(_WORDS[chosen])


def _chars(n: int, seed: int, name: str, salt: str, *keys: int) -> str:
    text = _words(n // _SHORTEST + 1, seed, name, salt, *keys)[:n]
    # A template may strip the prompt: a blank at the end would be a token less.
    return text[:-1] + "s" if text.endswith(" ") else text


def _unique_digits(salt: str, point: int, index: int) -> list[int]:
    """The request's number in base len(WORDS), lowest digit first, each digit shifted by the run's salt.

    Two requests of a run differ in at least one of the four words, neighbours already in the first.
    """
    # Multiplying by a number without a common factor is a permutation: still unique, and all four words vary, where
    # counting up would leave three of them alike in every prompt and bias the prompts' token count.
    number = ((point << _INDEX_BITS) | index) * _SCATTER % len(WORDS) ** _N_UNIQUE
    digits = []
    for shift in _shifts(salt):
        number, digit = divmod(number, len(WORDS))
        digits.append((digit + shift) % len(WORDS))
    return digits


@lru_cache(maxsize=4)
def _shifts(salt: str) -> list[int]:
    shifts: list[int] = stream(0, "unique", salt).integers(0, len(WORDS), _N_UNIQUE).tolist()
    return shifts


_RENDERERS = {"word": _words, "char": _chars}
