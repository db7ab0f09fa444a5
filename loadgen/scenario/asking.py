"""How requests are put to the server: which API, which of its fields, or a body of the user's own."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from engine_adapters.base import API_ALIASES, API_NAMES, adapter_entry_points
from loadgen.scenario.errors import did_you_mean
from loadgen.scenario.fields import Model

# The names under which the two OpenAI APIs stand in files and in `schedule_id`.
_SHORT = {long: short for short, long in API_ALIASES.items() if short in ("chat", "completions")}
_PATH = re.compile(r"[^.\[\]\s]+(\[-?\d+\]|\.[^.\[\]\s]+)*")


def known_api(value: object) -> object:
    """An API's name, the OpenAI ones in their short form; ValueError names the known ones."""
    names = [*API_ALIASES, *API_NAMES]
    if not isinstance(value, str):
        raise ValueError(f"the name of an API (got {value!r})")
    if value in names or value in adapter_entry_points():
        return _SHORT.get(value, value)
    raise ValueError(f"unknown API '{value}'{did_you_mean(value, names)}; known: {', '.join(API_NAMES)}")


def _json_path(value: str) -> str:
    if not _PATH.fullmatch(value):
        raise ValueError(f"'{value}' is no path into JSON: write choices[0].delta.content")
    return value


def _url_path(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError(f"'{value}' is no path of a URL: begin it with /")
    return value


Api = Annotated[str, BeforeValidator(known_api), Field(json_schema_extra={"enum": [*API_ALIASES, *API_NAMES]})]
JsonPath = Annotated[str, AfterValidator(_json_path)]
UrlPath = Annotated[str, AfterValidator(_url_path)]


class Asking(Model):
    """What differs from the API's usual request."""

    usage: Literal["final", "every_event", "never"] = "final"
    max_tokens_field: str | None = None
    path: UrlPath | None = None
    extra: dict[str, Any] = Field(default_factory=dict)


class TemplateUsage(Model):
    """Where an event has the server's counts."""

    prompt_tokens: JsonPath | None = None
    completion_tokens: JsonPath | None = None


class Template(Model):
    """A request body with places in it, and JSON paths into the events of the answer."""

    path: UrlPath
    body: dict[str, Any]
    framing: Literal["sse", "ndjson", "whole"] = "sse"
    text: JsonPath
    reasoning: JsonPath | None = None
    cumulative: bool = Field(default=False, strict=True)
    finish_reason: JsonPath | None = None
    done: JsonPath | None = None
    error: JsonPath = "error"
    usage: TemplateUsage | None = None

    @model_validator(mode="after")
    def _has_its_places(self) -> Template:
        if not re.search(r"\{prompt\}", repr(self.body)):
            raise ValueError("body has no {prompt}: each request would be the same")
        return self
