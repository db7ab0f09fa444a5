"""The server that a command measures: where it is, which API it is asked by, and what it told beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from engine_adapters.apis import api_for_url, find_dialect, with_headers
from engine_adapters.dialect import Asking, DialectAdapter
from engine_adapters.local_tokens import load_counter
from engine_adapters.network import Network
from engine_adapters.preflight import Endpoint, preflight
from engine_adapters.transport import HttpClient, Timeouts
from loadgen.commands.bundled import Bundled
from loadgen.commands.common import UsageProblem
from loadgen.commands.credentials import filled, keep_proxy_secret
from loadgen.redaction import redact
from loadgen.scenario.schema import Scenario

NETWORK_OPTIONS = tuple(field.name for field in fields(Network))


@dataclass(frozen=True)
class Server:
    """Where requests go and how to ask. `bundled` is set when the engine is ours and ends with the run.

    `api_is_fixed` says that the user named the API, so that a server without it is an error and not asked for its own.
    """

    url: str
    model: str | None
    api: str
    headers: Mapping[str, str] = field(default_factory=dict)
    bundled: Bundled | None = None
    api_is_fixed: bool = False
    tokenizer: Path | None = None
    network: Network = field(default_factory=Network)


def named_server(
    url: str, scenario: Scenario, model: str | None, headers: Mapping[str, str], options: Mapping[str, Any]
) -> Server:
    """The server at `url` as the options and the scenario describe it, with the headers that its API wants."""
    api = api_for_url(scenario.api, url)
    dialect = find_dialect(api, template_of(scenario))
    return Server(
        url,
        model,
        api,
        with_headers(dialect, headers),
        api_is_fixed=options["api"] is not None,
        tokenizer=options["tokenizer"],
        network=network_of(options),
    )


def network_of(options: Mapping[str, Any]) -> Network:
    """How the options say that the server is reached."""
    if options["key_file"] and not options["cert_file"]:
        raise UsageProblem("--key belongs to a certificate: give --cert FILE too")
    if options["trust_env"]:
        keep_proxy_secret()
    return Network(**{name: options[name] for name in NETWORK_OPTIONS})


def open_client(server: Server, scenario: Scenario) -> HttpClient:
    """A client for the server that shows no secret; raises PreflightError when it can't be reached in this way."""
    limits = scenario.timeouts
    return HttpClient(
        server.url,
        server.headers,
        Timeouts(limits.connect_s, limits.read_s, limits.total_s),
        network=server.network,
        redact=redact,
    )


async def open_endpoint(client: HttpClient, server: Server, scenario: Scenario) -> tuple[DialectAdapter, Endpoint]:
    """The adapter for the server and what it told; see `preflight`."""
    count_tokens = load_counter(server.tokenizer) if server.tokenizer else None
    request = scenario.request
    asking = Asking(
        model="",
        usage=request.usage,
        max_tokens_field=request.max_tokens_field,
        path=request.path,
        extra=filled(request.extra, "request.extra"),
        template=template_of(scenario),
    )
    return await preflight(
        client, server.model, server.api, asking=asking, api_is_fixed=server.api_is_fixed, count_tokens=count_tokens
    )


def template_of(scenario: Scenario) -> dict[str, Any] | None:
    """The scenario's template as plain values, its body with what the environment holds."""
    if scenario.template is None:
        return None
    told = scenario.template.model_dump(exclude_none=True)
    return told | {"body": filled(told["body"], "template.body")}
