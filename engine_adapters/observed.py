"""What the events of one answer were, one by one: which brought tokens, which the counts, which the end. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from engine_adapters.base import StreamOutcome
from engine_adapters.dialect import Dialect
from engine_adapters.ndjson import WholeParser
from engine_adapters.sse import FramingError
from engine_adapters.stream import Answer

Kind = Literal[
    "content",
    "reasoning",
    "tool call or further choice",
    "role, no token",
    "counts, no token",
    "finish reason, no token",
    "end mark",
    "error",
    "no token",
]
BRINGS_TOKENS: tuple[Kind, ...] = ("content", "reasoning", "tool call or further choice")


@dataclass(frozen=True, slots=True)
class Event:
    """One event: what it was, the instant of the read that completed it, and whether it held the server's counts."""

    kind: Kind
    at_ns: int
    has_usage: bool


def events_of(dialect: Dialect, reads: Iterable[tuple[int, bytes]], *, whole: bool = False) -> list[Event]:
    """The events in (instant, bytes) of an answer's body, by the API's own reading of each."""
    parser = WholeParser() if whole or not dialect.streams else dialect.parser()
    answer, found, at_ns = Answer(StreamOutcome()), list[Event](), 0
    try:
        for at_ns, chunk in reads:
            found += [_event(dialect, answer, payload, at_ns) for payload in parser.feed(chunk)]
        found += [_event(dialect, answer, payload, at_ns) for payload in parser.finish()]
    except FramingError:
        pass  # the outcome of the same reads says so
    return found


def _event(dialect: Dialect, answer: Answer, payload: bytes, at_ns: int) -> Event:
    """`answer` goes from event to event: some servers repeat what they have said."""
    outcome = answer.outcome = StreamOutcome()
    answer.n_events, answer.answered = 0, False
    n_text, n_finished = len(answer.text), answer.n_finished
    dialect.take(answer, payload)
    has_usage = outcome.completion_tokens is not None or outcome.prompt_tokens is not None
    return Event(_kind(answer, payload, any(answer.text[n_text:]), answer.n_finished > n_finished), at_ns, has_usage)


def _kind(answer: Answer, payload: bytes, spoke: bool, finished: bool) -> Kind:
    outcome = answer.outcome
    if outcome.error_class is not None:
        return "error"
    if answer.n_events:
        return "content" if spoke else "tool call or further choice" if answer.answered else "reasoning"
    if finished:
        return "finish reason, no token"
    if outcome.completion_tokens is not None:
        return "counts, no token"
    if payload.strip() == b"[DONE]" or answer.done:
        return "end mark"
    return "role, no token" if _has_role(payload) else "no token"


def _has_role(payload: bytes) -> bool:
    """Whether an event says whose turn it is: `choices[].delta.role`, or Anthropic's `message.role`."""
    try:
        event = json.loads(payload)
    except ValueError:
        return False
    return any("role" in part for part in _speakers(event) if isinstance(part, dict))


def _speakers(event: Any) -> list[Any]:
    if not isinstance(event, dict):
        return []
    choices = event.get("choices")
    return [event.get("message"), *(choice.get("delta") for choice in choices or () if isinstance(choice, dict))]
