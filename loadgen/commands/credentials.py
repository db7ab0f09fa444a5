"""Secrets: where they come from, which headers they become, and that no text of ours shows them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

import click

from loadgen.commands.common import UsageProblem
from loadgen.redaction import keep_secret

NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
TELLING = re.compile(r"auth|cookie|key|token|secret|passw", re.IGNORECASE)


def request_headers(options: Mapping[str, Any]) -> dict[str, str]:
    """The headers to send, lower-case, from the options `api_key_env`, `api_key_file` and `headers`.

    Raises UsageProblem, which never has a value in it. A secret that was typed is warned about: `ps` shows it.
    """
    result = dict(_header(text) for text in options["headers"])
    if options["api_key_env"] and options["api_key_file"]:
        raise UsageProblem("--api-key-env and --api-key-file both name the API key: give one of them")
    key = None
    if options["api_key_env"]:
        key = _from_environment(options["api_key_env"], "--api-key-env")
    elif options["api_key_file"]:
        key = _from_file(Path(options["api_key_file"]), "--api-key-file")
    if key:
        result["authorization"] = f"Bearer {_sendable(key, 'the API key')}"
    return result


def filled(value: Any, place: str) -> Any:
    """A JSON value in which every text that is `$VARIABLE` alone is replaced; for bodies, whose files keep the name."""
    if isinstance(value, str) and (found := VARIABLE.fullmatch(value)):
        return _from_environment(found[1] or found[2], place)
    if isinstance(value, list):
        return [filled(item, place) for item in value]
    return {name: filled(item, place) for name, item in value.items()} if isinstance(value, dict) else value


def keep_proxy_secret() -> None:
    """Hide the user and password of the environment's proxies."""
    for proxy in getproxies().values():
        userinfo, at, _ = proxy.rpartition("://")[2].partition("/")[0].rpartition("@")
        for part in (userinfo, *userinfo.partition(":")[::2]) if at else ():
            keep_secret(part)
            keep_secret(unquote(part))


def clean_url(url: str) -> str:
    """A URL for an error message: without user, password, query and fragment."""
    scheme, mark, rest = url.split("?")[0].split("#")[0].rpartition("://")
    return scheme + mark + rest.rpartition("@")[2]


def has_credentials(url: str) -> bool:
    """Whether a URL holds, or may hold, a secret: user:password, a query, a fragment."""
    parts = urlsplit(url)
    return "@" in parts.netloc or bool(parts.query) or bool(parts.fragment)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    name, value = name.strip().lower(), value.strip()
    if not colon or not NAME.fullmatch(name):
        raise UsageProblem("a --header looks like 'Name: value', 'Name: $VARIABLE' or 'Name: @FILE'")
    place = f"--header {name}"
    if value.startswith("@"):
        return name, _sendable(_from_file(Path(value[1:]), place), place)
    filled = VARIABLE.sub(lambda found: _from_environment(found[1] or found[2], place), value)
    if filled == value and TELLING.search(name):
        keep_secret(value)
        click.echo(f"{place}: `ps` shows what is typed: '{name}: $VARIABLE' or '{name}: @FILE' does not", err=True)
    return name, _sendable(filled, place)


def _from_environment(name: str, place: str) -> str:
    value = os.environ.get(name, "").strip()
    if not value and not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise UsageProblem(f"{place} takes the name of an environment variable, not its value")
    if not value:
        # A key without punctuation would pass for a name: what does not look like one is not repeated.
        shown = f" {name}" if re.fullmatch(r"[A-Z_][A-Z0-9_]{0,30}", name) else ""
        raise UsageProblem(f"{place}{shown}: that environment variable is not set")
    keep_secret(value)
    return value


def _from_file(path: Path, place: str) -> str:
    try:
        value = path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise UsageProblem(f"{place} {path}: the file is not UTF-8 text") from None
    except FileNotFoundError:  # perhaps a key that was typed in place of a name: it is not repeated
        raise UsageProblem(f"{place}: there is no such file") from None
    except OSError as error:
        raise UsageProblem(f"{place} {path}: {error.strerror}") from None
    if not value:
        raise UsageProblem(f"{place} {path}: the file is empty")
    for line in value.splitlines():
        keep_secret(line)
    keep_secret(value)
    return value


def _sendable(value: str, place: str) -> str:
    """A header's value as it can be sent; what the HTTP library says about another one has the value in it."""
    if not value.isascii() or not value.isprintable():
        raise UsageProblem(f"{place}: the value has characters that no header can have (a line break, an accent)")
    return value
