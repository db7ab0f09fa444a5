"""What the events of an OpenAI stream mean: which is the first token, how many came, how it ended."""

from __future__ import annotations

import json
from typing import Any

from engine_adapters.base import StreamOutcome
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
