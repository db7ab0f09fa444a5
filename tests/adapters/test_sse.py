"""The readers of events give the same events however the bytes were cut, in linear time and bounded memory."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_adapters import ndjson, sse
from engine_adapters.ndjson import NDJSONParser, WholeParser
from engine_adapters.sse import FramingError, SSEParser


def whole(data: bytes) -> list[bytes]:
    """The naive reader: the complete stream at once, by the rules of the standard."""
    text = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events, lines = [], []
    for line in [*text.split(b"\n"), b""]:
        name, colon, value = line.partition(b":")
        if not line and lines:
            events.append(b"\n".join(lines))
            lines = []
        elif name == b"data":
            lines.append(value.removeprefix(b" ") if colon else b"")
    return events


def whole_lines(data: bytes) -> list[bytes]:
    """The naive reader of newline-delimited JSON."""
    return [line.strip() for line in data.split(b"\n") if line.strip()]


def in_chunks(parser: Any, data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    events = [event for a, b in pairwise(edges) for event in parser.feed(data[a:b])]
    return [*events, *parser.finish()]


LINES = st.sampled_from(
    [
        b"data: {}",
        b"data:x",
        b"data: \xc3\xa4",
        b"data",
        b": keepalive",
        b"event: ping",
        b"id: 7",
        b"",
        b"",
        b"data: a:b",
        b"datax: no",
        b"retry: 3000",
        b"unknown: field",
        b" data: indented",
    ]
)
STREAMS = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=30).map(
    lambda parts: b"".join(line + end for line, end in parts)
)
CUTS = st.lists(st.integers(0, 500), max_size=20)


@given(STREAMS, CUTS)
def test_any_rechunking_gives_the_events_of_the_whole(data: bytes, cuts: list[int]) -> None:
    assert in_chunks(SSEParser(), data, cuts) == whole(data)


@given(st.binary(max_size=200).filter(lambda data: data[:1] not in b"{[ \t" and b"error:" not in data), CUTS)
def test_any_bytes_at_all_are_read_alike_however_they_were_cut(data: bytes, cuts: list[int]) -> None:
    assert in_chunks(SSEParser(), data, cuts) == in_chunks(SSEParser(), data, [])


@given(STREAMS)
def test_one_byte_reads_give_the_events_of_the_whole(data: bytes) -> None:
    assert in_chunks(SSEParser(), data, list(range(len(data)))) == whole(data)


READS = st.sampled_from(
    [
        b"data: {}\n\n",
        b"data: a\n\ndata: b\n\n",
        b"data: a\n\ndata: b\n\ndata: c\n\n",
        b"data: a\ndata: b\n\ndata: c\n\n",
        b"data: a\n\n\ndata: b\n\n",
        b"data: a\n\n: ping\n\n",
        b"data: x\ny\n\n",
        b"data: x\n",
        b"\n\n",
        b"data: x\r",
        b"data: \n\n",
        b"x",
        b"\r\n",
        b"data: \n",
    ]
)


@given(st.lists(READS, max_size=12))
def test_reads_that_are_whole_events_give_the_events_of_the_whole(reads: list[bytes]) -> None:
    parser = SSEParser()
    events = [event for read in reads for event in parser.feed(read)]
    assert events + parser.finish() == whole(b"".join(reads))


OBJECTS = st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=5) | st.integers(), max_size=3), max_size=8)


@given(OBJECTS, st.sampled_from([b"\n", b"\r\n", b"\n\n"]), st.booleans(), CUTS)
def test_any_rechunking_of_newline_delimited_json_gives_its_lines(
    objects: list[Any], end: bytes, ended: bool, cuts: list[int]
) -> None:
    data = end.join(json.dumps(each, ensure_ascii=False).encode() for each in objects) + end * ended
    events = in_chunks(NDJSONParser(), data, cuts)
    assert events == whole_lines(data)
    assert [json.loads(event) for event in events] == objects


@given(st.binary(max_size=60), CUTS)
def test_an_answer_that_is_not_streamed_is_one_event(data: bytes, cuts: list[int]) -> None:
    assert in_chunks(WholeParser(), data, cuts) == ([data.strip()] if data.strip() else [])


@given(CUTS)
def test_json_in_place_of_a_stream_is_one_event_at_its_end(cuts: list[int]) -> None:
    data = b'{\n  "error": {"message": "no\\n"}\n}\n'
    (event,) = in_chunks(SSEParser(), data, cuts)
    assert json.loads(event) == {"error": {"message": "no\n"}}


def test_an_error_field_is_an_event_with_that_error() -> None:
    assert SSEParser().feed(b'error: {"code":500,"message":"slot"}\n\n') == [b'{"error":{"code":500,"message":"slot"}}']


def test_an_event_is_out_with_the_read_that_ends_it() -> None:
    parser = SSEParser()
    assert parser.feed(b"data: a\r\n\r") == [b"a"]
    assert parser.feed(b"\ndata: b\n") == []
    assert parser.feed(b"\n") == [b"b"]


def test_a_byte_order_mark_is_not_part_of_the_first_field() -> None:
    assert SSEParser().feed(b"\xef\xbb\xbfdata: x\n\n") == [b"x"]


@pytest.mark.parametrize("size", [13, 4096])
def test_a_megabyte_event_comes_through_whole(size: int) -> None:
    payload = b"y" * 1_000_000
    for parser, data in ((SSEParser(), b"data: " + payload + b"\n\n"), (NDJSONParser(), payload + b"\n")):
        events = [event for at in range(0, len(data), size) for event in parser.feed(data[at : at + size])]
        assert events == [payload]


class CountingBytes(bytes):
    """Bytes that count how many bytes the parser looked at, whenever it slices, splits, replaces or searches."""

    looked_at = 0

    def _count(self) -> None:
        CountingBytes.looked_at += len(self)

    def split(self, *args: Any) -> Any:  # type: ignore[override]
        self._count()
        return super().split(*args)

    def replace(self, *args: Any) -> Any:  # type: ignore[override]
        self._count()
        return super().replace(*args)

    def find(self, *args: Any) -> Any:  # type: ignore[override]
        self._count()
        return super().find(*args)


@pytest.mark.parametrize("parser_of", [SSEParser, NDJSONParser])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_work_grows_with_the_bytes_and_not_with_their_square(parser_of: Any, size: int) -> None:
    def work(n_bytes: int) -> int:
        CountingBytes.looked_at = 0
        parser = parser_of()
        data = b"data: " + b"z" * n_bytes
        for at in range(0, len(data), size):
            parser.feed(CountingBytes(data[at : at + size]))
        return CountingBytes.looked_at

    small, large = work(2_000), work(16_000)
    assert 4 < large / small < 12  # 8 times the bytes


ENDLESS = [(SSEParser, b"data: x\n"), (SSEParser, b"x" * 8), (NDJSONParser, b"x" * 8), (WholeParser, b"{}\n")]


@pytest.mark.parametrize(("parser_of", "chunk"), ENDLESS)
def test_an_event_without_end_is_refused_and_does_not_fill_the_memory(
    parser_of: Any, chunk: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sse, ndjson):
        monkeypatch.setattr(module, "MAX_EVENT_BYTES", 100)
    parser = parser_of()
    with pytest.raises(FramingError):
        feed_all(parser, [chunk] * 50)


def feed_all(parser: Any, chunks: list[bytes]) -> None:
    for chunk in chunks:
        parser.feed(chunk)


def test_a_long_stream_of_short_events_is_held_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    monkeypatch.setattr(ndjson, "MAX_EVENT_BYTES", 100)
    for parser, line in ((SSEParser(), b"data: x\r\n\r\n: ping\r\n"), (NDJSONParser(), b'{"a": 1}\n')):
        n_events = sum(len(parser.feed(bytes([byte]))) for _ in range(100) for byte in line)
        assert n_events == 100
