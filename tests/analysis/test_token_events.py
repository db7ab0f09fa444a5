"""Laying reads end to end changes nothing: gaps and instants are those of the definition, request by request."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from analysis_builders import T0_NS, record
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis import metrics, token_events
from loadgen.analysis.token_events import laid_out
from loadgen.collectors.records import RequestRecord

Shape = list[tuple[int, int, int]]  # of each read: events, tokens an event, gap in ns
READS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 10**9)), min_size=1, max_size=6)


def request(reads: Shape, told: bool) -> RequestRecord:
    made = record(0.0, 0.1)
    made.gap_ns = array("q", [0, *(gap for *_, gap in reads[1:])])
    made.gap_events = array("i", [n for n, *_ in reads])
    made.gap_tokens = array("i", [n * k for n, k, _ in reads] if told else [])
    made.n_token_events = sum(made.gap_events)
    made.output_tokens = sum(made.gap_tokens) or made.n_token_events
    made.last_token_at_ns = (made.first_token_at_ns or 0) + sum(made.gap_ns)
    return made


def gaps_by_definition(made: RequestRecord, told: bool) -> list[float]:
    """Of each read the first event's gap, shared over its tokens when told; what follows in it came at once."""
    found: list[float] = []
    for gap, n, total in zip(made.gap_ns, made.gap_events, made.gap_tokens or made.gap_events, strict=True):
        k = total // n if told else 1
        found += [gap / 1e9 / k] * k + [0.0] * ((total if told else n) - k)
    return found[1:]


@given(st.lists(READS, min_size=1, max_size=5), st.booleans(), st.integers(1, 3))
def test_pooled_gaps_are_the_gaps_of_each_request_in_turn(many: list[Shape], told: bool, at_once: int) -> None:
    records = [request(reads, told) for reads in many]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_events, "SLICE", at_once)
        found, _ = metrics.pooled_gaps(records, "n_tokens" if told else "n_events")
    assert found == pytest.approx([gap for made in records for gap in gaps_by_definition(made, told)])


@given(st.lists(READS, min_size=1, max_size=5), st.integers(1, 3))
def test_instants_are_the_first_token_and_the_gaps_after_it(many: list[Shape], k: int) -> None:
    records = [request(reads, False) for reads in many]
    expected = []
    for i, made in enumerate(records):
        made.first_token_at_ns = T0_NS + i * k * 10**9
        expected += [made.first_token_at_ns + sum(made.gap_ns[: j + 1]) for j in range(len(made.gap_ns))]
    found = np.concatenate([reads.at_ns for reads in laid_out(records)])
    assert found.tolist() == expected


def test_gaps_shared_over_told_tokens_add_up_to_the_decode_time() -> None:
    made = request([(1, 1, 0), (1, 3, 30_000_000), (2, 2, 40_000_000)], told=True)
    gaps = metrics.itl(made)
    assert gaps == pytest.approx([0.01, 0.01, 0.01, 0.02, 0.02, 0, 0])
    assert metrics.tpot(made) == pytest.approx(0.07 / 7)


def test_tokens_in_a_window_are_the_told_ones() -> None:
    made = request([(1, 1, 0), (1, 5, 10_000_000)], told=True)
    _, tokens = metrics.token_arrivals(made, 1.0)
    assert tokens.tolist() == [1, 5]
