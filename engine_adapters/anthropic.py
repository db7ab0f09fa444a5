"""Anthropic's Messages API (`/v1/messages`), which vLLM, SGLang and llama.cpp serve too."""

from __future__ import annotations

from typing import Any

import msgspec

from engine_adapters.base import Request
from engine_adapters.dialect import Asking, Dialect
from engine_adapters.stream import Answer, text_of

FINISH = {"max_tokens": "length", "end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls"}


class Event(msgspec.Struct, gc=False):
    """Any event of the API, or the whole message when its type is `message`."""

    type: str = ""
    delta: dict[str, Any] | None = None
    content_block: dict[str, Any] | None = None
    message: Any = None
    usage: dict[str, Any] | None = None
    error: Any = None
    content: Any = None
    stop_reason: Any = None


DECODER = msgspec.json.Decoder(Event)


def take(answer: Answer, payload: bytes) -> None:
    """One event; `message_start`, `ping` and the ends of blocks are no tokens."""
    event = answer.read(payload, DECODER, Event)
    if event is None:
        return
    if event.type == "content_block_delta":
        take_piece(answer, event.delta or {})
    elif event.type == "content_block_start":
        take_piece(answer, event.content_block or {})
    elif event.type == "message_start" and isinstance(event.message, dict):
        # Its output_tokens is a placeholder from before the first token.
        take_usage(answer, (event.message.get("usage") or {}) | {"output_tokens": None})
    elif event.type == "message_delta":
        take_usage(answer, event.usage or {})
        take_stop(answer, (event.delta or {}).get("stop_reason"))
    elif event.type == "message_stop":
        answer.done = True
    elif event.type == "message":
        for block in event.content if isinstance(event.content, list) else []:
            take_piece(answer, block)
        take_usage(answer, event.usage or {})
        take_stop(answer, event.stop_reason)
    elif event.error:
        answer.fail(event.error)


def take_piece(answer: Answer, piece: dict[str, Any]) -> None:
    """A delta, or a block that may begin with text; a signature and a citation are no tokens."""
    if text := text_of(piece.get("text")):
        answer.say(text)
    elif thought := text_of(piece.get("thinking")):
        answer.say_hidden(thought, is_answer=False)
    elif piece.get("partial_json") or piece.get("name"):
        answer.say_hidden(text_of(piece.get("partial_json") or piece.get("name")), is_answer=True)


def take_usage(answer: Answer, usage: dict[str, Any]) -> None:
    """Cumulative counts: the last block holds. Prompt tokens are those read, from the cache or written to it."""
    cached = usage.get("cache_read_input_tokens")
    parts = (usage.get("input_tokens"), cached, usage.get("cache_creation_input_tokens"))
    prompt = sum(part for part in parts if isinstance(part, int)) if usage.get("input_tokens") is not None else None
    answer.count(prompt=prompt, completion=usage.get("output_tokens"), cached=cached)


def take_stop(answer: Answer, reason: Any) -> None:
    """A stop reason in the words that the other APIs use."""
    answer.end(FINISH.get(reason, reason))


def body(request: Request, asking: Asking) -> dict[str, Any]:
    """One user message; the API has no field that fixes the length."""
    return {
        "model": asking.model,
        "messages": [{"role": "user", "content": request.prompt}],
        asking.max_tokens_field or "max_tokens": request.max_tokens,
        "temperature": 0,
        "stream": asking.stream,
    }


ANTHROPIC = Dialect(
    name="anthropic",
    path="/v1/messages",
    body=body,
    take=take,
    key_header="x-api-key",
    headers={"anthropic-version": "2023-06-01"},
)
