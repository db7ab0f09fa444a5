"""The truth log keeps the last requests only and numbers them for ever."""

from __future__ import annotations

from engine_adapters.reference.truth import TruthLog


def test_memory_is_bounded_and_numbers_go_on() -> None:
    log = TruthLog(max_requests=3)
    for i in range(10):
        log.open(f"r{i}", i).token_at_ns.append(i + 1)
    everything = log.since(0)
    assert [record["id"] for record in everything["requests"]] == ["r7", "r8", "r9"]
    assert (everything["first"], everything["next"]) == (7, 10)
    assert everything["requests"][-1]["token_at_ns"] == [10]


def test_since_gives_only_later_requests_and_a_request_without_an_id_goes_by_its_number() -> None:
    log = TruthLog()
    for _ in range(3):
        log.open(None, 5)
    assert [record["id"] for record in log.since(2)["requests"]] == ["2"]
    assert log.since(3)["requests"] == []
