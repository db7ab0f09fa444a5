"""The table of APIs: by name, by the host of a URL, or from an installed package of the user's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from engine_adapters.anthropic import ANTHROPIC
from engine_adapters.base import API_ALIASES, OPENAI_APIS, PreflightError, adapter_entry_points
from engine_adapters.dialect import Dialect
from engine_adapters.native import LLAMA_CPP, OLLAMA, SGLANG, TGI, TRITON
from engine_adapters.openai import AZURE, CHAT, COMPLETIONS
from engine_adapters.responses import RESPONSES
from engine_adapters.template import template_dialect
from engine_adapters.vectors import EMBEDDINGS, RERANK

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        CHAT,
        COMPLETIONS,
        RESPONSES,
        AZURE,
        ANTHROPIC,
        SGLANG,
        TGI,
        LLAMA_CPP,
        OLLAMA,
        TRITON,
        EMBEDDINGS,
        RERANK,
    )
}


def find_dialect(api: str, template: Mapping[str, Any] | None = None) -> Dialect:
    """The dialect of that name; a `Dialect` in the group `openloop.adapters` of an installed package counts too.

    Raises PreflightError, one line for the user, when there is none or the package's is broken.
    """
    name = API_ALIASES.get(api, api)
    if name in DIALECTS:
        return DIALECTS[name]
    if name == "template":
        if template is None:
            raise PreflightError("api: template needs the key template in the scenario: path, body, text")
        return template_dialect(template)
    point = adapter_entry_points().get(name)
    if point is None:
        raise PreflightError(f"no API is called '{api}': {', '.join([*DIALECTS, 'template'])}")
    try:
        found = point.load()
    except Exception as error:
        raise PreflightError(f"the adapter '{name}' of {point.value} can't be loaded: {error!r}") from error
    if not isinstance(found, Dialect):
        raise PreflightError(f"the adapter '{name}' of {point.value} is no engine_adapters.dialect.Dialect")
    return found


def api_for_url(api: str, url: str) -> str:
    """`api`, unless it is OpenAI's and the URL's host is known to speak another one."""
    host = urlsplit(url).hostname or ""
    if API_ALIASES.get(api, api) not in OPENAI_APIS:
        return api
    if host.endswith(".openai.azure.com"):
        return "azure"
    return "anthropic" if host == "api.anthropic.com" else api


def with_headers(dialect: Dialect, headers: Mapping[str, str]) -> dict[str, str]:
    """The user's headers and the API's own; a bearer key moves to the header in which the API wants it."""
    result = {name.lower(): value for name, value in headers.items()}
    scheme, _, key = result.get("authorization", "").partition(" ")
    if dialect.key_header and scheme.lower() == "bearer" and dialect.key_header not in result:
        del result["authorization"]
        result[dialect.key_header] = key
    return {**dialect.headers, **result}
