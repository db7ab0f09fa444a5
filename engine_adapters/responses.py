"""OpenAI's Responses API (`/v1/responses`): typed events, of which those named `...delta` carry tokens."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from engine_adapters.base import Request
from engine_adapters.dialect import Asking, Dialect
from engine_adapters.stream import Answer, text_of

FINISH = {"max_output_tokens": "length", "content_filter": "content_filter"}
SPOKEN = {"response.output_text.delta", "response.refusal.delta"}
THOUGHT = {
    "response.reasoning_text.delta",
    "response.reasoning_summary_text.delta",
    "response.reasoning.delta",
    "response.reasoning_part.delta",
}


class Event(msgspec.Struct, gc=False):
    """Any event of the API, or the whole response when `object` says so."""

    type: str = ""
    delta: Any = None
    item: Any = None
    response: Any = None
    error: Any = None
    message: Any = None
    object: Any = None


DECODER = msgspec.json.Decoder(Event)


def take(answer: Answer, payload: bytes) -> None:
    """One event; `...done` events repeat what the deltas said and bring nothing."""
    event = answer.read(payload, DECODER, Event)
    if event is None:
        return
    if event.type in SPOKEN:
        answer.say(text_of(event.delta))
    elif event.type in THOUGHT:
        if piece := text_of(event.delta):
            answer.say_hidden(piece, is_answer=False)
    elif event.type.endswith(".delta") and event.delta:
        answer.say_hidden(text_of(event.delta), is_answer=True)  # arguments of a call
    elif event.type == "response.output_item.added" and isinstance(event.item, dict) and event.item.get("name"):
        answer.say_hidden(text_of(event.item["name"]), is_answer=True)  # the name of a call
    elif event.type in ("error", "response.error"):
        answer.fail(event.error or event.message or "error")
    elif isinstance(event.response, dict) and event.type.startswith("response."):
        take_response(answer, event.type.removeprefix("response."), event.response)
    elif event.object == "response":
        response = json.loads(payload)
        take_response(answer, response.get("status") or "completed", response)
    elif event.error:
        answer.fail(event.error)


def take_response(answer: Answer, status: str, response: dict[str, Any]) -> None:
    """The response object that the first and the last events, and an answer that is not streamed, carry."""
    usage = response.get("usage")
    if isinstance(usage, dict):
        inputs, outputs = usage.get("input_tokens_details"), usage.get("output_tokens_details")
        answer.count(
            prompt=usage.get("input_tokens"),
            completion=usage.get("output_tokens"),
            cached=inputs.get("cached_tokens") if isinstance(inputs, dict) else None,
            reasoning=outputs.get("reasoning_tokens") if isinstance(outputs, dict) else None,
        )
    if status in ("failed", "cancelled"):
        answer.fail(response.get("error") or f"the response was {status}")
    elif status in ("completed", "incomplete"):
        answer.done = True
        details = response.get("incomplete_details")
        why = str(details.get("reason")) if isinstance(details, dict) else "stop"
        answer.end(FINISH.get(why, why))
        if not (answer.text or answer.hidden):
            take_output(answer, response.get("output"))


def take_output(answer: Answer, output: Any) -> None:
    """The items of a response whose text did not come in deltas."""
    for item in output if isinstance(output, list) else []:
        if not isinstance(item, dict):
            continue
        if item.get("type") == "reasoning":
            answer.say_hidden(text_of(item.get("content") or item.get("summary")), is_answer=False)
        elif item.get("type") == "message":
            answer.say(text_of(item.get("content")))
        elif item.get("name"):
            answer.say_hidden(text_of(item["name"]) + text_of(item.get("arguments")), is_answer=True)


def body(request: Request, asking: Asking) -> dict[str, Any]:
    """One user turn; the API has no field that fixes the length."""
    return {
        "model": asking.model,
        "input": request.prompt,
        asking.max_tokens_field or "max_output_tokens": request.max_tokens,
        "temperature": 0,
        "stream": asking.stream,
    }


RESPONSES = Dialect(
    name="openai-responses", path="/v1/responses", body=body, take=take, max_tokens_field="max_output_tokens"
)
