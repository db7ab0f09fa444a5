"""The fluidity index counts deadlines as a reader would: early tokens are saved up, a stall misses many."""

from __future__ import annotations

import pytest
from analysis_builders import record

from loadgen.analysis.fluidity import fluidity


def test_a_stream_in_time_meets_every_deadline_limits_included() -> None:
    exact = record(0.0, 0.5, (0.05,) * 20)
    assert fluidity([exact], 0.05, 0.5, "intended") == 1.0


def test_early_tokens_make_up_for_a_gap_that_is_longer_than_the_limit() -> None:
    early = record(0.0, 0.3, (0.02,) * 10 + (0.38,))  # 0.2 s saved by the first token, 0.3 s by the ten after it
    assert fluidity([early], 0.05, 0.5, "intended") == 1.0
    # Without the savings of the first token the gap may take 0.3 s and 0.05 s of its own: 0.03 s too late.
    assert fluidity([early], 0.05, None, "intended") == pytest.approx(10 / 11)


def test_a_late_token_misses_a_deadline_for_every_limit_begun_and_the_clock_starts_anew() -> None:
    # 10 tokens in time, then 1.02 s of nothing: due after 0.05 s, so 0.97 s late; then 5 more in time.
    stalled = record(0.0, 0.5, (0.05,) * 9 + (1.02,) + (0.05,) * 5)
    assert fluidity([stalled], 0.05, 0.5, "intended") == pytest.approx(15 / (15 + 20))


def test_a_late_first_token_counts_from_intended_in_open_loop() -> None:
    late = record(0.0, 0.5, (0.05,) * 9, late_s=0.12)
    assert fluidity([late], 0.05, 0.5, "sent") == 1.0
    assert fluidity([late], 0.05, 0.5, "intended") == pytest.approx(9 / (9 + 3))
    assert fluidity([late], 0.05, None, "intended") == 1.0  # no TTFT objective: the first token sets the clock


def test_tokens_of_one_event_have_a_deadline_each() -> None:
    # Four tokens every 0.2 s are as good as one every 0.05 s; by usage, not by events.
    bundled = record(0.0, 0.5, (0.2,) * 9, output_tokens=40, output_tokens_source="usage")
    assert fluidity([bundled], 0.05, 0.5, "intended") == 1.0
    slower = record(0.0, 0.5, (0.22,) * 9, output_tokens=40, output_tokens_source="usage")
    assert fluidity([slower], 0.05, 0.5, "intended") == pytest.approx((40 - 9) / 40)


def test_answers_are_weighed_by_their_deadlines_and_no_answer_gives_none() -> None:
    good, bad = record(0.0, 0.1, (0.01,) * 29), record(0.0, 0.1, (10.0,))
    assert fluidity([good, bad], 1.0, 0.2, "sent") == pytest.approx(31 / (31 + 9))
    assert fluidity([record(0.0, None, status="failed")], 0.05, 0.5, "sent") is None
