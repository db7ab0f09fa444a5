"""What the events of recorded and documented answers were, one by one."""

from __future__ import annotations

from collections import Counter

import pytest
from support import documented
from support.streams import MS, read_answer, reads_of, recorded, recorded_servers

from engine_adapters.apis import find_dialect
from engine_adapters.observed import BRINGS_TOKENS, Event, events_of


def events(server: str, case: str) -> list[Event]:
    found = recorded(server)["cases"][case]
    return events_of(find_dialect(found["api"]), reads_of(found), whole=not found["request"].get("stream"))


@pytest.mark.parametrize("server", recorded_servers())
def test_token_events_are_those_that_the_adapter_counts_and_have_their_instants(server: str) -> None:
    for name, case in recorded(server)["cases"].items():
        if case["http"] == 200:
            streamed = bool(case["request"].get("stream"))
            outcome = read_answer(case["api"], reads_of(case), streamed=streamed)
            bringing = [e for e in events(server, name) if e.kind in BRINGS_TOKENS]
            if not case["request"].get("n"):
                assert len(bringing) == outcome.n_token_events, (server, name)
            assert bringing[0].at_ns == outcome.first_token_at_ns, (server, name)


def test_a_chat_begins_with_a_role_and_ends_with_counts_and_the_mark() -> None:
    kinds = [event.kind for event in events("vllm", "chat_stream_usage")]
    assert (kinds[0], kinds[1]) == ("role, no token", "content")
    assert kinds[-2:] == ["counts, no token", "end mark"]
    assert events("llama-cpp", "chat_stream_usage")[0].kind == "role, no token"
    assert events("llama-cpp", "native_completion_stream")[0].kind == "content"


def test_where_the_server_counts_is_seen() -> None:
    once = [event.has_usage for event in events("vllm", "chat_stream_usage")]
    every = [event.has_usage for event in events("vllm", "chat_stream_continuous_usage")]
    assert sum(once) == 1
    assert sum(every) >= len(every) - 2


def test_reasoning_tools_and_errors_have_their_names() -> None:
    for (body, _), expected in (
        (documented.chat_reasoning("reasoning"), {"reasoning": 2, "content": 1}),
        (documented.chat_tools(), {"tool call or further choice": 3}),
        (documented.chat_error(), {"content": 1, "error": 1}),
    ):
        kinds = Counter(event.kind for event in events_of(find_dialect("openai-chat"), [(MS, body)]))
        assert {kind: kinds[kind] for kind in expected} == expected


def test_bytes_that_are_no_events_bring_nothing_down() -> None:
    assert [e.kind for e in events_of(find_dialect("openai-chat"), [(0, b"data: nonsense\n\n")])] == ["error"]
    assert events_of(find_dialect("openai-chat"), []) == []
