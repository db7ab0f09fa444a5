"""The in-flight counter's integral, against adding up every request's own stay."""

from __future__ import annotations

import numpy as np
import pytest

from loadgen.generator.in_flight import InFlight


def test_the_mean_equals_the_sum_of_stays_inside_the_window() -> None:
    rng = np.random.default_rng(1)
    starts = np.sort(rng.integers(0, 10_000, 300))
    ends = starts + rng.integers(1, 900, 300)
    counter = InFlight(0)
    changes = sorted([(int(t), 1) for t in starts] + [(int(t), -1) for t in ends])
    for at, step in changes:
        (counter.enter if step > 0 else counter.leave)(at)
    inside = np.minimum(ends, 8000) - np.maximum(starts, 2000)
    expected = np.clip(inside, 0, None).sum() / 6000
    assert counter.mean(2000, 8000) == pytest.approx(expected)
    assert np.mean(counter.bins(2000, 8000, 100)) == pytest.approx(expected)


def test_an_empty_window_has_no_mean() -> None:
    assert InFlight(0).mean(5, 5) is None
