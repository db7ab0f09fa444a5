"""The OpenAI API, chat and completions (vLLM, SGLang, llama.cpp, LM Studio, mlx-lm and most others), and Azure's."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec

from engine_adapters.base import Request
from engine_adapters.dialect import Asking, Dialect
from engine_adapters.stream import Answer, text_of

AZURE_API_VERSION = "2024-10-21"


class Delta(msgspec.Struct, gc=False):
    """What a chat event adds. Servers differ in what they put where, so only what is read has a type."""

    content: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None
    reasoning: Any = None
    reasoning_content: Any = None


class Choice(msgspec.Struct, gc=False):
    """One choice of an event; `text` is the completions API's, `message` that of an answer that is not streamed."""

    delta: Delta | None = None
    message: Delta | None = None
    text: Any = None
    index: Any = 0
    finish_reason: Any = None
    token_ids: Any = None
    logprobs: Any = None


class Event(msgspec.Struct, gc=False):
    """One event of either API; what is not named here is skipped, which makes decoding eight times cheaper."""

    choices: list[Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


decode_event = msgspec.json.Decoder(Event).decode


def take(answer: Answer, payload: bytes) -> None:
    """One event of a chat or a completion."""
    try:
        event = decode_event(payload)
    except msgspec.MsgspecError:
        odd = answer.decode(payload, Event)
        if odd is None:
            return
        event = odd
    if event.choices:
        for choice in event.choices:
            delta = choice.delta
            # The common event first: one choice, a piece of text and nothing else.
            piece = choice.text if delta is None else delta.content
            if piece.__class__ is str and piece and not choice.index:
                answer.n_events += 1
                answer.answered = True
                answer.text.append(piece)
                if delta is not None and (delta.reasoning or delta.reasoning_content):
                    answer.hidden.append(text_of(delta.reasoning or delta.reasoning_content))
            else:
                take_rare(answer, choice)
            if choice.finish_reason:
                answer.end(choice.finish_reason)
            if choice.token_ids or choice.logprobs:
                answer.tell(ids_in(choice))
    if event.usage:
        take_usage(answer, event.usage)
    if event.error or not (event.choices or event.usage):
        take_error(answer, event, payload)


def take_rare(answer: Answer, choice: Choice) -> None:
    """Any piece: of further choices, of an answer that came whole, content in parts, refusals, tools, reasoning."""
    delta = choice.delta or choice.message or Delta()
    thought = text_of(delta.reasoning) or text_of(delta.reasoning_content) or thinking_in(delta.content)
    spoken = text_of(delta.content) or text_of(choice.text) or text_of(delta.refusal)
    called = called_in(delta)
    if not (spoken or thought or called is not None):
        return
    answer.n_events += 1
    answer.answered = answer.answered or bool(spoken) or called is not None
    answer.hidden += [thought, called or ""]
    if isinstance(choice.index, int) and choice.index > 0:
        answer.n_choices = max(answer.n_choices, choice.index + 1)
        answer.hidden.append(spoken)
    else:
        answer.text.append(spoken)


def called_in(delta: Delta) -> str | None:
    """Names and arguments of the tool calls in a piece; None when it has none."""
    calls = delta.tool_calls if isinstance(delta.tool_calls, list) else []
    functions = [call.get("function") for call in calls if isinstance(call, dict)]
    if delta.function_call:
        functions.append(delta.function_call)
    if not functions:
        return None
    named = [function for function in functions if isinstance(function, dict)]
    return "".join(text_of(f.get("name")) + arguments_in(f) for f in named)


def arguments_in(function: dict[str, Any]) -> str:
    """The arguments of a call, which most servers send as JSON text and Ollama as JSON."""
    given = function.get("arguments")
    return json.dumps(given) if isinstance(given, dict) else text_of(given)


def thinking_in(content: Any) -> str:
    """Reasoning inside a list of content parts (Mistral: `{"type": "thinking", "thinking": [...]}`)."""
    parts = content if isinstance(content, list) else []
    return "".join(text_of(part.get("thinking")) for part in parts if isinstance(part, dict))


def ids_in(choice: Choice) -> int:
    """Tokens of an event by the ids or, without them, the logprobs in it."""
    if choice.token_ids:
        return len(choice.token_ids) if isinstance(choice.token_ids, list) else 0
    logprobs = choice.logprobs if isinstance(choice.logprobs, dict) else {}
    listed = logprobs.get("content") or logprobs.get("tokens")
    return len(listed) if isinstance(listed, list) else 0


def take_usage(answer: Answer, usage: dict[str, Any]) -> None:
    """A usage block, wherever it stands."""
    prompt_details = usage.get("prompt_tokens_details")
    details = usage.get("completion_tokens_details")
    answer.count(
        prompt=usage.get("prompt_tokens"),
        completion=usage.get("completion_tokens"),
        cached=prompt_details.get("cached_tokens") if isinstance(prompt_details, dict) else None,
        reasoning=details.get("reasoning_tokens") if isinstance(details, dict) else usage.get("reasoning_tokens"),
    )


def take_error(answer: Answer, event: Event, payload: bytes) -> None:
    """An error object in the stream, also one that is the whole event (`{"object": "error", "message": ...}`)."""
    if event.error:
        answer.fail(event.error)
        return
    data = json.loads(payload)
    if data.get("detail") or (data.get("message") and "choices" not in data):
        answer.fail(data)


def common_body(request: Request, asking: Asking) -> dict[str, Any]:
    """What chat and completions have in common."""
    body: dict[str, Any] = {
        "model": asking.model,
        asking.max_tokens_field or "max_tokens": request.max_tokens,
        "temperature": 0,
        "stream": asking.stream,
    }
    if asking.stream and asking.usage != "never":
        body["stream_options"] = {"include_usage": True}
        if asking.usage == "every_event":
            body["stream_options"]["continuous_usage_stats"] = True
    if request.ignore_eos and asking.ignore_eos:
        body["ignore_eos"] = True
    return body


def chat_body(request: Request, asking: Asking) -> dict[str, Any]:
    """One user message: templates without a system role, or with strict turns, take it too."""
    return common_body(request, asking) | {"messages": [{"role": "user", "content": request.prompt}]}


def completions_body(request: Request, asking: Asking) -> dict[str, Any]:
    """The prompt as it is."""
    return common_body(request, asking) | {"prompt": request.prompt}


CHAT = Dialect(
    name="openai-chat",
    path="/v1/chat/completions",
    body=chat_body,
    take=take,
    length_fields=("ignore_eos",),
    counts_events=True,
)
COMPLETIONS = replace(CHAT, name="openai-completions", path="/v1/completions", body=completions_body)
# Azure serves a model under the name of its deployment, wants the key in a header of its own and refuses what the
# OpenAI API does not have.
AZURE = replace(
    CHAT,
    name="azure",
    path=f"/openai/deployments/{{model}}/chat/completions?api-version={AZURE_API_VERSION}",
    length_fields=(),
    counts_events=False,
    key_header="api-key",
)
