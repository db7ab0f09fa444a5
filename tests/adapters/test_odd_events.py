"""No event, of whatever shape, brings a reader down: it counts for something or for nothing, or it is a failure."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.streams import read_answer

import engine_adapters
from engine_adapters.apis import DIALECTS
from engine_adapters.base import StreamOutcome
from engine_adapters.ndjson import NDJSONParser
from engine_adapters.stream import Answer, StreamReader

FOLDER = Path(engine_adapters.__file__).parent
READERS = ("openai", "responses", "anthropic", "native", "vectors")
# Every word between quotes and every field of a shape: what the readers look for.
WORDS = sorted(
    {
        word
        for name in READERS
        for word in re.findall(
            r'"([a-z_.]+)"|^    ([a-z_]+):', (FOLDER / f"{name}.py").read_text("utf-8"), re.MULTILINE
        )
        for word in word
        if word
    }
)
KEYS = st.sampled_from(WORDS)
LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=3) | KEYS
VALUES = st.recursive(
    LEAVES, lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=4), max_leaves=12
)
EVENTS = st.lists(st.dictionaries(KEYS, VALUES, max_size=5) | VALUES, min_size=1, max_size=4)


@pytest.mark.parametrize("name", DIALECTS)
@given(events=EVENTS, streamed=st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_json_is_read_without_an_exception(name: str, events: list[Any], streamed: bool) -> None:
    dialect = DIALECTS[name]
    lines = [json.dumps(event).encode() for event in events]
    ndjson = name == "ollama"
    body = b"\n".join(lines) + b"\n" if ndjson else b"".join(b"data: %b\n\n" % line for line in lines)
    outcome = read_answer(name, [(1, body)] if streamed and dialect.streams else [(1, lines[0])], streamed=streamed)
    assert outcome.ok or outcome.error
    assert "could not read" not in (outcome.error or "")
    assert len(outcome.read_at_ns) == len(outcome.read_events) == len(outcome.read_bytes)
    assert sum(outcome.read_events) == outcome.n_token_events
    assert isinstance(outcome.text, str)
    for count in (outcome.completion_tokens, outcome.prompt_tokens, outcome.cached_tokens, outcome.reasoning_tokens):
        assert count is None or (type(count) is int and count >= 0)


@pytest.mark.parametrize("name", DIALECTS)
@given(body=st.binary(max_size=80))
@settings(max_examples=40, deadline=None)
def test_any_bytes_are_read_without_an_exception(name: str, body: bytes) -> None:
    outcome = read_answer(name, [(1, body[:30]), (2, b"data: " + body[30:] + b"\n\n")])
    assert outcome.ok or outcome.error
    assert "could not read" not in (outcome.error or "")


def test_an_adapter_that_raises_fails_its_request_and_nothing_else() -> None:
    def take(answer: Answer, payload: bytes) -> None:
        answer.say(json.loads(payload)["piece"])

    outcome = StreamOutcome(http_status=200)
    reader = StreamReader(outcome, take, NDJSONParser())
    reader.on_read(1, b'{"piece": "a"}\n{"other": "b"}\n')
    reader.on_read(2, b'{"piece": "c"}\n')
    reader.finish()
    assert outcome.error_class == "protocol"
    assert "KeyError('piece')" in (outcome.error or "")
    assert outcome.n_token_events == 2
