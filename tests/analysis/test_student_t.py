"""Student's t against scipy as the independent reference."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from loadgen.analysis.student_t import t_quantile, t_tail


@pytest.mark.parametrize("df", [1, 2, 4, 7, 11, 39, 200])
@pytest.mark.parametrize("p", [0.011, 0.2, 0.5, 0.9, 0.975, 0.989, 0.9995])
def test_quantile_agrees_with_scipy(df: int, p: float) -> None:
    assert t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("t", [-30.0, -1.5, 0.0, 0.3, 2.0, 12.0, 80.0])
def test_tail_agrees_with_scipy(t: float) -> None:
    for df in (1, 4, 11, 100):
        assert t_tail(t, df) == pytest.approx(stats.t.sf(t, df), rel=1e-9)


def test_infinite_t_has_an_empty_tail_and_a_bad_probability_is_refused() -> None:
    assert t_tail(math.inf, 4) == 0.0
    assert t_tail(-math.inf, 4) == 1.0
    with pytest.raises(ValueError, match="probability"):
        t_quantile(1.0, 4)
