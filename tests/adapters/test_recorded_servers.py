"""Answers that real servers gave, byte for byte and read for read: our figures are the server's own."""

from __future__ import annotations

from typing import Any

import pytest
from support.streams import (
    MS,
    naive_events,
    naive_first_token_ns,
    naive_text,
    naive_tokens,
    read_answer,
    reads_of,
    recorded,
    recorded_servers,
)

from engine_adapters.base import StreamOutcome

ANSWERS = [
    pytest.param(case, id=f"{server}:{name}")
    for server in recorded_servers()
    for name, case in recorded(server)["cases"].items()
    if case["http"] == 200
]
TWINS = {  # the same greedy request, streamed and not
    "chat_stream_usage": "chat_nonstream",
    "completion_stream_usage": "completion_nonstream",
    "native_completion_stream": "native_completion_nonstream",
    "native_generate_stream": "native_generate_nonstream",
}
CUT = ("chat_stream_cut_by_client", "chat_stream_server_killed_midway")


def outcome_of(case: dict[str, Any]) -> StreamOutcome:
    return read_answer(case["api"], reads_of(case), streamed=bool(case["request"].get("stream")))


@pytest.mark.parametrize("case", ANSWERS)
def test_text_and_token_count_are_those_of_a_second_naive_reader(case: dict[str, Any]) -> None:
    outcome, body = outcome_of(case), case["body"].encode()
    assert outcome.text == naive_text(body)
    counted = naive_tokens(body)
    if counted is not None:
        assert (outcome.output_tokens, outcome.output_tokens_source) == (counted, "usage")
    elif case["request"].get("stream"):
        assert outcome.output_tokens_source in ("events", "event_counts")


@pytest.mark.parametrize("case", ANSWERS)
def test_ttft_is_the_read_that_completed_the_first_text(case: dict[str, Any]) -> None:
    outcome, first_ns = outcome_of(case), naive_first_token_ns(case)
    if not case["request"].get("stream"):
        first_ns = reads_of(case)[-1][0]
    assert outcome.first_token_at_ns is not None
    assert first_ns is not None
    assert abs(outcome.first_token_at_ns - first_ns) <= max(2 * MS, 0.05 * first_ns)


@pytest.mark.parametrize("server", recorded_servers())
def test_a_streamed_answer_is_the_servers_own_unstreamed_one(server: str) -> None:
    cases = recorded(server)["cases"]
    for streamed, whole in TWINS.items():
        if streamed in cases and whole in cases:
            ours, its = outcome_of(cases[streamed]), outcome_of(cases[whole])
            assert ours.finish_reason == "length"  # the model never stops by itself
            assert (ours.text, ours.output_tokens, ours.prompt_tokens, ours.finish_reason) == (
                its.text,
                its.output_tokens,
                its.prompt_tokens,
                its.finish_reason,
            )


@pytest.mark.parametrize("server", recorded_servers())
def test_only_an_answer_that_was_cut_is_a_failure(server: str) -> None:
    for name, case in recorded(server)["cases"].items():
        if case["http"] == 200:
            outcome = outcome_of(case)
            assert (outcome.error_class == "disconnected") == (name in CUT), (name, outcome.error)


def test_a_request_body_of_ours_is_what_the_recordings_sent() -> None:
    """Field by field, for the fields that both have: names and shapes are those that real servers took."""
    from engine_adapters.apis import DIALECTS
    from engine_adapters.base import Request
    from engine_adapters.dialect import Asking

    sent = {
        "openai-chat": ("vllm", "chat_stream_usage"),
        "openai-completions": ("vllm", "completion_stream_usage"),
        "openai-responses": ("vllm", "responses_stream"),
        "anthropic": ("vllm", "messages_stream_anthropic"),
        "sglang": ("sglang", "native_generate_stream"),
        "llama-cpp": ("llama-cpp", "native_completion_stream"),
    }
    for api, (server, name) in sent.items():
        theirs = recorded(server)["cases"][name]["request"]
        ours = DIALECTS[api].body(Request("x", 16), Asking("tiny"))
        assert theirs.keys() <= ours.keys(), api
        assert {key: type(value) for key, value in theirs.items() if not isinstance(value, list)} == {
            key: type(ours[key]) for key, value in theirs.items() if not isinstance(value, list)
        }


def test_tokens_of_each_read_are_known_where_the_server_counts_in_every_event() -> None:
    for server, name in (
        ("vllm", "chat_stream_continuous_usage"),
        ("vllm", "completion_stream_return_token_ids"),
        ("vllm", "chat_stream_logprobs"),
        ("sglang", "chat_stream_continuous_usage"),
        ("sglang", "native_generate_stream"),
        ("llama-cpp", "native_completion_stream"),
    ):
        outcome = outcome_of(recorded(server)["cases"][name])
        assert len(outcome.read_tokens) == len(outcome.read_at_ns), (server, name)
        assert sum(outcome.read_tokens) == outcome.output_tokens, (server, name)


def test_tokens_without_text_are_counted_and_are_no_token_event() -> None:
    case = recorded("vllm-partial-utf8")["cases"]["chat_stream_continuous_usage"]
    outcome = outcome_of(case)
    silent = [
        e for e in naive_events(case["body"].encode()) if e["choices"] and not e["choices"][0]["delta"]["content"]
    ]
    assert len(silent) > 1  # the role's event is one
    assert outcome.n_token_events < (outcome.output_tokens or 0)
    assert sum(outcome.read_tokens) == outcome.output_tokens


def test_several_tokens_an_event_are_counted_by_usage() -> None:
    outcome = outcome_of(recorded("vllm")["cases"]["chat_stream_temperature2_ignore_eos"])
    assert (outcome.n_token_events, outcome.output_tokens) == (3, 24)


@pytest.mark.parametrize("server", recorded_servers())
def test_a_refused_request_has_the_servers_sentence(server: str) -> None:
    from engine_adapters.transport import error_message

    for name, case in recorded(server)["cases"].items():
        if case["http"] != 200:
            sentence = error_message(case["body"])
            assert sentence, name
            assert not sentence.startswith("{"), name
