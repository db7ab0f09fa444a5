"""Each fault on purpose is seen by our own client as what it is, and a shutdown loses nothing in silence."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from support.engine_server import TIMEOUT_S, Running, engine_server

from engine_adapters.apis import find_dialect
from engine_adapters.base import Request, StreamOutcome
from engine_adapters.dialect import Asking, DialectAdapter
from engine_adapters.reference.config import EngineConfig
from engine_adapters.transport import HttpClient, Timeouts

COMPLETION = {"prompt": "hello", "max_tokens": 20, "ignore_eos": True}
MS = 1_000_000


def outcomes(server: Running, n: int = 1, api: str = "openai-chat", read_s: float = TIMEOUT_S) -> list[StreamOutcome]:
    """What our client makes of `n` requests for 20 tokens, one after the other."""

    async def main() -> list[StreamOutcome]:
        client = HttpClient(server.url, {}, Timeouts(read_s=read_s))
        adapter = DialectAdapter(client, find_dialect(api), Asking("tiny"))
        found = []
        for i in range(n):
            found.append(StreamOutcome())
            await adapter.stream(adapter.encode(Request("hello", 20)), f"r{i}", found[-1])
        await adapter.close()
        return found

    return anyio.run(main)


def gaps_ms(outcome: StreamOutcome) -> list[float]:
    return [(b - a) / MS for a, b in zip(outcome.read_at_ns, outcome.read_at_ns[1:], strict=False)]


@pytest.mark.parametrize("api", ["openai-chat", "openai-completions", "openai-responses"])
def test_without_faults_every_api_of_ours_gets_its_whole_answer(api: str) -> None:
    with engine_server() as server:
        (outcome,) = outcomes(server, api=api)
        assert outcome.ok, outcome.error
        assert (outcome.completion_tokens, outcome.n_token_events) == (20, 20)
        assert outcome.text == "abcdefghijklmnopqrst"
        assert outcome.finish_reason == "length"


@pytest.mark.parametrize("api", ["openai-chat", "openai-completions", "openai-responses"])
def test_a_cut_answer_is_a_lost_connection_with_the_tokens_that_came(api: str) -> None:
    with engine_server(["cut=after:7,every:2"]) as server:
        whole, cut = outcomes(server, 2, api)
        assert whole.ok
        assert (cut.error_class, cut.http_status) == ("disconnected", 200)
        assert cut.text == "abcdefg"
        finished = server.server.core.scheduler.stats.finished
        wait_until(lambda: sum(finished.values()) == 2)
        assert finished["abort"] + finished["length"] == 2


@pytest.mark.parametrize("api", ["openai-chat", "openai-completions", "openai-responses"])
def test_an_error_in_the_stream_is_told_apart_from_a_cut(api: str) -> None:
    with engine_server(["error-in-stream=after:3"]) as server:
        (outcome,) = outcomes(server, api=api)
        assert (outcome.error_class, outcome.http_status) == ("stream_error", 200)
        assert outcome.text == "abc"
        assert "a fault on purpose" in str(outcome.error)


def test_a_stall_is_one_long_gap_after_so_many_tokens() -> None:
    with engine_server(["stall=after:5,seconds:0.3"], step_s=0.002) as server:
        (outcome,) = outcomes(server)
        assert outcome.ok
        assert outcome.completion_tokens == 20
        gaps = gaps_ms(outcome)
        n_before = sum(outcome.read_events[: gaps.index(max(gaps)) + 1])
        assert n_before == 5
        assert max(gaps) >= 290
        assert sorted(gaps)[-2] < 290


def test_a_stall_longer_than_the_read_timeout_is_a_read_timeout() -> None:
    with engine_server(["stall=after:5,seconds:30"]) as server:
        (outcome,) = outcomes(server, read_s=0.2)
        assert outcome.error_class == "read_timeout"
        assert outcome.text == "abcde"
        wait_until(lambda: server.server.thread.n_unfinished == 0)


def test_a_slow_first_byte_holds_back_the_headers_too() -> None:
    with engine_server(["slow-first-byte=seconds:0.3,every:2"]) as server:
        fast, slow = outcomes(server, 2)
        assert slow.ok
        assert slow.sent_at_ns is not None
        assert slow.headers_at_ns is not None
        assert slow.headers_at_ns - slow.sent_at_ns >= 290 * MS
        assert fast.headers_at_ns is not None
        assert fast.sent_at_ns is not None
        assert fast.headers_at_ns - fast.sent_at_ns < 290 * MS


def test_a_storm_of_429_is_rejections_with_the_advised_wait_and_then_over() -> None:
    with engine_server(["429=after:1,count:2,retry-after:7"]) as server:
        found = outcomes(server, 4)
        assert [outcome.error_class for outcome in found] == [None, "rejected", "rejected", None]
        assert found[1].http_status == 429
        assert found[1].advised_wait_s == 7
        metrics = server.ask("/metrics")[2]
        assert 'vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"} 2.0' in metrics


@pytest.mark.parametrize(
    ("fault", "status"), [("error-in-stream=after:3", 500), ("stall=after:0,seconds:0.01", 200), ("cut=after:3", None)]
)
def test_an_answer_that_is_not_streamed_meets_a_fault_as_a_whole(fault: str, status: int | None) -> None:
    with engine_server([fault]) as server:
        if status is None:
            with pytest.raises(Exception, match="IncompleteRead"):
                server.ask("/v1/completions", COMPLETION)
        else:
            assert server.ask("/v1/completions", COMPLETION)[0] == status


def test_the_truth_of_held_back_text_is_when_its_event_left() -> None:
    with engine_server(step_s=0.001) as server:
        body = COMPLETION | {"stop": ["cdeX"], "stream": True}
        assert server.ask("/v1/completions", body)[0] == 200
        (record,) = server.server.truth.since(0)["requests"]
        stamps = record["token_at_ns"]
        assert len(stamps) == 20
        assert len(set(stamps[2:6])) == 1  # c, d and e waited for f
        assert sorted(stamps) == stamps


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def asking(server: Running, body: dict[str, Any]) -> tuple[threading.Thread, list[tuple[int, Any, str]]]:
    """A request in a thread of its own; its answer lands in the list."""
    answers: list[tuple[int, Any, str]] = []
    thread = threading.Thread(target=lambda: answers.append(server.ask("/v1/completions", body)))
    thread.start()
    wait_until(lambda: server.server.thread.n_unfinished == 1)
    return thread, answers


def test_a_shutdown_lets_answers_end_and_tells_newcomers_503(capfd: Any) -> None:
    with engine_server(step_s=0.01, grace_s=20) as server:
        thread, answers = asking(server, COMPLETION | {"max_tokens": 60})
        server.terminate()
        status, headers, text = server.ask("/v1/completions", COMPLETION)
        assert status == 503
        assert int(headers["retry-after"]) >= 20
        assert "shutting down" in json.loads(text)["error"]["message"]
        assert server.ask("/health")[0] == 503
        thread.join(TIMEOUT_S)
        assert answers[0][0] == 200
        assert json.loads(answers[0][2])["usage"]["completion_tokens"] == 60
    line = capfd.readouterr().err.strip()
    assert "in flight at the signal: 1, aborted: 0; all requests by their end: 0 stop, 1 length, 0 abort" in line
    assert line.endswith("turned away: 1 shutting_down")


@pytest.mark.parametrize("stream", [True, False])
def test_what_is_in_flight_after_the_grace_time_is_told_and_counted(stream: bool, capfd: Any) -> None:
    with engine_server(step_s=0.01, grace_s=0) as server:
        thread, answers = asking(server, COMPLETION | {"max_tokens": 4000, "stream": stream})
        server.terminate()
        thread.join(TIMEOUT_S)
        status, _, text = answers[0]
        assert status == (200 if stream else 500)
        assert "the server shut down before the answer was complete" in text
    assert "aborted: 1; all requests by their end: 0 stop, 0 length, 1 abort, 0 error" in capfd.readouterr().err


def test_a_second_signal_ends_the_wait(capfd: Any) -> None:
    with engine_server(step_s=0.01, grace_s=3600) as server:
        thread, answers = asking(server, COMPLETION | {"max_tokens": 4000})
        server.terminate()
        server.terminate()
        thread.join(TIMEOUT_S)
        assert answers[0][0] == 500
    assert "aborted: 1" in capfd.readouterr().err


def test_every_request_of_a_crowd_ends_in_one_counted_outcome() -> None:
    config = EngineConfig(max_num_seqs=4, max_waiting=4)
    with engine_server(config=config, step_s=0.001) as server:
        statuses: list[int] = []
        threads = [
            threading.Thread(target=lambda: statuses.append(server.ask("/v1/completions", COMPLETION)[0]))
            for _ in range(40)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
        n_ok, n_rejected = statuses.count(200), statuses.count(429)
        assert n_ok + n_rejected == 40
        assert n_rejected > 0
        assert sum(server.server.core.scheduler.stats.finished.values()) == n_ok
        assert server.server.stats.rejections.total() == n_rejected
