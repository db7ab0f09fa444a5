"""The SSE reader gives the same events however the bytes were cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_adapters.sse import SSEParser


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


def in_chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    parser = SSEParser()
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    events = [event for a, b in pairwise(edges) for event in parser.feed(data[a:b])]
    return events + parser.finish()


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
    ]
)
STREAMS = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=30).map(
    lambda parts: b"".join(line + end for line, end in parts)
)


@given(STREAMS, st.lists(st.integers(0, 500), max_size=20))
def test_any_rechunking_gives_the_events_of_the_whole(data: bytes, cuts: list[int]) -> None:
    assert in_chunks(data, cuts) == whole(data)


@given(STREAMS)
def test_one_byte_reads_give_the_events_of_the_whole(data: bytes) -> None:
    assert in_chunks(data, list(range(len(data)))) == whole(data)


READS = st.sampled_from(
    [b"data: {}\n\n", b"data: x\ny\n\n", b"data: x\n", b"\n\n", b"data: x\r", b"data: \n\n", b"x", b"\r\n"]
)


@given(st.lists(READS, max_size=12))
def test_reads_that_are_whole_events_give_the_events_of_the_whole(reads: list[bytes]) -> None:
    parser = SSEParser()
    events = [event for read in reads for event in parser.feed(read)]
    assert events + parser.finish() == whole(b"".join(reads))


def test_an_event_is_out_with_the_read_that_ends_it() -> None:
    parser = SSEParser()
    assert parser.feed(b"data: a\r\n\r") == [b"a"]
    assert parser.feed(b"\ndata: b\n") == []
    assert parser.feed(b"\n") == [b"b"]


def test_a_byte_order_mark_is_not_part_of_the_first_field() -> None:
    assert SSEParser().feed(b"\xef\xbb\xbfdata: x\n\n") == [b"x"]


@pytest.mark.parametrize("size", [1, 4096])
def test_a_megabyte_event_comes_through_whole(size: int) -> None:
    payload = b"y" * 1_000_000
    data = b"data: " + payload + b"\n\n"
    parser = SSEParser()
    events = [event for at in range(0, len(data), size) for event in parser.feed(data[at : at + size])]
    assert events == [payload]
