"""Answers over real sockets: the shapes of a recorded vLLM, and what each field of a request does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine_server import Running, engine_server

DATA = Path(__file__).parent.parent / "data" / "vllm"
COMPLETION = {"prompt": "hello", "max_tokens": 5, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "ignore_eos": True}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
EVERY = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
# Fields of a recorded vLLM that say nothing here: settings and parts of its own.
ABSENT = {"prompt_logprobs", "prompt_token_ids", "prompt_text", "routed_experts", "annotations", "audio", "metrics"}
ABSENT |= {"function_call", "kv_transfer_params", "ec_transfer_params", "completion_tokens_details", "phase", "text"}
ABSENT |= {"top_logprobs", "user", "presence_penalty", "frequency_penalty", "input_messages", "output_messages"}
ABSENT |= {"max_tool_calls", "prompt", "reasoning", "cache_write_tokens", "input_tokens_per_turn"}
ABSENT |= {"cached_tokens_per_turn", "tool_output_tokens", "output_tokens_per_turn", "tool_output_tokens_per_turn"}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with engine_server() as running:
        yield running


def events(text: str) -> list[dict[str, Any]]:
    """The JSON of each event; a stream of chat or completions ends in [DONE]."""
    payloads = [part.partition("data: ")[2] for part in text.split("\n\n") if part]
    if payloads[-1] == "[DONE]":
        payloads.pop()
    return [json.loads(payload) for payload in payloads]


def post(server: Running, path: str, body: Any) -> Any:
    """The JSON of an answer, or of its events."""
    status, headers, text = server.ask(path, body)
    assert status == 200, text
    return events(text) if headers["content-type"].startswith("text/event-stream") else json.loads(text)


def said(answer: list[dict[str, Any]], index: int = 0) -> str:
    """The text of one choice of a stream."""
    choices = [choice for event in answer for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices)


def lacks(theirs: Any, ours: Any, where: str = "") -> list[str]:
    """What of a recorded answer is missing in ours, or has another type; null in the recording asks for nothing."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        wanted = {key: value for key, value in theirs.items() if value is not None and key not in ABSENT}
        missing = [f"{where}.{key}" for key in wanted if key not in ours]
        return missing + [
            line for key in wanted if key in ours for line in lacks(wanted[key], ours[key], f"{where}.{key}")
        ]
    if isinstance(theirs, list) and isinstance(ours, list):
        return lacks(theirs[0], ours[0], f"{where}[0]") if theirs and ours else []
    same = isinstance(ours, type(theirs)) or (isinstance(theirs, float) and isinstance(ours, int | float))
    return [] if same else [f"{where}: {type(theirs).__name__}, ours {type(ours).__name__}"]


def recorded(case: str) -> tuple[dict[str, Any], str]:
    request = json.loads((DATA / f"{case}.request.json").read_text())
    return request, (DATA / f"{case}.body").read_text()


@pytest.mark.parametrize(
    "case",
    [
        "chat_nonstream",
        "chat_stream_continuous_usage",
        "chat_stream_logprobs",
        "chat_stream_n2",
        "completion_nonstream",
        "completion_stream_usage",
        "completion_stream_return_token_ids",
        "completion_batch_prompts",
        "responses_stream",
    ],
)
def test_the_same_request_brings_the_fields_of_a_recorded_vllm_in_the_same_order_of_events(
    server: Running, case: str
) -> None:
    request, text = recorded(case)
    theirs = events(text) if text.startswith(("data:", "event:")) else json.loads(text)
    ours = post(server, request["path"], request["body"])
    if isinstance(theirs, list):
        kinds = [[kind(event) for event in each] for each in (theirs, ours)]
        assert collapsed(kinds[0]) == collapsed(kinds[1])
        first_of = {kind(event): event for event in reversed(ours)}
        assert [line for event in theirs for line in lacks(event, first_of[kind(event)])] == []
    else:
        assert lacks(theirs, ours) == []


