"""What a request body may say, and that each event is the JSON that clients expect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine_adapters.reference import api
from engine_adapters.reference.answers import Choice, Heading, OpenAIWriter, Piece, Usage
from engine_adapters.reference.api_fields import ApiError
from engine_adapters.reference.request import Logprobs
from engine_adapters.reference.responses_answers import ResponsesWriter
from engine_adapters.reference.stop_strings import StopStrings
from engine_adapters.reference.tokenizer import BYTES, token_text

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "hello"}
RESPONSE: dict[str, Any] = {"model": "tiny", "input": "hello"}
SERVED = api.Served("tiny", 1024, 64, BYTES)
USAGE = Usage(5, 2, 3)
HEADING = Heading("1", 7, "tiny")


def parse(kind: api.Api, fields: Any) -> api.GenerationParams:
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return api.parse_generation(kind, body, SERVED)


def refused(kind: api.Api, fields: Any) -> tuple[int, dict[str, Any]]:
    with pytest.raises(ApiError) as refusal:
        parse(kind, fields)
    return refusal.value.status, json.loads(refusal.value.body)["error"]


def test_defaults_are_openais_but_for_greedy_decoding() -> None:
    chat, completion, response = parse("chat", CHAT), parse("completions", COMPLETION), parse("responses", RESPONSE)
    assert completion.prompts == [list(b"hello")]
    assert completion.max_tokens == 16
    assert chat.max_tokens == 64 - len(chat.prompts[0]) == 64 - 8
    assert response.prompts == chat.prompts
    assert response.max_tokens == chat.max_tokens
    assert (chat.stream, chat.ignore_eos, chat.include_usage, chat.min_tokens, chat.n) == (False, False, False, 0, 1)
    assert (chat.sampling.temperature, chat.sampling.top_p, chat.sampling.top_k) == (0.0, 1.0, 0)
    assert (chat.sampling.seed, chat.sampling.logprobs, chat.sampling.stop) == (None, None, ())


def test_what_load_generators_send_is_understood() -> None:
    extra = {"max_tokens": 9, "ignore_eos": True, "min_tokens": 3, "stream": True, "temperature": 0, "n": 1, "stop": []}
    options = {"include_usage": True, "continuous_usage_stats": True}
    params = parse("completions", COMPLETION | extra | {"stream_options": options})
    assert (params.max_tokens, params.min_tokens, params.ignore_eos) == (9, 3, True)
    assert params.stream
    assert params.include_usage
    assert params.continuous_usage
    assert parse("chat", CHAT | {"max_tokens": 9, "max_completion_tokens": 5}).max_tokens == 5
    assert parse("responses", RESPONSE | {"max_output_tokens": 5}).max_tokens == 5


def test_sampling_fields_reach_the_engine() -> None:
    assert parse("chat", CHAT | {"presence_penalty": 0.0, "repetition_penalty": 1.0, "logit_bias": None}).n == 1
    fields = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "seed": 3, "stop": "x", "stop_token_ids": [300], "n": 2}
    params = parse("chat", CHAT | fields | {"logprobs": True, "top_logprobs": 2, "priority": -1})
    sampling = params.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.7, 0.9, 40, 3)
    assert (sampling.stop, sampling.stop_token_ids, sampling.logprobs) == (("x",), {300}, 2)
    assert (params.n, params.priority) == (2, -1)
    assert parse("completions", COMPLETION | {"logprobs": 0}).sampling.logprobs == 0
    assert parse("chat", CHAT | {"logprobs": True}).sampling.logprobs == 0
    assert parse("chat", CHAT | {"top_k": -1}).sampling.top_k == 0


@pytest.mark.parametrize("prompt", ["hello", ["hello"], list(b"hello"), [list(b"hello")]])
def test_a_prompt_is_text_or_token_ids(prompt: Any) -> None:
    assert parse("completions", {"prompt": prompt}).prompts == [list(b"hello")]


def test_several_prompts_are_several_choices_and_share_the_longest_ones_room() -> None:
    assert parse("completions", {"prompt": ["ab", "cd"]}).prompts == [list(b"ab"), list(b"cd")]
    assert parse("completions", {"prompt": ["a", "x" * 60]}).max_tokens == 4


def test_text_parts_of_a_message_are_joined() -> None:
    parts = [{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}]
    message = {"messages": [{"role": "user", "content": parts}]}
    assert parse("chat", message).prompts == parse("chat", CHAT).prompts
    given = [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]
    assert parse("responses", {"input": given}).prompts == parse("chat", CHAT).prompts


def test_instructions_are_a_system_message() -> None:
    asked = {"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "hello"}]}
    assert parse("responses", RESPONSE | {"instructions": "be"}).prompts == parse("chat", asked).prompts


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        ("chat", b"{not json", None),
        ("chat", b"[]", None),
        ("chat", b"\xff\xfe", None),
        ("chat", {}, "body.messages"),
        ("chat", {"messages": "hello"}, "body.messages"),
        ("chat", {"messages": []}, "messages"),
        ("chat", {"messages": [{"role": "wizard", "content": "x"}]}, "messages"),
        ("chat", {"messages": [{"role": ["user"], "content": "x"}]}, "messages"),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ("chat", CHAT | {"n": 0}, "n"),
        ("chat", CHAT | {"n": 1000}, "n"),
        ("chat", CHAT | {"stop": [1]}, "body.stop"),
        ("chat", CHAT | {"stop": ["x"] * 17}, "stop"),
        ("chat", CHAT | {"stop_token_ids": [5000]}, "body.stop_token_ids"),
        ("chat", CHAT | {"include_stop_str_in_output": True}, "include_stop_str_in_output"),
        ("chat", CHAT | {"presence_penalty": 0.5}, "presence_penalty"),
        ("chat", CHAT | {"response_format": {"type": "json_object"}}, "response_format"),
        ("chat", CHAT | {"stream_options": {"include_usage": True}}, "stream_options"),
        ("chat", CHAT | {"max_tokens": 0}, "max_tokens"),
        ("chat", CHAT | {"max_tokens": "9"}, "body.max_tokens"),
        ("chat", CHAT | {"max_tokens": True}, "body.max_tokens"),
        ("chat", CHAT | {"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
        ("chat", CHAT | {"stream": "yes"}, "body.stream"),
        ("chat", CHAT | {"stream_options": 1}, "body.stream_options"),
        ("chat", CHAT | {"max_tokens": 60}, "prompt"),
        ("chat", CHAT | {"max_tokens": 65}, "max_tokens"),
        ("chat", CHAT | {"temperature": 2.5}, "temperature"),
        ("chat", CHAT | {"temperature": -0.1}, "temperature"),
        ("chat", CHAT | {"temperature": "hot"}, "body.temperature"),
        ("chat", CHAT | {"top_p": 0}, "top_p"),
        ("chat", CHAT | {"top_p": 1.1}, "top_p"),
        ("chat", CHAT | {"top_k": -2}, "top_k"),
        ("chat", CHAT | {"seed": 1.5}, "body.seed"),
        ("chat", CHAT | {"top_logprobs": 2}, "top_logprobs"),
        ("chat", CHAT | {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("completions", {}, "body.prompt"),
        ("completions", {"prompt": ""}, "prompt"),
        ("completions", {"prompt": []}, "prompt"),
        ("completions", {"prompt": ["a", 1]}, "body.prompt"),
        ("completions", {"prompt": 5}, "body.prompt"),
        ("completions", {"prompt": [1024]}, "prompt"),
        ("completions", {"prompt": "x" * 64}, "prompt"),
        ("completions", {"prompt": "x", "min_tokens": -1}, "min_tokens"),
        ("completions", {"prompt": "x", "logprobs": True}, "body.logprobs"),
        ("completions", {"prompt": "x", "echo": True, "logprobs": 1}, "echo"),
        ("responses", {}, "body.input"),
        ("responses", {"input": 5}, "body.input"),
        ("responses", RESPONSE | {"previous_response_id": "resp_1"}, "previous_response_id"),
        ("responses", RESPONSE | {"instructions": ["x"]}, "body.instructions"),
    ],
)
def test_a_bad_body_is_refused_with_400_a_reason_and_the_field(kind: api.Api, fields: Any, param: str | None) -> None:
    status, error = refused(kind, fields)
    assert status == error["code"] == 400
    assert error["param"] == param
    assert error["message"]


def test_refusals_read_as_a_recorded_vllm_words_them() -> None:
    assert refused("chat", CHAT | {"max_tokens": -1})[1] == {
        "message": "max_tokens must be at least 1, got -1. (parameter=max_tokens, value=-1)",
        "type": "BadRequestError",
        "param": "max_tokens",
        "code": 400,
    }
    temperature = refused("completions", COMPLETION | {"temperature": 5.0})[1]["message"]
    assert temperature == "temperature must be in [0, 2], got 5.0. (parameter=temperature, value=5.0)"
    bad_type = refused("chat", CHAT | {"messages": "not a list"})[1]
    assert bad_type["type"] == "Bad Request"
    assert bad_type["message"] == (
        "1 validation error:\n  {'type': 'list_type', 'loc': 'body.messages', "
        "'msg': 'Input should be a valid list', 'input': 'not a list'}"
    )


def test_an_unknown_model_is_404_as_vllm_answers() -> None:
    status, error = refused("chat", CHAT | {"model": "other"})
    assert (status, error["type"], error["param"]) == (404, "NotFoundError", "model")
    assert error["message"] == "The model `other` does not exist. Valid aliases: tiny."


def data(event: bytes) -> dict[str, Any]:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    return dict(json.loads(event[6:]))


def writer(kind: api.Api, **fields: Any) -> OpenAIWriter:
    base = CHAT if kind == "chat" else COMPLETION
    return OpenAIWriter(kind == "chat", HEADING, parse(kind, base | fields), token_text)


@pytest.mark.parametrize("text", ['"', "\\", "a", "<300>", "\u00e9"])
@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_a_plain_event_is_the_same_as_one_that_is_put_together(kind: api.Api, text: str) -> None:
    written = writer(kind)
    assert data(written.plain(1, text)) == data(written.piece(Piece(1, text, [65]), USAGE))


def test_a_token_event_carries_the_tokens_text() -> None:
    chat, completion = data(writer("chat").plain(0, "x")), data(writer("completions").plain(0, "x"))
    assert chat["choices"][0] == {
        "index": 0,
        "delta": {"content": "x"},
        "logprobs": None,
        "finish_reason": None,
        "token_ids": None,
    }
    assert completion["choices"][0]["text"] == "x"
    head = (chat["object"], chat["id"], chat["created"], chat["model"])
    assert head == ("chat.completion.chunk", "chatcmpl-1", 7, "tiny")


def test_the_usage_event_has_no_choices_and_the_role_event_no_text() -> None:
    written = writer("chat", stream=True, stream_options={"include_usage": True})
    closing = written.closing(USAGE)
    assert closing.endswith(b"\n\ndata: [DONE]\n\n")
    last, first = data(closing.removesuffix(b"data: [DONE]\n\n")), data(written.opening(USAGE))
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "usage" not in first


def test_usage_stands_in_every_event_where_that_is_asked_for() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    written = writer("chat", stream=True, stream_options=options)
    events = [written.opening(USAGE), written.piece(Piece(0, "x", [65]), USAGE)]
    assert [data(event)["usage"]["completion_tokens"] for event in events] == [3, 3]


def test_text_offsets_of_completions_logprobs_go_on_from_event_to_event() -> None:
    written = writer("completions", logprobs=1)
    drawn = Logprobs(300, -1.5, [(65, -1.0)])
    first, second = (data(written.piece(Piece(0, "x", [300], [drawn]), USAGE)) for _ in range(2))
    assert first["choices"][0]["logprobs"] == {
        "text_offset": [0],
        "token_logprobs": [-1.5],
        "tokens": ["<300>"],
        "top_logprobs": [{"<300>": -1.5, "A": -1.0}],
    }
    assert second["choices"][0]["logprobs"]["text_offset"] == [5]


def test_an_impossible_token_is_valid_json() -> None:
    piece = Piece(0, "x", [300], [Logprobs(300, float("-inf"), [(65, float("-inf"))])])
    event = data(writer("chat", logprobs=True, top_logprobs=1).piece(piece, USAGE))
    assert event["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0


def test_events_of_a_response_are_numbered_through_and_end_with_the_counts() -> None:
    written = ResponsesWriter(HEADING, parse("responses", RESPONSE | {"max_output_tokens": 3}))
    text = written.opening(USAGE) + written.plain(0, "a")
    text += written.piece(Piece(0, "b", [66], None, "length"), USAGE) + written.closing(USAGE)
    events = [json.loads(part.partition("data: ")[2]) for part in text.decode().split("\n\n") if part]
    assert [event["sequence_number"] for event in events] == list(range(10))
    assert [event["delta"] for event in events if event["type"].endswith(".delta")] == ["a", "b"]
    response = events[-1]["response"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["content"][0]["text"] == "ab"
    assert response["usage"]["output_tokens"] == 3


def test_a_whole_answer_joins_the_pieces_of_each_choice() -> None:
    choice = Choice()
    for piece in (Piece(0, "a", [65]), Piece(0, "b", [66], None, "stop", "c")):
        choice.add(piece)
    answer = json.loads(writer("chat", return_token_ids=True).whole([choice], USAGE))
    assert answer["choices"][0]["message"]["content"] == "ab"
    assert answer["choices"][0]["token_ids"] == [65, 66]
    assert answer["choices"][0]["stop_reason"] == "c"


def fed(stop: list[str], *pieces: str) -> tuple[list[str], str | None]:
    stops = StopStrings(stop)
    texts = [stops.feed(piece) for piece in pieces]
    return [*texts, stops.rest()], stops.matched


def test_a_stop_string_over_several_pieces_never_leaves() -> None:
    assert fed(["STOP"], "abS", "TO", "P and more") == (["ab", "", "", ""], "STOP")
    assert fed(["<300>"], "a", "<300>", "b")[1] == "<300>"


def test_what_only_looked_like_a_stop_string_is_let_go() -> None:
    assert fed(["STOP"], "aST", "ART") == (["a", "START", ""], None)
    assert fed(["STOP"], "aST") == (["a", "ST"], None)
    assert fed([], "a", "b") == (["a", "b", ""], None)


def test_the_first_of_several_stop_strings_ends_the_answer() -> None:
    assert fed(["b", "abc"], "xabcb") == (["x", ""], "abc")


def test_a_stop_string_below_min_tokens_is_text() -> None:
    stops = StopStrings(["x"])
    assert stops.feed("axb", may_stop=False) == "axb"
    assert stops.feed("axb") == "a"
