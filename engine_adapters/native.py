"""The servers' own APIs beside OpenAI's: SGLang `/generate`, TGI, llama.cpp `/completion`, Ollama, Triton."""

from __future__ import annotations

from typing import Any

import msgspec

from engine_adapters.base import Request
from engine_adapters.dialect import Asking, Dialect
from engine_adapters.ndjson import NDJSONParser
from engine_adapters.openai import Delta, called_in
from engine_adapters.stream import Answer, text_of


class Event(msgspec.Struct, gc=False):
    """What any of these servers puts into an event; each `take` reads the fields of its own server."""

    text: Any = None  # SGLang
    output_ids: Any = None
    meta_info: dict[str, Any] | None = None
    token: dict[str, Any] | None = None  # TGI
    generated_text: Any = None
    details: dict[str, Any] | None = None
    content: Any = None  # llama.cpp
    stop: Any = None
    stop_type: Any = None
    tokens_predicted: Any = None
    tokens_evaluated: Any = None
    timings: dict[str, Any] | None = None
    message: Any = None  # Ollama
    response: Any = None
    thinking: Any = None
    done: Any = None
    done_reason: Any = None
    prompt_eval_count: Any = None
    eval_count: Any = None
    eval_duration: Any = None
    text_output: Any = None  # Triton
    error: Any = None


DECODER = msgspec.json.Decoder(Event)


def opened(answer: Answer, payload: bytes) -> Event | None:
    """The event, unless it was none or an error."""
    event = answer.read(payload, DECODER, Event)
    if event is not None and event.error:
        answer.fail(event.error)
        return None
    return event


# --- SGLang: each event repeats all text so far, unless the server streams increments -------------------------------


def take_sglang(answer: Answer, payload: bytes) -> None:
    """One event of `/generate`."""
    event = opened(answer, payload)
    if event is None:
        return
    meta = event.meta_info or {}
    text = text_of(event.text)
    n_ids = len(event.output_ids) if isinstance(event.output_ids, list) else None
    is_whole = n_ids == meta.get("completion_tokens") if n_ids is not None else text.startswith(answer.seen)
    answer.say(text[len(answer.seen) :] if is_whole else text)
    answer.seen = text if is_whole else answer.seen
    answer.count(meta.get("prompt_tokens"), meta.get("completion_tokens"), meta.get("cached_tokens"))
    answer.end(meta.get("finish_reason"))


def sglang_body(request: Request, asking: Asking) -> dict[str, Any]:
    """Text in, greedy."""
    sampling: dict[str, Any] = {asking.max_tokens_field or "max_new_tokens": request.max_tokens, "temperature": 0}
    if request.ignore_eos and asking.ignore_eos:
        sampling["ignore_eos"] = True
    return {"text": request.prompt, "sampling_params": sampling, "stream": asking.stream}


SGLANG = Dialect(
    name="sglang",
    needs_model=False,
    path="/generate",
    body=sglang_body,
    take=take_sglang,
    max_tokens_field="max_new_tokens",
    length_fields=("ignore_eos",),
)

# --- TGI: an event a token; the last one has the whole text and the details -----------------------------------------


def take_tgi(answer: Answer, payload: bytes) -> None:
    """One event of `/generate_stream`, or the answer of `/generate`."""
    event = opened(answer, payload)
    if event is None:
        return
    if event.token is not None:
        answer.tell(1)
        if not event.token.get("special"):  # an end token is counted, and is no text
            answer.say(text_of(event.token.get("text")))
    elif event.generated_text is not None:
        answer.say(text_of(event.generated_text))
    if event.details is not None:
        answer.count(prompt=event.details.get("input_length"), completion=event.details.get("generated_tokens"))
        reason = event.details.get("finish_reason")
        answer.end("stop" if reason in ("eos_token", "stop_sequence") else reason)
    answer.done = answer.done or event.generated_text is not None


def tgi_body(request: Request, asking: Asking) -> dict[str, Any]:
    """Text in, greedy; the API has no field that fixes the length."""
    limit = asking.max_tokens_field or "max_new_tokens"
    return {"inputs": request.prompt, "parameters": {limit: request.max_tokens, "do_sample": False, "details": True}}


