"""What a request body may say, and that each event is the JSON that clients expect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine_adapters.reference import api, tokenizer
from engine_adapters.reference.config import MODELS

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "hello"}


def parse(kind: api.Api, fields: Any) -> api.GenerationParams:
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return api.parse_generation(kind, body, MODELS["tiny"], max_model_len=64)


def test_defaults_are_openais() -> None:
    chat, completion = parse("chat", CHAT), parse("completions", COMPLETION)
    assert completion.prompt_token_ids == list(b"hello")
    assert completion.max_tokens == 16
    assert chat.max_tokens == 64 - len(chat.prompt_token_ids) == 64 - 8
    assert (chat.stream, chat.ignore_eos, chat.include_usage, chat.min_tokens) == (False, False, False, 0)


def test_what_load_generators_send_is_understood() -> None:
    extra = {"max_tokens": 9, "ignore_eos": True, "min_tokens": 3, "stream": True, "temperature": 0, "n": 1, "stop": []}
    params = parse("completions", COMPLETION | extra | {"stream_options": {"include_usage": True}})
    assert (params.max_tokens, params.min_tokens, params.ignore_eos) == (9, 3, True)
    assert params.stream
    assert params.include_usage
    assert parse("chat", CHAT | {"max_tokens": 9, "max_completion_tokens": 5}).max_tokens == 5


@pytest.mark.parametrize("prompt", ["hello", ["hello"], list(b"hello"), [list(b"hello")]])
def test_a_prompt_is_text_or_token_ids(prompt: Any) -> None:
    assert parse("completions", {"prompt": prompt}).prompt_token_ids == list(b"hello")


def test_text_parts_of_a_message_are_joined() -> None:
    parts = [{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}]
    message = {"messages": [{"role": "user", "content": parts}]}
    assert parse("chat", message).prompt_token_ids == parse("chat", CHAT).prompt_token_ids


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("chat", b"{not json"),
        ("chat", b"[]"),
        ("chat", b"\xff\xfe"),
        ("chat", {"messages": "hello"}),
        ("chat", {"messages": []}),
        ("chat", {"messages": [{"role": "wizard", "content": "x"}]}),
        ("chat", {"messages": [{"role": ["user"], "content": "x"}]}),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        ("chat", CHAT | {"n": 2}),
        ("chat", CHAT | {"stop": ["x"]}),
        ("chat", CHAT | {"max_tokens": 0}),
        ("chat", CHAT | {"max_tokens": "9"}),
        ("chat", CHAT | {"max_tokens": True}),
        ("chat", CHAT | {"stream": "yes"}),
        ("chat", CHAT | {"stream_options": 1}),
        ("chat", CHAT | {"max_tokens": 60}),
        ("completions", {}),
        ("completions", {"prompt": ""}),
        ("completions", {"prompt": ["a", "b"]}),
        ("completions", {"prompt": [1024]}),
        ("completions", {"prompt": "x" * 64}),
        ("completions", {"prompt": "x", "min_tokens": -1}),
    ],
)
def test_a_bad_body_is_refused_with_400_and_a_reason(kind: api.Api, fields: Any) -> None:
    with pytest.raises(api.ApiError) as refusal:
        parse(kind, fields)
    error = json.loads(refusal.value.body)["error"]
    assert refusal.value.status == error["code"] == 400
    assert error["message"]


def test_an_unknown_model_is_404_as_vllm_answers() -> None:
    with pytest.raises(api.ApiError) as refusal:
        parse("chat", CHAT | {"model": "other"})
    error = json.loads(refusal.value.body)["error"]
    assert (refusal.value.status, error["type"], error["param"]) == (404, "NotFoundError", "model")
    assert error["message"] == "The model `other` does not exist."


def data(event: bytes) -> dict[str, Any]:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    return dict(json.loads(event[6:]))


@pytest.mark.parametrize("token_id", [ord('"'), ord("\\"), ord("a"), 300])
def test_a_token_event_is_valid_json_that_carries_the_tokens_text(token_id: int) -> None:
    text = tokenizer.token_text(token_id)
    chat = data(api.EventEncoder("chat", "chatcmpl-1", 7, "tiny").token(token_id, None))
    completion = data(api.EventEncoder("completions", "cmpl-1", 7, "tiny").token(token_id, "length"))
    assert chat["choices"] == [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}]
    assert completion["choices"] == [{"index": 0, "text": text, "logprobs": None, "finish_reason": "length"}]
    assert (chat["object"], chat["id"], chat["created"], chat["model"]) == (
        "chat.completion.chunk",
        "chatcmpl-1",
        7,
        "tiny",
    )


def test_the_usage_event_has_no_choices_and_the_role_event_no_text() -> None:
    encoder = api.EventEncoder("chat", "chatcmpl-1", 7, "tiny")
    last, first = data(encoder.usage(5, 2)), data(encoder.role)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 7
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
