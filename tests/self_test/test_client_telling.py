"""The doctor's sentences name the limits, their errors and who bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.self_test.ladder import PARTS
from loadgen.self_test.rung import Rung
from loadgen.self_test.telling import HEAD, digits, progress_line, sentences, table_row

REQUESTS, EVENTS, STREAMS = PARTS
GOOD = Rung(
    part="requests",
    load=1000,
    verdict="VALID",
    failing=(),
    due=2000,
    sent=2000,
    events_per_s=16000.0,
    requests_per_s=1000.0,
    lateness_s=(0.0001, 0.0012),
    gap_cv=1.01,
    gap_cv_asked=1.0,
    ttft_error_s=(0.00001, 0.0004),
    itl_error_s=(0.000002, 0.00003),
    n_matched=2000,
    cpu_share=0.7,
    cpu_us_per_event=43.75,
    server_cpu_share=0.2,
    others_cpu_share=0.01,
    loop_lag_p99_s=0.0021,
    memory_bytes=40_000_000,
    saturated=False,
)
LATE = "lateness: 99% of 900 sends left within 33.20 ms of their time; 3.0% over 50 ms late. Give the client more CPU."
BAD = replace(GOOD, load=1500, verdict="INVALID", failing=(LATE, "loop lag: x"), cpu_share=0.97)


def told(*rungs: Rung) -> str:
    return "\n".join(sentences(PARTS, rungs))


def test_the_headline_has_the_best_load_of_each_part() -> None:
    events = replace(GOOD, part="events", load=512, events_per_s=51_000.0)
    streams = replace(GOOD, part="streams", load=5000)
    first, second, *_ = sentences(PARTS, [GOOD, BAD, events, replace(events, load=256), streams])
    assert first == "This machine can offer up to 1,000 requests/s, 51,000 events/s and 5,000 open streams."
    assert "TTFT 0.010 / 0.400 ms at 1,000 requests/s" in second
    assert "ITL 0.002 / 0.030 ms at 512 streams" in second
    assert "TTFT 0.010 / 0.400 ms, ITL 0.002 / 0.030 ms at 5,000 streams" in second


def test_what_bound_is_named_with_its_evidence() -> None:
    text = told(GOOD, BAD, BAD)
    assert "at 1,500 requests/s, tried twice, the client binds (CPU at 97%); lateness: 99% of 900 sends" in text
    assert "Give the client" not in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"server_cpu_share": 0.99}, "the mock server binds, not the client (server's CPU at 99%)"),
        ({"others_cpu_share": 0.6, "cpu_share": 0.3}, "others took 60% of its core, itself 30%"),
        ({"saturated": True, "failing": (), "verdict": "WARN"}, "its core is full"),
    ],
)
def test_a_limit_that_is_not_the_certificates_says_whose_it_is(change: dict[str, object], words: str) -> None:
    bad = replace(replace(BAD, cpu_share=0.8), **change)  # type: ignore[arg-type]
    assert words in told(GOOD, bad)


def test_a_ladder_that_ends_without_a_limit_says_so() -> None:
    assert "nothing bound up to 1,000 requests/s (CPU at 70%); 1,500 would need more than its core" in told(GOOD)
    top = replace(GOOD, load=REQUESTS.loads[-1])
    assert "more was not tried" in told(top)


def test_a_load_that_a_second_try_offered_is_no_limit() -> None:
    text = told(replace(GOOD, verdict="INVALID", failing=(LATE,)), GOOD, BAD, BAD)
    assert "at 1,500 requests/s, tried twice," in text
    assert "at 1,000 requests/s the client" not in text


def test_a_disturbed_run_asks_for_a_quiet_machine() -> None:
    assert "Other work took up to 55% of the client's core" in told(GOOD, replace(GOOD, others_cpu_share=0.55))
    assert "Other work" not in told(GOOD)


def test_nothing_offered_is_no_headline() -> None:
    assert "can offer" not in told(BAD)
    assert "at 1,500 requests/s" in told(BAD)
    assert sentences(PARTS, []) == []


def test_a_row_stands_under_its_head_and_unknown_is_na() -> None:
    row = table_row(GOOD, REQUESTS)
    assert row.index("VALID") == max(map(len, HEAD.split("\n")))
    unknown = replace(GOOD, itl_error_s=None, server_cpu_share=None, loop_lag_p99_s=None, memory_bytes=None)
    assert table_row(unknown, REQUESTS).count("n/a") == 4
    assert "INVALID" in progress_line(BAD, REQUESTS)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0000012, "0.001"), (0.00123, "1.23"), (0.0123, "12"), (1.5, "1,500"), (-0.0001, "-0.100")]
)
def test_digits(seconds: float, text: str) -> None:
    assert digits(seconds) == text
