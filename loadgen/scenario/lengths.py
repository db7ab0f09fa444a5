"""Token-length distributions: from uniform numbers to whole token counts, their mean, and their text."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, GetJsonSchemaHandler, model_validator

from loadgen.scenario.fields import Count, Model, Positive, Weight, given_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_MEAN_GRID = 1 << 14


# A lognormal with a given mean can reach p95 = mean x exp(z95^2 / 2) and no more.
Z95 = 1.6448536269514722
LOGNORMAL_MAX_P95_TO_MEAN = 3.868


class Uniform(Model):
    """Every whole number from low to high, both included, equally often."""

    low: Count
    high: Count

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        return self


class Normal(Model):
    """Normal, rounded."""

    mean: Positive
    std: Weight


class Lognormal(Model):
    """Lognormal, rounded; given by median and sigma, median and p95, or mean and p95."""

    median: Positive | None = None
    sigma: Weight | None = None
    mean: Positive | None = None
    p95: Positive | None = None

    @model_validator(mode="after")
    def _two_parameters(self) -> Lognormal:
        given = set(given_of(self, "median", "sigma", "mean", "p95"))
        if given not in ({"median", "sigma"}, {"median", "p95"}, {"mean", "p95"}):
            raise ValueError("lognormal takes median and sigma, median and p95, or mean and p95")
        if self.p95 is not None:
            self._check_p95(self.p95)
        return self

    def _check_p95(self, p95: float) -> None:
        if self.median is not None and p95 < self.median:
            raise ValueError(f"p95 ({p95:g}) is below the median ({self.median:g})")
        if self.mean is not None and not 1 <= p95 / self.mean <= LOGNORMAL_MAX_P95_TO_MEAN:
            raise ValueError(f"no lognormal: p95 must lie between 1 and {LOGNORMAL_MAX_P95_TO_MEAN} times the mean")


class Histogram(Model):
    """Empirical: `values` with a weight each, or `bins` (ascending edges) with a weight for each bin between them."""

    values: tuple[Count, ...] | None = None
    bins: tuple[Count, ...] | None = None
    weights: tuple[Weight, ...]

    @model_validator(mode="after")
    def _shape(self) -> Histogram:
        if (self.values is None) == (self.bins is None):
            raise ValueError("histogram takes either values or bins")
        n_wanted = len(self.values) if self.values is not None else len(self.bins or ()) - 1
        if n_wanted < 1 or len(self.weights) != n_wanted:
            raise ValueError(f"histogram has {len(self.weights)} weights for {max(n_wanted, 0)} values or bins")
        if sum(self.weights) <= 0:
            raise ValueError("the weights of the histogram are all zero")
        if self.bins is not None and any(a >= b for a, b in zip(self.bins, self.bins[1:], strict=False)):
            raise ValueError("the bin edges must ascend")
        return self


class LengthDist(Model):
    """A distribution of token counts: one shape, clipped to min and max. A bare number is a fixed length."""

    fixed: Count | None = None
    uniform: Uniform | None = None
    normal: Normal | None = None
    lognormal: Lognormal | None = None
    histogram: Histogram | None = None
    min_tokens: Count | None = Field(default=None, alias="min")
    max_tokens: Count | None = Field(default=None, alias="max")

    @model_validator(mode="before")
    @classmethod
    def _bare_number(cls, value: Any) -> Any:
        return {"fixed": value} if isinstance(value, int | float) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _one_shape(self) -> LengthDist:
        shapes = given_of(self, *_QUANTILES)
        if len(shapes) != 1:
            got = f" (got {' and '.join(shapes)})" if shapes else ""
            raise ValueError(f"a length takes exactly one of {', '.join(_QUANTILES)}{got}")
        if self.min_tokens and self.max_tokens and self.min_tokens > self.max_tokens:
            raise ValueError(f"min ({self.min_tokens}) is above max ({self.max_tokens})")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        mapping = handler.resolve_ref_schema(handler(core_schema))
        return {"anyOf": [{"type": "integer", "minimum": 1}, mapping]}


def sample(dist: LengthDist, rng: np.random.Generator, n: int) -> Ints:
    """`n` token counts, one uniform number each: request i keeps its rank when the distribution is edited."""
    return quantile(dist, rng.random(n))


def quantile(dist: LengthDist, u: Floats) -> Ints:
    """Token counts at the probabilities `u` in [0, 1): the inverse distribution function, rounded, then clipped.

    min and max clip: a value outside moves to the edge. The quantiles between the edges therefore stay as they were
    written (`p95: 6000` is 6,000 whatever the max above it), where redrawing would shift all of them. Never below 1.
    """
    raw = _raw_quantile(dist, np.clip(u, 1e-12, 1 - 1e-12))
    low = dist.min_tokens or 1
    high = dist.max_tokens or np.iinfo(np.int32).max
    return np.clip(np.rint(raw), low, high).astype(np.int64)


def mean(dist: LengthDist) -> float:
    """Mean token count, rounding and clipping included (midpoint rule over 16,384 quantiles)."""
    grid = (np.arange(_MEAN_GRID) + 0.5) / _MEAN_GRID
    return float(quantile(dist, grid).mean())


def median(dist: LengthDist) -> int:
    """Median token count, clipping included."""
    return int(quantile(dist, np.array([0.5]))[0])


def describe(dist: LengthDist) -> str:
    """One line for the conditions, for example `lognormal median 3,000, p95 6,000, 512 to 8,000`."""
    return _shape_text(dist) + _limits_text(dist)


def lognormal_parameters(shape: Lognormal) -> tuple[float, float]:
    """(mu, sigma) of ln(length).

    From median and p95: sigma = ln(p95/median) / z95. From mean and p95: ln(p95/mean) = z95 sigma - sigma^2/2, of whose
    two roots the smaller is meant.
    """
    if shape.median is not None:
        sigma = shape.sigma if shape.sigma is not None else math.log((shape.p95 or 0) / shape.median) / Z95
        return math.log(shape.median), sigma
    assert shape.mean is not None
    assert shape.p95 is not None
    sigma = Z95 - math.sqrt(max(0.0, Z95**2 - 2 * math.log(shape.p95 / shape.mean)))
    return math.log(shape.mean) - sigma**2 / 2, sigma


def _raw_quantile(dist: LengthDist, u: Floats) -> Floats:
    for name, shape_quantile in _QUANTILES.items():
        shape = getattr(dist, name)
        if shape is not None:
            return shape_quantile(shape, u)
    raise AssertionError("a validated LengthDist has a shape")


def _fixed(tokens: int, u: Floats) -> Floats:
    return np.full(u.shape, float(tokens))


def _uniform(shape: Uniform, u: Floats) -> Floats:
    return np.floor(shape.low + u * (shape.high - shape.low + 1))


def _normal(shape: Normal, u: Floats) -> Floats:
    return shape.mean + shape.std * _z(u)


def _lognormal(shape: Lognormal, u: Floats) -> Floats:
    mu, sigma = lognormal_parameters(shape)
    return np.exp(mu + sigma * _z(u))


def _histogram(shape: Histogram, u: Floats) -> Floats:
    edges = np.concatenate(([0.0], np.cumsum(shape.weights))) / sum(shape.weights)
    chosen = np.clip(np.searchsorted(edges, u, side="right") - 1, 0, len(shape.weights) - 1)
    if shape.values is not None:
        return np.asarray(shape.values, dtype=np.float64)[chosen]
    bins = np.asarray(shape.bins, dtype=np.float64)
    inside = (u - edges[chosen]) / (edges[chosen + 1] - edges[chosen])
    width = bins[chosen + 1] - bins[chosen]
    return bins[chosen] + np.minimum(np.floor(inside * width), width - 1)


def _z(u: Floats) -> Floats:
    inverse = NormalDist().inv_cdf
    return np.fromiter((inverse(float(p)) for p in u.ravel()), np.float64, u.size).reshape(u.shape)


_QUANTILES: dict[str, Callable[..., Floats]] = {
    "fixed": _fixed,
    "uniform": _uniform,
    "normal": _normal,
    "lognormal": _lognormal,
    "histogram": _histogram,
}


def _shape_text(dist: LengthDist) -> str:
    if dist.fixed is not None:
        return f"fixed {dist.fixed:,}"
    if dist.uniform is not None:
        return f"uniform {dist.uniform.low:,} to {dist.uniform.high:,}"
    if dist.normal is not None:
        return f"normal mean {_number(dist.normal.mean)}, std {_number(dist.normal.std)}"
    if dist.lognormal is not None:
        given = dist.lognormal.model_dump(exclude_none=True)
        return "lognormal " + ", ".join(f"{name} {_number(value)}" for name, value in given.items())
    assert dist.histogram is not None
    n_weights = len(dist.histogram.weights)
    kind = "values" if dist.histogram.values is not None else "bins"
    return f"histogram of {n_weights} {kind}, mean {mean(dist):,.0f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _limits_text(dist: LengthDist) -> str:
    low, high = dist.min_tokens, dist.max_tokens
    if low and high:
        return f", {low:,} to {high:,}"
    if high:
        return f", up to {high:,}"
    return f", at least {low:,}" if low else ""
