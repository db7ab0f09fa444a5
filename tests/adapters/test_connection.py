"""Bytes to bodies: an answer's reads are pushed whole and with their instants, however they were cut and held."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.raw_server import OK, REQUEST, chunked, wire_to

from engine_adapters.base import StreamOutcome
from engine_adapters.connection import HELD_READS, Connection, Exchange, WireError

EVENT = b"data: x\n\n"


class FakeLink:
    """Takes writes and forgets them."""

    usable = True

    def write(self, payload: bytes) -> None: ...

    def abort(self) -> None:
        self.usable = False


def framed(how: str, parts: list[bytes]) -> bytes:
    body = b"".join(parts)
    if how == "chunked":
        return OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(parts)
    if how == "after 100":
        return b"HTTP/1.1 100 Continue\r\n\r\n" + framed("length", parts)
    if how == "length":
        return OK + b"Content-Length: %d\r\n\r\n" % len(body) + body
    return b"HTTP/1.0 200 OK\r\n\r\n" + body


async def carry(data: bytes, cuts: list[int]) -> tuple[list[tuple[int, bytes]], StreamOutcome, int]:
    """The reads of an answer that comes cut at `cuts`, its outcome, and how many reads there were in all."""
    reads: list[tuple[int, bytes]] = []
    outcome = StreamOutcome()
    connection = Connection(wire_to(0))
    connection.link = FakeLink()
    exchange = Exchange(
        outcome, lambda at_ns, piece: reads.append((at_ns, piece)), asyncio.get_running_loop().create_future()
    )
    connection.send(REQUEST, exchange)
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    start_ns = outcome.sent_at_ns or 0
    for i, (a, b) in enumerate(pairwise(edges)):
        connection.received(start_ns + i, 7 if i % 2 else -1, data[a:b])
    connection.lost(start_ns + len(edges), None)
    await exchange.done
    return reads, outcome, len(edges) - 1


FRAMINGS = st.sampled_from(["chunked", "length", "after 100", "until close"])
PARTS = st.lists(st.binary(min_size=1, max_size=40), max_size=8)


@given(FRAMINGS, PARTS, st.lists(st.integers(0, 400), max_size=30))
def test_any_rechunking_gives_the_same_body_and_one_push_a_read(how: str, parts: list[bytes], cuts: list[int]) -> None:
    reads, outcome, n_reads = asyncio.run(carry(framed(how, parts), cuts))
    assert b"".join(piece for _, piece in reads) == b"".join(parts)
    assert len(reads) <= n_reads
    assert outcome.http_status == 200
    instants = [outcome.sent_at_ns, outcome.headers_at_ns, *(at_ns for at_ns, _ in reads), outcome.stream_end_at_ns]
    assert None not in instants
    assert instants == sorted(instants)  # type: ignore[type-var]


@given(FRAMINGS, PARTS.filter(bool), st.integers(1, 400))
def test_an_answer_that_ends_early_is_a_disconnect(how: str, parts: list[bytes], cut: int) -> None:
    data = framed(how, parts)
    if how == "until close":
        data, cut = data[: data.index(b"\r\n\r\n") + 4], 1 + cut % 20  # only its head can be cut
    with pytest.raises(WireError) as caught:
        asyncio.run(carry(data[: -min(cut, len(data) - 1)], []))
    assert caught.value.error_class == "disconnected"


def test_what_is_not_http_is_named() -> None:
    with pytest.raises(WireError, match="HTTP") as caught:
        asyncio.run(carry(b"SSH-2.0-OpenSSH_9.6\r\n", []))
    assert caught.value.error_class == "protocol"


@given(st.lists(st.integers(0, 3), max_size=100), st.integers(0, 60))
def test_held_reads_keep_their_own_instants_and_the_end_is_never_held(counts: list[int], cut: int) -> None:
    async def main() -> tuple[list[int], list[int], bool, StreamOutcome]:
        seen: list[int] = []
        connection, outcome = Connection(wire_to(0)), StreamOutcome()
        connection.link = FakeLink()
        done = asyncio.get_running_loop().create_future()
        connection.send(REQUEST, Exchange(outcome, lambda at_ns, _: seen.append(at_ns), done))
        start_ns = outcome.sent_at_ns or 0
        connection.received(start_ns, -1, OK + b"transfer-encoding: chunked\r\n\r\n")
        sent = []
        for i, n in enumerate(counts):
            if n:
                sent.append(start_ns + 1 + i)
                connection.received(start_ns + 1 + i, i, chunked([EVENT * n])[:-5])
        last = chunked([EVENT])
        for piece in (last[: cut % len(last)], last[cut % len(last) :]):
            if piece:
                connection.received(start_ns + 1000, -1, piece)
        return seen, sent, done.done(), outcome

    seen, sent, done, outcome = asyncio.run(main())
    assert done
    assert [at_ns for at_ns in seen if at_ns < max(seen)] == sent
    assert outcome.reads_kernel_stamped == len(sent)
    assert outcome.read_lag_max_ns == max((i for i, n in enumerate(counts) if n), default=0)


def test_what_is_held_is_bounded_and_belongs_to_a_request_that_is_given_up() -> None:
    async def main() -> tuple[int, int]:
        seen: list[int] = []
        connection, outcome = Connection(wire_to(0)), StreamOutcome()
        connection.link = FakeLink()
        exchange = Exchange(outcome, lambda at_ns, _: seen.append(at_ns), asyncio.get_running_loop().create_future())
        connection.send(REQUEST, exchange)
        connection.received(1, -1, OK + b"transfer-encoding: chunked\r\n\r\n")
        for i in range(HELD_READS + 3):
            connection.received(2 + i, -1, chunked([EVENT])[:-5])
        before = len(seen)
        connection.give_up(exchange)
        return before, len(seen)

    assert asyncio.run(main()) == (HELD_READS, HELD_READS + 3)


@pytest.mark.parametrize("behind", [b"garbage", b"HTTP/1.1 200 OK\r\n", b"\r\n\r\nxx"])
@pytest.mark.parametrize("how", ["chunked", "length"])
def test_a_complete_answer_is_complete_whatever_stands_behind_it(how: str, behind: bytes) -> None:
    reads, outcome, _ = asyncio.run(carry(framed(how, [b"hello"]) + behind, []))
    assert b"".join(piece for _, piece in reads) == b"hello"
    assert outcome.http_status == 200


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhello",
        b"HTTP/1.1 099 Odd\r\ncontent-length: 5\r\n\r\nhello",
    ],
)
def test_an_answer_that_is_none_is_a_fault_of_its_request(answer: bytes) -> None:
    with pytest.raises(WireError) as caught:
        asyncio.run(carry(answer, []))
    assert caught.value.error_class in ("protocol", "disconnected")


def test_instants_never_run_backwards() -> None:
    async def main() -> list[int]:
        seen: list[int] = []
        connection, outcome = Connection(wire_to(0)), StreamOutcome()
        connection.link = FakeLink()
        connection.send(REQUEST, Exchange(outcome, lambda at_ns, _: seen.append(at_ns), asyncio.Future()))
        sent_ns = outcome.sent_at_ns or 0
        connection.received(sent_ns - 10**10, 5, OK + b"content-length: 3\r\n\r\na")  # the wall clock was set meanwhile
        connection.received(sent_ns + 7, 5, b"b")
        connection.received(sent_ns + 6, 5, b"c")
        return [at_ns - sent_ns for at_ns in seen]

    assert asyncio.run(main()) == [0, 7, 7]
