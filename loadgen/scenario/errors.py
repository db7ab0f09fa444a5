"""The one exception that a bad scenario ends in, and the search for the key that was meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ScenarioError(Exception):
    """What is wrong with a scenario or its data set, ready to print: one problem a line, each with its place."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like `word`, or None when nothing is near."""
    matches = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or the list of what is known when nothing is near."""
    names = list(known)
    near = nearest(word, names)
    return f"; did you mean '{near}'?" if near else f"; known: {', '.join(names)}"
