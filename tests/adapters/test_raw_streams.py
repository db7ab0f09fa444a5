"""Streams from public bug reports are read exactly: by an injected clock, and over real sockets."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import anyio
import pytest
from support.streams import MS, raw_streams, read_answer, record_of, writes_of

from engine_adapters.apis import find_dialect
from engine_adapters.base import StreamOutcome
from engine_adapters.dialect import Asking, DialectAdapter
from engine_adapters.transport import HttpClient, Timeouts
from loadgen.analysis import metrics

CASES = {case["id"]: case for case in raw_streams()}
APIS = {"ollama-native": "ollama"}
ERRORS = {"truncated": ("disconnected",), "stream_error": ("stream_error",)}
ODD_ERROR = ("protocol", "stream_error", "read_timeout")


def outcome_of(case: dict[str, Any]) -> StreamOutcome:
    api = APIS.get(case["protocol"], case["protocol"])
    return read_answer(api, [(at_ms * MS, chunk) for at_ms, chunk in writes_of(case)])


def ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)


def per_second(outcome: StreamOutcome) -> list[int]:
    """Tokens in each second from the send on, events of a read sharing its instant."""
    record = record_of(outcome)
    at_ns, tokens = metrics.token_arrivals(record, 1.0)
    seconds = Counter[int]()
    for at, n in zip(at_ns, tokens, strict=True):
        seconds[int(at // 10**9)] += round(n)
    return [seconds[second] for second in range(max(seconds) + 1)]


READINGS: dict[str, Any] = {
    "ttft_ms": lambda o: ms(metrics.ttft(record_of(o), "sent")),
    "time_to_first_content_ms": lambda o: ms(metrics.ttfo(record_of(o), "sent")),
    "e2e_ms": lambda o: ms(metrics.e2e(record_of(o), "sent")),
    "tpot_ms": lambda o: ms(metrics.tpot(record_of(o))),
    "itl_ms": lambda o: [ms(gap) for gap in metrics.itl(record_of(o))],
    "event_gap_ms": lambda o: [ms(gap) for gap in metrics.event_gap(record_of(o))],
    "tokens_per_event": lambda o: metrics.tokens_per_event([record_of(o)]),
    "per_second_tokens": per_second,
    "peak_1s_output_tok_s": lambda o: max(per_second(o)),
    "avg_output_tok_s": lambda o: round(o.output_tokens / (o.last_token_at_ns / 1e9), 3),
    "stream_end_ms": lambda o: o.stream_end_at_ns / MS,
    "server_decode_ms": lambda o: ms(o.server_decode_s),
    "output_tokens": lambda o: o.output_tokens,
    "output_tokens_counted": lambda o: o.output_tokens or 0,
    "partial_output_tokens": lambda o: o.output_tokens,
    "prompt_tokens": lambda o: o.prompt_tokens,
    "cached_tokens": lambda o: o.cached_tokens,
    "event_count": lambda o: o.n_token_events,
    "finish_reason": lambda o: o.finish_reason,
    "text": lambda o: o.text,
    "success": lambda o: o.ok,
}
CHECKED_ELSEWHERE = {
    "error_kind",
    "error_contains",
    "output_tokens_source",
    "output_tokens_in",
    "not_allowed",
    "max_wall_s",
}


def test_all_24_raw_streams_are_here() -> None:
    assert len(CASES) == 24


@pytest.mark.parametrize("name", CASES)
def test_every_figure_of_a_raw_stream_is_exact_by_an_injected_clock(name: str) -> None:
    case = CASES[name]
    outcome, expected = outcome_of(case), case["expected"]
    assert expected.keys() <= READINGS.keys() | CHECKED_ELSEWHERE
    wanted = {key: value for key, value in expected.items() if key in READINGS}
    assert {key: READINGS[key](outcome) for key in wanted} == wanted
    check_errors_and_sources(outcome, expected)


def check_errors_and_sources(outcome: StreamOutcome, expected: dict[str, Any]) -> None:
    if "error_kind" in expected:
        assert outcome.error_class in ERRORS.get(expected["error_kind"], ODD_ERROR)
    assert expected.get("error_contains", "") in (outcome.error or "")
    if "output_tokens_in" in expected:
        assert outcome.output_tokens in expected["output_tokens_in"]
        assert outcome.output_tokens_source == "events"


async def serve_and_read(case: dict[str, Any]) -> StreamOutcome:
    """The same bytes from a chunked HTTP server on 127.0.0.1, one write a chunk, without its pauses."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for _, chunk in writes_of(case):
            writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            await writer.drain()
        if case["close"] == "clean":
            writer.write(b"0\r\n\r\n")
        with suppress(ConnectionError):
            await reader.read()  # a stream that is not ended hangs until the client gives up
        writer.close()
        left.set()

    left = asyncio.Event()
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeouts=Timeouts(read_s=0.2))
    adapter = DialectAdapter(client, find_dialect(APIS.get(case["protocol"], case["protocol"])), Asking("m"))
    outcome = StreamOutcome()
    try:
        await adapter.stream(b"{}", "case", outcome)
    finally:
        await client.close()
        await left.wait()
        server.close()
    return outcome


@pytest.mark.parametrize("name", CASES)
def test_counts_texts_and_errors_are_the_same_over_a_socket(name: str) -> None:
    over_socket, injected = anyio.run(serve_and_read, CASES[name]), outcome_of(CASES[name])
    for field in ("ok", "text", "output_tokens", "n_token_events", "prompt_tokens", "finish_reason", "error_class"):
        assert getattr(over_socket, field) == getattr(injected, field), field
