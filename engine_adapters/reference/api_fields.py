"""Reads typed fields out of a request's JSON body, and refuses what is wrong as vLLM words it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, Any]


class ApiError(Exception):
    """A request that is refused: an HTTP status and OpenAI's error object."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(message, kind, param, status)


def error_body(message: str, kind: str, param: str | None, status: int) -> bytes:
    """OpenAI's error object as JSON."""
    error = {"message": message, "type": kind, "param": param, "code": status}
    return json.dumps({"error": error}, separators=(",", ":")).encode()


def bad_value(param: str, rule: str, value: object) -> ApiError:
    """A value of the right type outside its range: `rule` completes "temperature must ..."."""
    shown = shorten(repr(value))
    return ApiError(400, f"{param} must {rule}, got {shown}. (parameter={param}, value={shown})", param=param)


def bad_type(param: str, expected: str, value: object) -> ApiError:
    """A value of the wrong JSON type."""
    detail = {"type": f"{expected}_type", "loc": f"body.{param}", "msg": f"Input should be a valid {expected}"}
    text = f"1 validation error:\n  {detail | {'input': shorten(str(value))}}"
    return ApiError(400, text, "Bad Request", f"body.{param}")


def missing(param: str) -> ApiError:
    """A field that must be there."""
    detail = {"type": "missing", "loc": f"body.{param}", "msg": "Field required"}
    return ApiError(400, f"1 validation error:\n  {detail}", "Bad Request", f"body.{param}")


def unsupported(param: str, what: str) -> ApiError:
    """Something of the API that this engine does not do."""
    return ApiError(400, what, param=param)


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`; raises ApiError."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}", "Bad Request") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "the body must be a JSON object", "Bad Request")
    return fields


def check_model(fields: Fields, served: str) -> None:
    """Raise ApiError 404 if `model` names another one; without a name the served model is meant, as in vLLM."""
    name = fields.get("model")
    if name is not None and name != served:
        text = f"The model `{shorten(str(name))}` does not exist. Valid aliases: {served}."
        raise ApiError(404, text, "NotFoundError", "model")


def integer(fields: Fields, name: str, default: int, at_least: int, at_most: int | None = None) -> int:
    """A whole number in its range; the default where it is left out or null."""
    value = fields.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise bad_type(name, "integer", value)
    if value < at_least:
        raise bad_value(name, f"be at least {at_least}", value)
    if at_most is not None and value > at_most:
        raise bad_value(name, f"be at most {at_most}", value)
    return value


def number(fields: Fields, name: str, default: float, low: float, high: float, above: bool = False) -> float:
    """A number from `low` to `high`, or above `low`; the default where it is left out or null."""
    value = fields.get(name)
    if value is None:
        return default
    if type(value) not in (int, float):
        raise bad_type(name, "number", value)
    if not math.isfinite(value) or not (low < value if above else low <= value) or value > high:
        raise bad_value(name, f"be in {'(' if above else '['}{low:g}, {high:g}]", value)
    return float(value)


def flag(fields: Fields, name: str) -> bool:
    """True or false; false where it is left out or null."""
    value = fields.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise bad_type(name, "boolean", value)


def mapping(fields: Fields, name: str) -> Fields:
    """An object; empty where it is left out or null."""
    value = fields.get(name)
    if value is None or isinstance(value, dict):
        return value or {}
    raise bad_type(name, "dictionary", value)


def strings(fields: Fields, name: str) -> tuple[str, ...]:
    """One string or a list of them, empty ones left out; none where it is left out or null."""
    value = fields.get(name)
    values = [value] if isinstance(value, str) else value or []
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise bad_type(name, "list", value)
    return tuple(each for each in values if each)


def shorten(text: str, limit: int = 200) -> str:
    """A client's own text, short enough to be sent back to it."""
    return text if len(text) <= limit else text[:limit] + "..."
