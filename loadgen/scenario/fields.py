"""The building blocks of the schema: strict numbers, durations with units, latency objectives, frozen models."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, WithJsonSchema

UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-zµ]*)\s*")
_OBJECTIVE = re.compile(r"\s*(\w+)\s*<=?\s*(.+)")
STATS = ("p50", "p90", "p95", "p99", "mean")


def parse_duration_s(value: object) -> float:
    """Seconds of a text such as `60s`, `2m`, `500ms`; ValueError names what is missing."""
    if isinstance(value, int | float):
        raise ValueError(f"{value} has no unit: write {value}s, {value}ms or {value}m")
    match = _DURATION.fullmatch(str(value))
    if not match:
        raise ValueError(f"'{value}' is not a duration: write a number and a unit, for example 60s or 500ms")
    number, unit = match.groups()
    if unit not in UNITS_S:
        known = ", ".join(UNITS_S)
        raise ValueError(f"'{value}' has {f'the unknown unit {unit!r}' if unit else 'no unit'}; units are {known}")
    return float(number) * UNITS_S[unit]


def format_duration(seconds: float) -> str:
    """The text that `parse_duration_s` reads back as the same number of seconds."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.12g}ms"
    return f"{seconds:.12g}s"


def _positive_duration_s(value: object) -> float:
    seconds = parse_duration_s(value)
    if seconds <= 0:
        raise ValueError("must be longer than 0s")
    return seconds


_DURATION_JSON = WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)?\s*(us|ms|s|m|min|h)$"})
_AS_TEXT = PlainSerializer(format_duration, return_type=str)
Duration = Annotated[float, PlainValidator(parse_duration_s), _AS_TEXT, _DURATION_JSON]
PositiveDuration = Annotated[float, PlainValidator(_positive_duration_s), _AS_TEXT, _DURATION_JSON]
Count = Annotated[int, Field(strict=True, ge=1)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


class Model(BaseModel):
    """Frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), populate_by_name=False)


def given_of(model: BaseModel, *names: str) -> list[str]:
    """Those of the fields `names` that are not None."""
    return [name for name in names if getattr(model, name) is not None]


@dataclass(frozen=True, slots=True)
class Objective:
    """One latency target: the statistic `stat` of a metric has to stay below `limit_s`."""

    stat: str
    limit_s: float

    def __str__(self) -> str:
        return f"{self.stat} < {format_duration(self.limit_s)}"


def parse_objective(value: object) -> Objective:
    """`p95 < 500ms` as an Objective; ValueError says which part is wrong."""
    if isinstance(value, Objective):
        return value
    match = _OBJECTIVE.fullmatch(value) if isinstance(value, str) else None
    if not match:
        raise ValueError(f'{value!r} is no objective: write "p95 < 500ms"')
    stat, limit = match.groups()
    if stat not in STATS:
        raise ValueError(f"unknown statistic '{stat}'; known: {', '.join(STATS)}")
    return Objective(stat, _positive_duration_s(limit))


ObjectiveText = Annotated[
    Objective,
    PlainValidator(parse_objective),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^(p50|p90|p95|p99|mean)\s*<=?\s*\d+(\.\d+)?\s*(us|ms|s|m|min|h)$"}),
]
