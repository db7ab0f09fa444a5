"""The scenario file as typed models: every key, its default, and what makes a value wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    TypeAdapter,
    WithJsonSchema,
    model_validator,
)

from loadgen.scenario.arrivals import ArrivalsField
from loadgen.scenario.asking import Api, Asking, Template
from loadgen.scenario.datasets import Dataset
from loadgen.scenario.fields import (
    Count,
    Duration,
    Model,
    Objective,
    ObjectiveText,
    Positive,
    PositiveDuration,
    format_duration,
    given_of,
    parse_duration_s,
)
from loadgen.scenario.lengths import LengthDist


class DatasetSpec(Model):
    """Prompts from a JSONL or CSV file."""

    path: str
    field: str = "prompt"
    when_short: Literal["error", "repeat", "stop"] = "error"
    max_prompt_tokens: Count | None = None


class Prompt(Model):
    """Rendered text of the wanted length, or the prompts of a data set."""

    tokens: LengthDist | None = None
    dataset: DatasetSpec | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Prompt:
        if (self.tokens is None) == (self.dataset is None):
            raise ValueError("prompt takes either tokens or dataset")
        return self


class Output(Model):
    """How many tokens are asked for (max_tokens)."""

    tokens: LengthDist


class SharedPrefix(Model):
    """The first `tokens` of each prompt are one of `groups` texts."""

    tokens: Count
    groups: Count = 1


class Workload(Model):
    """What one request looks like."""

    prompt: Prompt
    output: Output
    shared_prefix: SharedPrefix | None = None
    ignore_eos: bool = Field(default=True, strict=True)

    @model_validator(mode="after")
    def _prefix_fits(self) -> Workload:
        if self.shared_prefix is None:
            return self
        if self.prompt.tokens is None:
            raise ValueError("shared_prefix needs prompt.tokens: the prompts of a data set are sent as they are")
        longest = _longest(self.prompt.tokens)
        if longest is not None and longest <= self.shared_prefix.tokens:
            raise ValueError(f"shared_prefix.tokens ({self.shared_prefix.tokens}) fills prompts of at most {longest}")
        return self


def _longest(dist: LengthDist) -> int | None:
    uniform_high = dist.uniform.high if dist.uniform else None
    caps = [cap for cap in (dist.fixed, uniform_high, dist.max_tokens) if cap is not None]
    return min(caps) if caps else None


_RATES = TypeAdapter(tuple[Positive, ...])


def _parse_rates(value: object) -> object:
    if value is None or value == "auto":
        return value
    rates = [value] if isinstance(value, int | float) and not isinstance(value, bool) else value
    if not isinstance(rates, list | tuple):
        raise ValueError(f"a list of requests/s, or auto (got {value!r})")
    if not rates:
        raise ValueError("the ladder of rates is empty")
    # Checked here and not by the union, which would complain a second time that the list is not 'auto'.
    return _RATES.validate_python(tuple(rates))


def _parse_concurrency(value: object) -> object:
    levels = [value] if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(levels, list | tuple) and not levels:
        raise ValueError("the ladder of concurrencies is empty")
    return tuple(levels) if isinstance(levels, list) else levels


def _parse_cooldown_s(value: object) -> float | None:
    return None if value is None or value == "auto" else parse_duration_s(value)


def _cooldown_text(seconds: float | None) -> str:
    return "auto" if seconds is None else format_duration(seconds)


Rates = Literal["auto"] | tuple[Positive, ...]
Cooldown = Annotated[
    float | None,
    PlainValidator(_parse_cooldown_s),
    PlainSerializer(_cooldown_text, return_type=str),
    WithJsonSchema({"type": "string", "description": "auto, or a duration such as 30s"}),
]


class Load(Model):
    """How much load, for how long. `rates` is open loop, `concurrency` closed loop; one of them."""

    arrivals: ArrivalsField = "poisson"
    rates: Annotated[Rates | None, BeforeValidator(_parse_rates)] = None
    concurrency: Annotated[tuple[Count, ...] | None, BeforeValidator(_parse_concurrency)] = None
    duration_s: PositiveDuration = Field(default=60.0, alias="duration")
    warmup_s: Duration = Field(default=10.0, alias="warmup")
    cooldown_s: Cooldown = Field(default=None, alias="cooldown")
    max_in_flight: Count = 4096
    max_points: Count = 12

    @model_validator(mode="before")
    @classmethod
    def _one_ladder(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        rates, concurrency = value.get("rates"), value.get("concurrency")
        if rates is not None and concurrency is not None:
            raise ValueError("rates (open loop) and concurrency (closed loop) exclude each other")
        return value if rates is not None or concurrency is not None else {**value, "rates": "auto"}

    @property
    def mode(self) -> Literal["open", "closed"]:
        """`closed` when the ladder is one of concurrencies."""
        return "closed" if self.concurrency is not None else "open"

    @property
    def cooldown_max_s(self) -> float:
        """Longest cool-down; it ends before, when the last measured request has ended.

        `auto` is as long as the measured window, at least 10 s and at most 120 s.
        """
        return min(max(self.duration_s, 10.0), 120.0) if self.cooldown_s is None else self.cooldown_s


class Slo(Model):
    """The latency targets; a request or point is good when all hold."""

    ttft: ObjectiveText | None = None
    ttfo: ObjectiveText | None = None
    e2e: ObjectiveText | None = None
    itl: ObjectiveText | None = None
    tpot: ObjectiveText | None = None

    @property
    def objectives(self) -> dict[str, Objective]:
        """metric -> Objective, only those that were given."""
        return {name: getattr(self, name) for name in given_of(self, "ttft", "ttfo", "e2e", "itl", "tpot")}


class Roofline(Model):
    """What the bound needs to know about the server."""

    model: str | None = None
    hardware: str | None = None
    precision: str | None = None
    kv_precision: str | None = None
    devices: Count = 1
    model_config_path: str | None = Field(default=None, alias="model_config")


class Timeouts(Model):
    """When a request is given up."""

    connect_s: PositiveDuration = Field(default=10.0, alias="connect")
    read_s: PositiveDuration = Field(default=120.0, alias="read")
    total_s: PositiveDuration = Field(default=600.0, alias="total")


class Limit(Model):
    """The client's own token bucket: `burst` requests at once, and `rate` a second in the long run."""

    rate_rps: Positive = Field(alias="rate")
    burst: Count = 1