def kind(event: dict[str, Any]) -> str:
    """What an event is, by what stands in it."""
    if "type" in event:
        return str(event["type"])
    if not event["choices"]:
        return "usage"
    choice = event["choices"][0]
    if choice["finish_reason"]:
        return "end"
    return "role" if "role" in choice.get("delta", {}) else "token"


def collapsed(kinds: list[str]) -> list[str]:
    """Each run of one kind once; the choices of a request may end in any order."""
    runs = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before]
    return [kind for i, kind in enumerate(runs) if kind not in runs[:i]]


@pytest.mark.parametrize("case", ["tokenize", "models"])
def test_other_endpoints_have_the_fields_of_a_recorded_vllm(server: Running, case: str) -> None:
    request, text = recorded(case)
    status, _, ours = server.ask(request["path"], request["body"])
    assert status == 200
    assert lacks(json.loads(text), json.loads(ours)) == []


@pytest.mark.parametrize(
    "case",
    [
        "error_unknown_model",
        "error_max_tokens_too_large",
        "error_in_stream_bad_param",
        "completion_stream_raw_bytes",
        "error_bad_body",
    ],
)
def test_refusals_have_the_status_type_and_param_of_a_recorded_vllm(server: Running, case: str) -> None:
    request, text = recorded(case)
    theirs = json.loads(text)["error"]
    status, _, answer = server.ask(request["path"], request["body"])
    ours = json.loads(answer)["error"]
    assert (status, ours["code"]) == (theirs["code"], theirs["code"])
    assert (ours["type"], ours["param"]) == (theirs["type"], theirs["param"])


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)])
def test_usage_stands_in_every_event_and_counts_up(server: Running, path: str, body: dict[str, Any]) -> None:
    answer = post(server, path, body | EVERY)
    counts = [event["usage"]["completion_tokens"] for event in answer]
    assert [n for n in counts if n] == [1, 2, 3, 4, 5, 5]
    assert all(event["usage"]["prompt_tokens"] == answer[-1]["usage"]["prompt_tokens"] for event in answer)
    without = post(server, path, body | STREAM)
    assert ["usage" in event for event in without] == [False] * (len(without) - 1) + [True]


def test_without_asking_there_is_no_usage_in_a_stream(server: Running) -> None:
    assert not any("usage" in event for event in post(server, "/v1/completions", COMPLETION | {"stream": True}))


def test_prompt_tokens_out_of_the_cache_are_told(server: Running) -> None:
    body = {"prompt": "a prefix that is longer than two blocks of the cache", "max_tokens": 2}
    details = [post(server, "/v1/completions", body)["usage"]["prompt_tokens_details"] for _ in range(2)]
    assert details == [{"cached_tokens": 0}, {"cached_tokens": 48}]
    assert server.ask("/reset_prefix_cache", {})[0] == 200
    assert post(server, "/v1/completions", body)["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_n_choices_count_the_prompt_once_and_each_output(server: Running) -> None:
    answer = post(server, "/v1/completions", COMPLETION | {"n": 3})
    assert [choice["text"] for choice in answer["choices"]] == ["abcde"] * 3
    assert answer["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 5,
        "completion_tokens": 15,
        "total_tokens": 20,
        "prompt_tokens_details": None,
    }
    streamed = post(server, "/v1/chat/completions", CHAT | STREAM | {"n": 2})
    assert [said(streamed, index) for index in (0, 1)] == ["abcde", "abcde"]


def test_several_prompts_are_answered_in_their_order(server: Running) -> None:
    answer = post(server, "/v1/completions", COMPLETION | {"prompt": ["a", "bcd"], "echo": True, "n": 2})
    assert [choice["text"] for choice in answer["choices"]] == ["aabcde", "aabcde", "bcdabcde", "bcdabcde"]
    assert answer["usage"]["prompt_tokens"] == 4


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_string_ends_the_answer_is_no_part_of_it_and_is_named(server: Running, stream: bool) -> None:
    body = CHAT | {"max_tokens": 1000, "stop": ["xyz", "hij"], "stream": stream}
    answer = post(server, "/v1/chat/completions", body)
    if stream:
        text, last = said(answer), answer[-1]["choices"][0]
    else:
        last = answer["choices"][0]
        text = last["message"]["content"]
    assert text == "abcdefg"
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "hij")


