"""Answers of servers that could not be recorded here, built from what their documentation and source say they send.

Each is (bytes, what is right): `text`, `tokens` (the server's own count, None where it tells none) and `events`.
"""

from __future__ import annotations

import json
from typing import Any

Answer = tuple[bytes, dict[str, Any]]
ERROR = {"error_class": "stream_error"}


def sse(*events: Any, done: bool = True, named: bool = False) -> bytes:
    """Server-sent events; `named` writes the type as the event's name too, as OpenAI and Anthropic do."""
    names = [f"event: {event['type']}\n" if named else "" for event in events]
    lines = [f"{name}data: {json.dumps(event)}\n\n" for name, event in zip(names, events, strict=True)]
    return "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()


def ndjson(*events: Any) -> bytes:
    return "".join(json.dumps(event) + "\n" for event in events).encode()


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    """One event of the OpenAI chat API."""
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def usage(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **more}}


ROLE = chunk({"role": "assistant", "content": ""})


def call(name: str | None, arguments: str) -> dict[str, Any]:
    """A piece of a tool call; only the first one has a name and an id."""
    named = {"id": "c1", "type": "function"} if name else {}
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    return chunk({"tool_calls": [{"index": 0, **named, "function": function}]})


def chat_reasoning(key: str) -> Answer:
    """Reasoning under the server's own key (`reasoning` or `reasoning_content`), then the answer."""
    events = [ROLE, chunk({key: "so"}), chunk({key: " it"}), chunk({"content": "yes"}), chunk({}, "stop"), usage(9, 5)]
    return sse(*events), {"text": "yes", "hidden_text": "so it", "tokens": 5, "events": 3}


def chat_tools() -> Answer:
    """A call's name, then its arguments in pieces."""
    events = [ROLE, call("f", ""), call(None, '{"a"'), call(None, ": 1}"), chunk({}, "tool_calls"), usage(9, 7)]
    return sse(*events), {"text": "", "hidden_text": 'f{"a": 1}', "tokens": 7, "events": 3, "finish": "tool_calls"}


def chat_error() -> Answer:
    """An error object inside a 200 stream."""
    return sse(ROLE, chunk({"content": "a"}), {"error": {"message": "out of memory", "code": 500}}), ERROR


def chat_stream(with_usage: bool) -> Answer:
    events = [ROLE, chunk({"content": "a"}), chunk({"content": "b"}, "stop"), *([usage(9, 3)] if with_usage else [])]
    return sse(*events), {"text": "ab", "tokens": 3 if with_usage else None, "events": 2, "finish": "stop"}


def chat_whole() -> Answer:
    message = {"role": "assistant", "content": "ab"}
    whole = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], **usage(9, 3)} | {
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]
    }
    return json.dumps(whole).encode(), {"text": "ab", "tokens": 3, "events": 1, "finish": "stop"}


# --- Anthropic Messages ---------------------------------------------------------------------------------------------


