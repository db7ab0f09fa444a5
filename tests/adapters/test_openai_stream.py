"""What the events of an OpenAI stream mean: which is the first token, how many came, how it ended."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine_adapters.base import ErrorClass, StreamOutcome
from engine_adapters.dialect import make_reader
from engine_adapters.openai import CHAT

MS = 1_000_000


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n"


def read(*reads: tuple[int, bytes]) -> StreamOutcome:
    """The outcome of a stream whose reads came at the given milliseconds."""
    outcome = StreamOutcome(http_status=200)
    reader = make_reader(outcome, CHAT)
    for at_ms, data in reads:
        reader.on_read(at_ms * MS, data)
    outcome.stream_end_at_ns = reads[-1][0] * MS if reads else 0
    reader.finish()
    return outcome


DONE = b"data: [DONE]\n\n"


def test_a_role_only_event_is_no_token() -> None:
    outcome = read(
        (5, chunk({"role": "assistant", "content": ""})),
        (80, chunk({"content": "a"})),
        (90, chunk({"content": "b"}, "length") + DONE),
    )
    assert outcome.first_token_at_ns == 80 * MS
    assert outcome.last_token_at_ns == 90 * MS
    assert (outcome.ok, outcome.n_token_events, outcome.text) == (True, 2, "ab")


def test_reasoning_starts_ttft_and_not_ttfo() -> None:
    for key in ("reasoning", "reasoning_content"):
        outcome = read((10, chunk({key: "hm"})), (50, chunk({"content": "yes"}, "stop")), (51, DONE))
        assert outcome.first_token_at_ns == 10 * MS
        assert outcome.first_answer_at_ns == 50 * MS


def test_refusals_and_tool_calls_are_tokens() -> None:
    assert read((10, chunk({"refusal": "no"}, "stop"))).first_token_at_ns == 10 * MS
    assert read((10, chunk({"tool_calls": [{"index": 0}]}, "tool_calls"))).first_token_at_ns == 10 * MS


def test_usage_counts_wherever_it_stands_and_is_not_decode_time() -> None:
    usage = {"prompt_tokens": 20, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}
    outcome = read(
        (10, chunk({"content": "a"})), (20, chunk({"content": "b"}, "length")), (500, chunk(usage=usage) + DONE)
    )
    assert outcome.last_token_at_ns == 20 * MS
    assert (outcome.output_tokens, outcome.output_tokens_source) == (7, "usage")
    assert (outcome.prompt_tokens, outcome.cached_tokens) == (20, 4)


def test_a_usage_of_zero_after_tokens_is_not_believed() -> None:
    zeros = {"prompt_tokens": 0, "completion_tokens": 0}
    outcome = read(
        (10, chunk({"content": "a"}, usage=zeros)), (20, chunk({"content": "b"}, "stop", usage=zeros)), (21, DONE)
    )
    assert (outcome.output_tokens, outcome.output_tokens_source) == (2, "events")


def test_tokens_of_one_read_share_its_instant() -> None:
    outcome = read(
        (10, chunk({"content": "a"})), (40, chunk({"content": "b"}) + chunk({"content": "c"}, "length")), (41, DONE)
    )
    assert [(at // MS, n) for at, n in zip(outcome.read_at_ns, outcome.read_events, strict=True)] == [(10, 1), (40, 2)]


def test_an_error_inside_a_200_stream_is_a_failure_that_keeps_its_instants() -> None:
    outcome = read(
        (10, chunk({"content": "a"})), (20, b'data: {"error": {"message": "out of memory"}}\n\n'), (21, DONE)
    )
    assert (outcome.error_class, outcome.error) == ("stream_error", "out of memory")
    assert outcome.first_token_at_ns == 10 * MS


def test_a_stream_without_a_terminal_mark_was_cut() -> None:
    assert read((10, chunk({"content": "a"}))).error_class == "disconnected"


def test_a_finish_reason_ends_a_stream_without_done() -> None:
    assert read((10, chunk({"content": "a"}, "stop"))).ok


def test_a_last_event_without_its_blank_line_still_counts() -> None:
    assert read((10, chunk({"content": "a"}, "stop").rstrip(b"\n"))).n_token_events == 1


def test_a_complete_answer_without_a_token_is_a_failure() -> None:
    assert read((10, chunk({"role": "assistant"}, "stop") + DONE)).error_class == "empty"


def test_an_event_that_is_not_json_is_named() -> None:
    outcome = read((10, b"data: <html>\n\n"))
    assert outcome.error_class == "protocol"
    assert "<html>" in (outcome.error or "")


def test_completions_text_is_a_token() -> None:
    event = b'data: {"choices": [{"index": 0, "text": "x", "finish_reason": "length"}]}\n\n'
    assert read((10, event), (11, DONE)).text == "x"


def test_one_token_case_b70() -> None:
    usage = {"prompt_tokens": 20, "completion_tokens": 1}
    outcome = read((80, chunk({"role": "assistant", "content": "X"}, "length")), (81, chunk(usage=usage) + DONE))
    assert (outcome.first_token_at_ns, outcome.output_tokens, outcome.ok) == (80 * MS, 1, True)
    assert len(outcome.read_at_ns) == 1


def test_of_several_choices_the_first_is_the_text_and_all_are_counted() -> None:
    def piece(index: int, content: str, finish: str | None = None) -> bytes:
        choice = {"index": index, "delta": {"content": content}, "finish_reason": finish}
        return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"

    reads = [(10, piece(0, "a")), (11, piece(1, "x")), (12, piece(0, "b", "stop"))]
    cut = read(*reads)
    assert (cut.text, cut.hidden_text, cut.n_token_events) == ("ab", "x", 3)
    assert cut.error_class == "disconnected"  # the other choice has not ended
    assert read(*reads, (13, piece(1, "y", "length"))).ok


def test_content_in_parts_is_text_and_its_thinking_is_reasoning() -> None:
    thinking = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]
    outcome = read(
        (10, chunk({"content": thinking})), (20, chunk({"content": [{"type": "text", "text": "yes"}]}, "stop"))
    )
    assert (outcome.text, outcome.hidden_text) == ("yes", "hm")
    assert (outcome.first_token_at_ns, outcome.first_answer_at_ns) == (10 * MS, 20 * MS)


def test_the_old_function_call_is_a_tool_call() -> None:
    outcome = read((10, chunk({"function_call": {"name": "f", "arguments": "{}"}}, "function_call")))
    assert (outcome.first_answer_at_ns, outcome.hidden_text) == (10 * MS, "f{}")


def test_an_event_of_logprobs_alone_is_no_token_event_and_its_tokens_count() -> None:
    def with_logprobs(content: str, n: int, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish, "logprobs": {"content": [{}] * n}}
        return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"

    outcome = read((10, with_logprobs("", 1)), (20, with_logprobs("a", 1)), (30, with_logprobs("b", 2, "stop")))
    assert (outcome.first_token_at_ns, outcome.n_token_events) == (20 * MS, 2)
    assert (outcome.output_tokens, outcome.output_tokens_source) == (4, "event_counts")
    assert list(outcome.read_tokens) == [2, 2]


def test_usage_in_every_event_gives_the_tokens_of_each_read() -> None:
    def at(n: int) -> dict[str, Any]:
        return {"usage": {"prompt_tokens": 5, "completion_tokens": n}}

    outcome = read(
        (5, chunk({"role": "assistant", "content": ""}, **at(0))),
        (10, chunk({"content": "a"}, **at(1))),
        (20, chunk({"content": "bcd"}, **at(4))),
        (30, chunk({"content": "e"}, **at(5)) + chunk({"content": "f"}, "length", **at(6))),
        (31, chunk(**at(6)) + DONE),
    )
    assert list(outcome.read_tokens) == [1, 3, 2]
    assert (outcome.output_tokens, outcome.n_token_events) == (6, 4)


def test_an_end_token_without_text_does_not_spoil_the_counts_of_the_reads() -> None:
    def counted(last: int, finish: str) -> StreamOutcome:
        return read(
            (10, chunk({"content": "a"}, usage={"completion_tokens": 2})),
            (20, chunk({"content": "b"}, usage={"completion_tokens": 3})),
            (30, chunk({"content": ""}, finish, usage={"completion_tokens": last}) + DONE),
        )

    assert list(counted(4, "stop").read_tokens) == [2, 1]
    assert list(counted(4, "length").read_tokens) == []  # a token is missing
    assert list(counted(9, "stop").read_tokens) == []


def test_a_count_at_the_end_alone_says_nothing_of_the_reads() -> None:
    usage = {"completion_tokens": 9}
    outcome = read((10, chunk({"content": "a"})), (20, chunk({"content": "b"}, "stop", usage=usage)), (21, DONE))
    assert (outcome.output_tokens, list(outcome.read_tokens)) == (9, [])


def test_the_last_believable_count_holds_when_zeros_follow() -> None:
    counted, zeros = {"completion_tokens": 2}, {"completion_tokens": 0}
    outcome = read((10, chunk({"content": "a"}, usage=counted)), (20, chunk({}, "stop", usage=zeros)), (21, DONE))
    assert (outcome.output_tokens, outcome.output_tokens_source) == (2, "usage")


def test_what_is_no_count_is_not_believed() -> None:
    for odd in (True, "7", -3, None, [1], 1e300):
        outcome = read((10, chunk({"content": "a"}, "stop", usage={"completion_tokens": odd})), (11, DONE))
        assert (outcome.output_tokens, outcome.output_tokens_source) == (1, "events"), odd


def test_errors_of_every_shape_are_failures_with_their_sentence() -> None:
    for error in (
        {"error": {"message": "boom"}},
        {"error": "boom"},
        {"object": "error", "message": "boom", "code": 500},
        {"detail": "boom"},
        {"error": {"error": {"message": "boom"}}},
    ):
        outcome = read((10, chunk({"content": "a"})), (20, b"data: " + json.dumps(error).encode() + b"\n\n"))
        assert (outcome.error_class, outcome.error) == ("stream_error", "boom"), error


def test_an_answer_that_was_not_streamed_is_read_where_a_stream_was_asked_for() -> None:
    whole = {"choices": [{"index": 0, "message": {"content": "ab"}, "finish_reason": "stop"}]}
    body = json.dumps(whole | {"usage": {"completion_tokens": 4}}).encode()
    outcome = read((10, body[:20]), (20, body[20:]))
    assert (outcome.ok, outcome.text, outcome.output_tokens) == (True, "ab", 4)
    assert outcome.first_token_at_ns == 20 * MS


def test_a_stream_that_ends_inside_an_event_was_cut() -> None:
    outcome = read((10, chunk({"content": "a"})), (20, chunk({"content": "b"})[:-9]))
    assert (outcome.error_class, outcome.n_token_events) == ("disconnected", 1)


def test_an_empty_event_keeps_a_connection_open_and_is_nothing() -> None:
    assert read((5, b"data: \n\n"), (10, chunk({"content": "a"}, "stop")), (11, DONE)).ok


def test_a_nan_in_an_event_is_read() -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"logprobs":NaN,"finish_reason":"stop"}]}\n\n'
    assert read((10, event)).text == "a"


def test_local_counting_covers_text_reasoning_and_tool_calls_and_yields_to_usage() -> None:
    def counted(*reads: bytes) -> StreamOutcome:
        outcome = StreamOutcome(http_status=200)
        reader = make_reader(outcome, CHAT, count_tokens=lambda text: len(text.split()))
        for chunk_read in reads:
            reader.on_read(MS, chunk_read)
        reader.finish()
        return outcome

    thought, said = chunk({"reasoning": "let me see"}), chunk({"content": "it is so"}, "stop")
    silent = counted(thought, said, DONE)
    assert (silent.output_tokens, silent.output_tokens_source) == (6, "tokenizer")
    told = counted(thought, said, chunk(usage={"completion_tokens": 8}), DONE)
    assert (told.output_tokens, told.output_tokens_source, told.local_tokens) == (8, "usage", 6)


@pytest.mark.parametrize("fault", ["read_timeout", "total_timeout", "disconnected"])
@pytest.mark.parametrize("end", [chunk({}, "stop") + DONE, chunk({}, "stop"), DONE])
def test_what_happens_after_a_complete_answer_is_no_fault_of_it(fault: ErrorClass, end: bytes) -> None:
    outcome = StreamOutcome(http_status=200)
    reader = make_reader(outcome, CHAT)
    reader.on_read(10 * MS, chunk({"content": "a"}))
    reader.on_read(20 * MS, end)
    outcome.fail(fault, "timed out")
    outcome.stream_end_at_ns = 6000 * MS
    reader.finish()
    assert (outcome.ok, outcome.error, outcome.output_tokens) == (True, None, 1)
    assert (outcome.stream_end_at_ns or 0) <= 20 * MS


def test_a_fault_before_the_end_stays_one() -> None:
    outcome = StreamOutcome(http_status=200)
    reader = make_reader(outcome, CHAT)
    reader.on_read(10 * MS, chunk({"content": "a"}))
    outcome.fail("read_timeout", "timed out")
    reader.finish()
    assert outcome.error_class == "read_timeout"


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_an_answer_that_the_server_broke_off_is_no_success(reason: str) -> None:
    outcome = read((10, chunk({"content": "a"})), (20, chunk({}, reason) + DONE))
    assert outcome.error_class == "stream_error"
    assert reason in (outcome.error or "")