def test_a_stop_string_counts_as_a_stop_in_the_metrics(server: Running) -> None:
    post(server, "/v1/completions", COMPLETION | {"stop": "c"})
    finished = server.server.core.scheduler.stats.finished
    assert finished["stop"] > 0
    assert finished["abort"] == 0


def test_a_stop_string_below_min_tokens_does_not_stop(server: Running) -> None:
    answer = post(server, "/v1/completions", {"prompt": "x", "max_tokens": 60, "min_tokens": 20, "stop": "c"})
    assert answer["choices"][0]["text"] == "abcdefghijklmnopqrstuvwxyzab"


def test_a_stop_token_ends_the_answer(server: Running) -> None:
    answer = post(server, "/v1/completions", {"prompt": "x", "max_tokens": 60, "stop_token_ids": [ord("d")]})
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("abc", "stop")


def test_token_ids_are_told_where_they_are_asked_for(server: Running) -> None:
    answer = post(server, "/v1/completions", COMPLETION | {"return_token_ids": True, "stream": True})
    assert [event["choices"][0]["token_ids"] for event in answer] == [[97], [98], [99], [100], [101]]


def test_logprobs_stand_beside_their_tokens(server: Running) -> None:
    answer = post(server, "/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2})
    content = answer["choices"][0]["logprobs"]["content"]
    assert [each["token"] for each in content] == list("abcde")
    assert [each["token"] for each in content[0]["top_logprobs"]] == ["A", "B"]
    plain = post(server, "/v1/completions", COMPLETION | {"logprobs": 0})["choices"][0]["logprobs"]
    assert plain["text_offset"] == [0, 1, 2, 3, 4]
    assert plain["top_logprobs"][0] == {"a": -2.0}


def test_a_response_streamed_and_whole_says_the_same(server: Running) -> None:
    body = {"input": "hello", "max_output_tokens": 5}
    whole = post(server, "/v1/responses", body)
    streamed = post(server, "/v1/responses", body | {"stream": True})
    assert whole["output"][0]["content"][0]["text"] == "abcde"
    assert streamed[-1]["response"]["output"][0]["content"] == whole["output"][0]["content"]
    assert streamed[-1]["response"]["usage"]["output_tokens"] == whole["usage"]["output_tokens"] == 5


def test_text_becomes_tokens_and_again_text(server: Running) -> None:
    tokens = post(server, "/tokenize", {"prompt": "hé", "return_token_strs": True})
    assert tokens["tokens"] == list("hé".encode())
    assert len(tokens["token_strs"]) == tokens["count"] == 3
    assert post(server, "/detokenize", {"tokens": [104, 105, 300]}) == {"prompt": "hi<300>"}
    assert post(server, "/detokenize", {"tokens": []}) == {"prompt": ""}
    assert server.ask("/detokenize", {"tokens": [5000]})[0] == 400


def test_an_unknown_path_is_404_in_vllms_words(server: Running) -> None:
    status, _, text = server.ask("/nowhere")
    assert (status, json.loads(text)) == (404, {"detail": "Not Found"})
    assert server.ask("/v1/completions")[0] == 405


def test_http_exchanges_are_counted_by_route_and_status(server: Running) -> None:
    before = dict(server.server.stats.requests)
    server.ask("/v1/completions", COMPLETION)
    server.ask("/v1/completions", COMPLETION | {"max_tokens": 0})
    server.ask("/nowhere")
    server.ask("/metrics")
    new = {key: n - before.get(key, 0) for key, n in server.server.stats.requests.items()}
    assert {key: n for key, n in new.items() if n} == {
        ("/v1/completions", "POST", "2xx"): 1,
        ("/v1/completions", "POST", "4xx"): 1,
        ("none", "GET", "4xx"): 1,
    }