def anthropic(*blocks: list[dict[str, Any]], output: int, stop: str = "end_turn") -> bytes:
    """A message of the given blocks, each a list of its start and its deltas."""
    usage_block = {"input_tokens": 9, "cache_read_input_tokens": 4, "output_tokens": 1}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"content": [], "usage": usage_block}}]
    for i, (start, *deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": i, "content_block": start})
        events.append({"type": "ping"})
        events += [{"type": "content_block_delta", "index": i, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": i})
    events.append({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": output}})
    return sse(*events, {"type": "message_stop"}, done=False, named=True)


TEXT_BLOCK = [{"type": "text", "text": ""}, *({"type": "text_delta", "text": t} for t in "ab")]
THINKING_BLOCK = [
    {"type": "thinking", "thinking": ""},
    {"type": "thinking_delta", "thinking": "hm"},
    {"type": "signature_delta", "signature": "xyz"},
]
TOOL_BLOCK = [
    {"type": "tool_use", "id": "t", "name": "f", "input": {}},
    {"type": "input_json_delta", "partial_json": ""},
    {"type": "input_json_delta", "partial_json": "{}"},
]
ANTHROPIC_WHOLE = {
    "type": "message",
    "content": [{"type": "text", "text": "ab"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 9, "output_tokens": 3},
}
ANTHROPIC: dict[str, Answer] = {
    "stream": (anthropic(TEXT_BLOCK, output=3), {"text": "ab", "tokens": 3, "events": 2, "prompt": 13, "cached": 4}),
    "no stream": (json.dumps(ANTHROPIC_WHOLE).encode(), {"text": "ab", "tokens": 3, "events": 1, "finish": "stop"}),
    "reasoning": (
        anthropic(THINKING_BLOCK, TEXT_BLOCK, output=6),
        {"text": "ab", "hidden_text": "hm", "tokens": 6, "events": 3},
    ),
    "tools": (
        anthropic(TOOL_BLOCK, output=8, stop="tool_use"),
        {"text": "", "hidden_text": "f{}", "tokens": 8, "events": 2, "finish": "tool_calls"},
    ),
    "error": (
        sse({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, done=False, named=True),
        ERROR,
    ),
}

# --- OpenAI Responses -----------------------------------------------------------------------------------------------


def responses(*deltas: tuple[str, str], tokens: int, **more: Any) -> bytes:
    """A response whose events of the given types carry the given texts."""
    body = {"status": "completed", "usage": {"input_tokens": 9, "output_tokens": tokens}, **more}
    events = [{"type": f"response.{kind}.delta", "delta": text} for kind, text in deltas]
    return sse(
        {"type": "response.created", "response": {"status": "in_progress", "usage": None}},
        {"type": "response.output_item.added", "item": {"type": "message", "content": []}},
        *events,
        {"type": "response.output_text.done", "text": "repeated"},
        {"type": "response.completed", "response": body},
        done=False,
        named=True,
    )


RESPONSES_WHOLE = {
    "object": "response",
    "status": "completed",
    "output": [{"type": "message", "content": [{"type": "output_text", "text": "ab"}]}],
    "usage": {"input_tokens": 9, "output_tokens": 3},
}
RESPONSES: dict[str, Answer] = {
    "stream": (
        responses(("output_text", "a"), ("output_text", "b"), tokens=3),
        {"text": "ab", "tokens": 3, "events": 2, "finish": "stop"},
    ),
    "no stream": (json.dumps(RESPONSES_WHOLE).encode(), {"text": "ab", "tokens": 3, "events": 1, "finish": "stop"}),
    "reasoning": (
        responses(("reasoning_summary_text", "hm"), ("reasoning_text", "!"), ("output_text", "a"), tokens=6),
        {"text": "a", "hidden_text": "hm!", "tokens": 6, "events": 3},
    ),
    "tools": (
        responses(("function_call_arguments", '{"a"'), ("function_call_arguments", ": 1}"), tokens=8),
        {"text": "", "hidden_text": '{"a": 1}', "tokens": 8, "events": 2},
    ),
    "error": (
        sse(
            {"type": "response.failed", "response": {"status": "failed", "error": {"message": "boom"}}},
            done=False,
            named=True,
        ),
        ERROR,
    ),
}

# --- the servers' own APIs ------------------------------------------------------------------------------------------


def tgi(*texts: str, end: bool = True, details: bool = True) -> bytes:
    """Text Generation Inference: an event a token, the end token among them as special."""
    events: list[dict[str, Any]] = [
        {"index": i, "token": {"id": i, "text": t, "special": False}, "generated_text": None, "details": None}
        for i, t in enumerate(texts)
    ]
    if end:
        told = (
            {"finish_reason": "eos_token", "generated_tokens": len(texts) + 1, "input_length": 9} if details else None
        )
        last = {"id": 2, "text": "</s>", "special": True}
        events.append({"index": len(texts), "token": last, "generated_text": "".join(texts), "details": told})
    return sse(*events, done=False)


TGI_DETAILS = {"finish_reason": "length", "generated_tokens": 2, "prefill": [], "tokens": []}
TGI: dict[str, Answer] = {
    "stream": (tgi("a", "b"), {"text": "ab", "tokens": 3, "events": 2, "finish": "stop"}),
    "no stream": (
        json.dumps({"generated_text": "ab", "details": TGI_DETAILS}).encode(),
        {"text": "ab", "tokens": 2, "events": 1, "finish": "length"},
    ),
    "usage off": (tgi("a", "b", details=False), {"text": "ab", "tokens": 3, "events": 2, "source": "event_counts"}),
    "error": (sse({"error": "Request failed during generation", "error_type": "generation"}, done=False), ERROR),
}


def ollama(*messages: dict[str, Any], done: bool = True, counts: bool = True) -> bytes:
    """Ollama's chat: lines of JSON, the last with counts and times in nanoseconds."""
    events = [{"model": "m", "message": {"role": "assistant", **message}, "done": False} for message in messages]
    told = {"prompt_eval_count": 9, "eval_count": 4, "eval_duration": 20_000_000} if counts else {}
    end = {"model": "m", "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop", **told}
    return ndjson(*events, *([end] if done else []))


OLLAMA_CALL = {"content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}
OLLAMA_WHOLE = json.loads(ollama().splitlines()[-1]) | {"message": {"role": "assistant", "content": "ab"}}
OLLAMA: dict[str, Answer] = {
    "stream": (
        ollama({"content": "a"}, {"content": "b"}),
        {"text": "ab", "tokens": 4, "events": 2, "finish": "stop", "decode_s": 0.02},
    ),
    "no stream": (json.dumps(OLLAMA_WHOLE).encode(), {"text": "ab", "tokens": 4, "events": 1, "finish": "stop"}),
    "usage off": (
        ollama({"content": "a"}, {"content": "b"}, counts=False),
        {"text": "ab", "tokens": None, "events": 2, "finish": "stop"},
    ),
    "reasoning": (
        ollama({"content": "", "thinking": "hm"}, {"content": "a"}),
        {"text": "a", "hidden_text": "hm", "tokens": 4, "events": 2},
    ),
    "tools": (ollama(OLLAMA_CALL), {"text": "", "hidden_text": 'f{"a": 1}', "tokens": 4, "events": 1}),
    "error": (ndjson({"error": "model runner has unexpectedly stopped"}), ERROR),
}


def triton(*texts: str) -> bytes:
    """Triton's `generate_stream`: pieces, and then the stream is over."""
    return sse(*({"model_name": "m", "model_version": "1", "text_output": text} for text in texts), done=False)


TRITON: dict[str, Answer] = {
    "stream": (triton("a", "", "b"), {"text": "ab", "tokens": None, "events": 2}),
    "no stream": (
        json.dumps({"model_name": "m", "text_output": "ab"}).encode(),
        {"text": "ab", "tokens": None, "events": 1},
    ),
    "usage off": (triton("a", "b"), {"text": "ab", "tokens": None, "events": 2}),
    "error": (sse({"error": "in ensemble 'm', failed"}, done=False), ERROR),
}
EMBEDDINGS: dict[str, Answer] = {
    "no stream": (
        json.dumps({"object": "list", "data": [{"embedding": [0.1]}], "usage": {"prompt_tokens": 9}}).encode(),
        {"text": "", "tokens": None, "events": 0, "prompt": 9},
    ),
    "error": (json.dumps({"error": {"message": "too long"}}).encode(), ERROR),
}
RERANK: dict[str, Answer] = {
    "no stream": (
        json.dumps({"results": [{"index": 0, "relevance_score": 0.5}], "usage": {"total_tokens": 9}}).encode(),
        {"text": "", "tokens": None, "events": 0, "prompt": 9},
    ),
    "error": (json.dumps({"error": {"message": "too long"}}).encode(), ERROR),
}
CHAT: dict[str, Answer] = {
    "stream": chat_stream(True),
    "no stream": chat_whole(),
    "usage off": chat_stream(False),
    "tools": chat_tools(),
    "error": chat_error(),
}
