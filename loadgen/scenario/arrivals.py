"""Arrival processes at unit rate; a wanted rate only stretches them."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator

from loadgen.scenario.errors import did_you_mean
from loadgen.scenario.fields import Model, Positive

Floats = npt.NDArray[np.float64]


class Gamma(Model):
    """Gamma gaps of shape `burstiness` (as in vLLM): gap CV = 1/sqrt(burstiness); 1 is Poisson, below 1 is bursty."""

    burstiness: Positive


class GammaArrivals(Model):
    """`{gamma: {burstiness: 0.5}}`."""

    gamma: Gamma


def _parse_arrivals(value: object) -> object:
    if isinstance(value, dict):
        return GammaArrivals.model_validate(value)
    names = ("constant", "poisson", "gamma")
    if value == "gamma":
        raise ValueError("gamma needs its burstiness: {gamma: {burstiness: 0.5}}")
    if not isinstance(value, str | GammaArrivals):
        raise ValueError(f"constant, poisson, or {{gamma: {{burstiness: 0.5}}}} (got {value!r})")
    if isinstance(value, str) and value not in names:
        raise ValueError(f"unknown arrival process '{value}'{did_you_mean(value, names)}")
    return value


Arrivals = Literal["constant", "poisson"] | GammaArrivals
ArrivalsField = Annotated[Arrivals, BeforeValidator(_parse_arrivals)]


def unit_arrivals(process: Arrivals, rng: np.random.Generator, n: int) -> Floats:
    """The first `n` instants, ascending, of the process at one arrival a unit of time.

    The first comes one gap after zero. Nothing is rescaled: n arrivals take n units on average, with the variance that
    the process has (forcing the last one onto n would take away the variance of the rate).
    """
    return np.cumsum(unit_gaps(process, rng, n))


def unit_gaps(process: Arrivals, rng: np.random.Generator, n: int) -> Floats:
    """`n` gaps of mean 1: all 1 (constant), exponential (poisson), or gamma of shape b and scale 1/b."""
    if isinstance(process, GammaArrivals):
        shape = process.gamma.burstiness
        return rng.standard_gamma(shape, n) / shape
    return rng.standard_exponential(n) if process == "poisson" else np.ones(n)


def unit_arrivals_before(process: Arrivals, rng: np.random.Generator, horizon: float) -> Floats:
    """All arrivals of the unit process in [0, horizon)."""
    n_guess = math.ceil(horizon + 6 * gap_cv(process) * math.sqrt(horizon + 1)) + 16
    gaps = unit_gaps(process, rng, n_guess)
    while gaps.sum() < horizon:
        gaps = np.concatenate((gaps, unit_gaps(process, rng, n_guess)))
    # One sum over all gaps, so that the instants are the same to the last bit whatever the horizon.
    arrivals = np.cumsum(gaps)
    return arrivals[: np.searchsorted(arrivals, horizon)]


def gap_cv(process: Arrivals) -> float:
    """Coefficient of variation of the gaps: 0 constant, 1 poisson, 1/sqrt(b) gamma of burstiness b.

    For these renewal processes the index of dispersion of counts tends to its square.
    """
    if isinstance(process, GammaArrivals):
        return 1 / math.sqrt(process.gamma.burstiness)
    return 1.0 if process == "poisson" else 0.0


def describe(process: Arrivals) -> str:
    """For the conditions: `poisson arrivals`."""
    if isinstance(process, GammaArrivals):
        return f"gamma arrivals of burstiness {process.gamma.burstiness:g}"
    return f"{process} arrivals"
