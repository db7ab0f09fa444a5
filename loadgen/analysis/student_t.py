"""Student's t distribution in plain Python: the two functions that intervals and the gate need, without scipy."""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300


def t_tail(t: float, df: float) -> float:
    """P(T > t) for Student's t with `df` degrees of freedom (any real t; `df` > 0)."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    upper = 0.5 * _regularized_beta(df / (df + t * t), df / 2, 0.5)
    return upper if t >= 0 else 1.0 - upper


@lru_cache(maxsize=64)
def t_quantile(p: float, df: float) -> float:
    """The t with P(T <= t) = p, for 0 < p < 1; found by bisection, so accurate to 1e-12 relative."""
    if not 0 < p < 1:
        raise ValueError(f"a probability strictly between 0 and 1 is needed, not {p}")
    if p < 0.5:
        return -t_quantile(1 - p, df)
    low, high = 0.0, 1.0
    while t_tail(high, df) > 1 - p:
        high *= 2
    while high - low > 1e-13 * max(high, 1.0):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, df) > 1 - p else (low, middle)
    return (low + high) / 2


def _regularized_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b) by its continued fraction (Abramowitz and Stegun 26.5.8), on the side where that converges fast."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    if x < (a + 1) / (a + b + 2):
        return math.exp(log_front) * _beta_fraction(x, a, b) / a
    return 1 - math.exp(log_front) * _beta_fraction(1 - x, b, a) / b


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Lentz's evaluation of the continued fraction of the incomplete beta function."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or _TINY)
    value = d
    for m in range(1, 1000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + term * d or _TINY)
            c = 1 + term / c or _TINY
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
