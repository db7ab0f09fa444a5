"""The secrets of this process, and texts without them: the last guard, after never writing one in the first place."""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any
from urllib.parse import quote

HIDDEN = "***"
SHORTEST = 6  # a shorter value ("EMPTY", "test") is no secret, and hiding it would garble every text

_secrets: set[str] = set()  # of this process: a traceback must not show them, wherever it comes from


def keep_secret(value: str) -> None:
    """From now on `redact` hides the value, and each of its parts that could be a secret by itself (`Bearer KEY`)."""
    pieces = re.split(r"[\s;,]+", value)
    for part in {value, *pieces, *(piece.partition("=")[2] for piece in pieces)}:
        if len(part) >= SHORTEST and part.lower() != "bearer":
            _secrets.update((part, quote(part, safe=""), escape(part), json.dumps(part)[1:-1], _in_python(part)))


def redact(text: str) -> str:
    """The text with *** for every secret that is known, also for the beginning of one at which the text was cut."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    for secret in _secrets:
        lengths = range(min(len(secret) - 1, len(text)), SHORTEST - 1, -1)
        cut = next((n for n in lengths if text.endswith(secret[:n])), 0)
        text = text[: len(text) - cut] + HIDDEN * bool(cut)
    return text


def redacted(value: Any) -> Any:
    """A JSON value with every text in it gone through `redact`, names too."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    if isinstance(value, dict):
        return {redact(name): redacted(item) for name, item in value.items()}
    return value


def _in_python(text: str) -> str:
    """As it stands between the quotes of a Python string that has quotes of both kinds in it."""
    return text.replace("\\", r"\\").replace("'", r"\'")
