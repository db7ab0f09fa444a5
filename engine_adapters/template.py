"""An API that the user describes: a request body with places in it, and JSON paths into the events."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from engine_adapters.base import Request
from engine_adapters.dialect import Asking, Dialect
from engine_adapters.ndjson import NDJSONParser, WholeParser
from engine_adapters.sse import SSEParser
from engine_adapters.stream import Answer, Parser, Take, text_of

PARSERS: dict[str, Callable[[], Parser]] = {"sse": SSEParser, "ndjson": NDJSONParser, "whole": WholeParser}
STEP = re.compile(r"\[(-?\d+)\]|([^.\[\]]+)")


def template_dialect(template: Mapping[str, Any]) -> Dialect:
    """The dialect of a scenario's `template` mapping (its keys are checked when the scenario is read)."""
    framing = template.get("framing", "sse")
    return Dialect(
        name="template",
        path=template["path"],
        body=template_body,
        take=template_take(template),
        parser=PARSERS[framing],
        needs_model="{model}" in template["path"] + json.dumps(template["body"]),
        streams=framing != "whole",
        end_is_mark=template.get("done") is None and template.get("finish_reason") is None,
    )


def template_body(request: Request, asking: Asking) -> dict[str, Any]:
    """The user's body with `{prompt}`, `{max_tokens}` and `{model}` filled in."""
    places = {"prompt": request.prompt, "max_tokens": request.max_tokens, "model": asking.model}
    filled = fill((asking.template or {})["body"], places)
    assert isinstance(filled, dict)
    return filled


def fill(value: Any, places: Mapping[str, Any]) -> Any:
    """The value with its places filled: a text that is one place alone takes the place's own type."""
    if isinstance(value, Mapping):
        return {key: fill(below, places) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [fill(below, places) for below in value]
    if not isinstance(value, str):
        return value
    alone = re.fullmatch(r"\{(\w+)\}", value)
    if alone and alone[1] in places:
        return places[alone[1]]
    return re.sub(r"\{(prompt|max_tokens|model)\}", lambda found: str(places[found[1]]), value)


def at_path(data: Any, path: str | None) -> Any:
    """What stands at `choices[0].delta.content`; None where the path leads nowhere."""
    for index, key in STEP.findall(path or ""):
        if index:
            inside = isinstance(data, list) and -len(data) <= int(index) < len(data)
            data = data[int(index)] if inside else None
        else:
            data = data.get(key) if isinstance(data, dict) else None
    return data if path else None


def template_take(template: Mapping[str, Any]) -> Take:
    """How the user's paths read one event."""
    usage = template.get("usage") or {}
    cumulative = template.get("cumulative", False)

    def take(answer: Answer, payload: bytes) -> None:
        event = opened(answer, payload)
        if event is None:
            return
        if error := at_path(event, template.get("error", "error")):
            answer.fail(error)
            return
        text = text_of(at_path(event, template["text"]))
        answer.say(text[len(answer.seen) :] if cumulative else text)
        answer.seen = text if cumulative and text else answer.seen
        if thought := text_of(at_path(event, template.get("reasoning"))):
            answer.say_hidden(thought, is_answer=False)
        answer.count(*(at_path(event, usage.get(name)) for name in ("prompt_tokens", "completion_tokens")))
        answer.end(at_path(event, template.get("finish_reason")))
        answer.done = answer.done or bool(at_path(event, template.get("done")))

    return take


def opened(answer: Answer, payload: bytes) -> Any:
    """The event as plain JSON; None for `[DONE]` and for what is no JSON, which is a fault."""
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        return answer.decode(payload, dict)