TGI = Dialect(
    name="tgi",
    needs_model=False,
    path="/generate_stream",
    whole_path="/generate",
    body=tgi_body,
    take=take_tgi,
    max_tokens_field="max_new_tokens",
)

# --- llama.cpp: increments, with a counter in every event -----------------------------------------------------------


def take_llama_cpp(answer: Answer, payload: bytes) -> None:
    """One event of `/completion`; progress events of the prompt have no content."""
    event = opened(answer, payload)
    if event is None:
        return
    answer.say(text_of(event.content))
    timings = event.timings or {}
    answer.count(event.tokens_evaluated, event.tokens_predicted, timings.get("cache_n"))
    if event.stop:
        answer.done = True
        answer.end("length" if event.stop_type == "limit" else event.stop_type and "stop")
        spent_ms = timings.get("predicted_ms")
        answer.outcome.server_decode_s = spent_ms / 1e3 if isinstance(spent_ms, int | float) else None


def llama_cpp_body(request: Request, asking: Asking) -> dict[str, Any]:
    """Text in, greedy."""
    body = {
        "prompt": request.prompt,
        asking.max_tokens_field or "n_predict": request.max_tokens,
        "temperature": 0,
        "stream": asking.stream,
    }
    return body | ({"ignore_eos": True} if request.ignore_eos and asking.ignore_eos else {})


LLAMA_CPP = Dialect(
    name="llama-cpp",
    needs_model=False,
    path="/completion",
    body=llama_cpp_body,
    take=take_llama_cpp,
    max_tokens_field="n_predict",
    length_fields=("ignore_eos",),
)

# --- Ollama: newline-delimited JSON, times in nanoseconds -----------------------------------------------------------


def take_ollama(answer: Answer, payload: bytes) -> None:
    """One line of `/api/chat` or `/api/generate`."""
    event = opened(answer, payload)
    if event is None:
        return
    message = event.message if isinstance(event.message, dict) else {}
    thought = text_of(message.get("thinking")) or text_of(event.thinking)
    called = called_in(Delta(tool_calls=message.get("tool_calls")))
    spoken = text_of(message.get("content")) or text_of(event.response)
    if spoken or thought or called is not None:
        answer.n_events += 1
        answer.answered = answer.answered or bool(spoken) or called is not None
        answer.text.append(spoken)
        answer.hidden += [thought, called or ""]
    if event.done:
        answer.done = True
        answer.end(event.done_reason)
        answer.count(event.prompt_eval_count, event.eval_count)
        spent_ns = event.eval_duration
        answer.outcome.server_decode_s = spent_ns / 1e9 if isinstance(spent_ns, int) else None


def ollama_body(request: Request, asking: Asking) -> dict[str, Any]:
    """One user message; the API has no field that fixes the length."""
    return {
        "model": asking.model,
        "messages": [{"role": "user", "content": request.prompt}],
        "options": {asking.max_tokens_field or "num_predict": request.max_tokens, "temperature": 0},
        "stream": asking.stream,
    }


OLLAMA = Dialect(
    name="ollama",
    path="/api/chat",
    body=ollama_body,
    take=take_ollama,
    parser=NDJSONParser,
    max_tokens_field="num_predict",
)

# --- Triton with TensorRT-LLM or vLLM behind it: text pieces, no counts and no terminal mark ------------------------


def take_triton(answer: Answer, payload: bytes) -> None:
    """One event of `generate_stream`."""
    event = opened(answer, payload)
    if event is not None:
        answer.say(text_of(event.text_output))


def triton_body(request: Request, asking: Asking) -> dict[str, Any]:
    """Text in. TensorRT-LLM knows `min_tokens`, vLLM `ignore_eos`; Triton hands on what its model does not name."""
    body = {
        "text_input": request.prompt,
        asking.max_tokens_field or "max_tokens": request.max_tokens,
        "temperature": 0,
        "stream": asking.stream,
    }
    fixed = {"min_tokens": request.max_tokens, "ignore_eos": True}
    return body | (fixed if request.ignore_eos and asking.ignore_eos else {})


TRITON = Dialect(
    name="triton",
    path="/v2/models/{model}/generate_stream",
    whole_path="/v2/models/{model}/generate",
    body=triton_body,
    take=take_triton,
    length_fields=("min_tokens", "ignore_eos"),
    end_is_mark=True,
)