class Scenario(Model):
    """One scenario file, complete: with the seed it determines the whole schedule."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    api: Api = "chat"
    request: Asking = Field(default_factory=lambda: Asking())
    template: Template | None = None
    workload: Workload
    load: Load = Field(default_factory=lambda: Load())
    slo: Slo = Field(default_factory=lambda: Slo())
    roofline: Roofline = Field(default_factory=lambda: Roofline())
    seed: int = Field(default=0, strict=True, ge=0)
    timeouts: Timeouts = Field(default_factory=lambda: Timeouts())
    connections: Literal["warm", "cold"] = "warm"
    on_429: Literal["fail", "wait"] = "fail"
    limit: Limit | None = None

    _dataset: Dataset | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _template_with_its_api(self) -> Scenario:
        if (self.api == "template") != (self.template is not None):
            raise ValueError("api: template and the key template belong together")
        return self

    @property
    def dataset(self) -> Dataset | None:
        """The prompts of `workload.prompt.dataset`, read by `load_scenario`; None without a data set."""
        return self._dataset

    def as_json(self) -> dict[str, Any]:
        """The resolved scenario as plain JSON values; `Scenario.model_validate` reads it back."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The model inside an annotation such as `X | None`; None for a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := model_of(arg))), None)


def keys_of(model: type[BaseModel]) -> dict[str, type[BaseModel] | None]:
    """The keys of one mapping as written in the file -> the model below each, or None for a leaf."""
    return {field.alias or name: model_of(field.annotation) for name, field in model.model_fields.items()}


def all_keys(model: type[BaseModel] = Scenario, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key path of the schema, parents first."""
    for key, below in keys_of(model).items():
        yield (*path, key)
        if below is not None:
            yield from all_keys(below, (*path, key))
