"""Owns n-gram speculation (prompt lookup): guesses that the last tokens go on as they did before. No arrays."""

from __future__ import annotations

from collections.abc import Sequence

from engine_adapters.reference.request import Request

MIN_MATCH, MAX_MATCH = 2, 4


def draft(request: Request, num_drafts: int) -> list[int]:
    """The scheduler's Drafter: guesses for what follows a request's tokens."""
    return propose(request.token_ids, num_drafts)


def propose(token_ids: Sequence[int], num_drafts: int) -> list[int]:
    """Up to `num_drafts` tokens that followed the earliest of the longest matches of the last tokens.

    A match is of MIN_MATCH to MAX_MATCH tokens; empty without one. The earliest has the most tokens behind it, which
    matters in a loop: the latest match of a loop of 3 tokens has only 3 to offer.
    """
    end = len(token_ids) - 1
    longest, found = MIN_MATCH - 1, end
    position = MIN_MATCH - 2
    while num_drafts > 0 and longest < MAX_MATCH:
        try:
            position = token_ids.index(token_ids[end], position + 1, end)
        except (ValueError, IndexError):
            break
        length = _match_length(token_ids, position, end)
        if length > longest:
            longest, found = length, position
    return list(token_ids[found + 1 : found + 1 + num_drafts])


def _match_length(token_ids: Sequence[int], position: int, end: int) -> int:
    """How many tokens up to `position` are those up to `end`, MAX_MATCH at most."""
    length = 1
    while length < MAX_MATCH and length <= position and token_ids[position - length] == token_ids[end - length]:
        length += 1
    return length
