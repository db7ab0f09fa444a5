"""The secrets of this process, and texts without them: the last guard, after never writing one in the first place."""

from __future__ import annotations

import json
import re
from html import escape
from urllib.parse import quote

HIDDEN = "***"
SHORTEST = 6  # a shorter value ("EMPTY", "test") is no secret, and hiding it would garble every text

_secrets: set[str] = set()  # of this process: a traceback must not show them, wherever it comes from


def keep_secret(value: str) -> None:
    """From now on `redact` hides the value, and each of its parts that could be a secret by itself (`Bearer KEY`)."""
    for part in {value, *re.split(r"[\s;,=]+", value)}:
        if len(part) >= SHORTEST and part.lower() not in ("bearer", "basic", "token"):
            _secrets.update((part, quote(part, safe=""), escape(part), json.dumps(part)[1:-1]))


def redact(text: str) -> str:
    """The text with *** for every secret that is known."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text
