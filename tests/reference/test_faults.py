"""What `--fault` may say, and that the same requests meet the same faults each time."""

from __future__ import annotations

import pytest

from engine_adapters.reference import faults
from engine_adapters.reference.faults import Fault, parse_fault, parse_faults


def met(name: str, text: str, n: int) -> list[int]:
    """Which of the first `n` requests meet the fault."""
    counted = parse_faults([text])
    return [number for number in range(1, n + 1) if name in counted.next_request()]


def test_the_grammar_of_each_fault_is_read() -> None:
    assert parse_fault("stall=after:8,seconds:2,every:10") == Fault("stall", after=8, seconds=2.0, every=10)
    assert parse_fault("cut=after:3") == Fault("cut", after=3, every=1)
    assert parse_fault("error-in-stream=after:0") == Fault("error-in-stream", after=0)
    assert parse_fault("slow-first-byte=seconds:0.5") == Fault("slow-first-byte", seconds=0.5)
    storm = parse_fault("429=after:100,count:50,retry-after:2")
    assert storm == Fault("429", after=100, count=50, retry_after_s=2, every=0)


def test_every_fault_of_the_grammar_is_in_the_help() -> None:
    for name, keys in faults.NEEDED.items():
        line = next(line for line in faults.GRAMMAR.splitlines() if line.strip().startswith(name + "="))
        assert all(key + ":" in line for key in keys + faults.OPTIONAL[name])


def test_every_picks_each_kth_request() -> None:
    assert met("cut", "cut=after:1,every:3", 10) == [3, 6, 9]
    assert met("cut", "cut=after:1", 4) == [1, 2, 3, 4]


def test_a_storm_begins_ends_and_repeats_by_count() -> None:
    assert met("429", "429=after:2,count:3", 20) == [3, 4, 5]
    assert met("429", "429=after:2,count:3,every:8", 20) == [3, 4, 5, 11, 12, 13, 19, 20]


def test_a_request_may_meet_several_faults_and_they_are_counted() -> None:
    counted = parse_faults(["stall=after:1,seconds:1,every:2", "cut=after:5,every:3"])
    assert [sorted(counted.next_request()) for _ in range(6)] == [
        [],
        ["stall"],
        ["cut"],
        ["stall"],
        [],
        ["cut", "stall"],
    ]
    assert counted.n_met == {"stall": 3, "cut": 2}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("melt=after:1", "unknown fault 'melt'; there are stall, cut"),
        ("stall", "after is missing; write stall=after:8,seconds:2"),
        ("stall=after:1", "seconds is missing"),
        ("stall=after:1,seconds:x", "seconds must be from 0 to 3600"),
        ("stall=after:1,seconds:nan", "seconds must be from 0 to 3600"),
        ("stall=after:1,seconds:-1", "seconds must be from 0 to 3600"),
        ("stall=after:-1,seconds:1", "after must be a whole number"),
        ("cut=after:1,every:0", "every must be a whole number from 1 up"),
        ("cut=after:1,seconds:1", "unknown key 'seconds'; cut takes after, every"),
        ("cut=after", "'after' must read key:value"),
        ("429=after:1", "count is missing"),
    ],
)
def test_a_mistake_is_named_with_what_would_be_right(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=r"^--fault ") as error:
        parse_fault(text)
    assert says in str(error.value)


def test_a_fault_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="cut is given twice"):
        parse_faults(["cut=after:1", "cut=after:2"])
