"""`bench doctor --url`: asks a server about itself and then twice for a short answer, and tells what was understood."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from time import monotonic_ns
from typing import Any

import anyio
import click

from engine_adapters.base import Request, StreamOutcome
from engine_adapters.dialect import DialectAdapter
from engine_adapters.local_tokens import load_counter
from engine_adapters.observed import events_of
from engine_adapters.transport import HttpClient
from loadgen.analysis.summary import scrub
from loadgen.commands.common import UsageProblem, base_url
from loadgen.commands.credentials import request_headers
from loadgen.commands.endpoint import Server, named_server, open_client, open_endpoint
from loadgen.commands.measuring import uvloop_is_there
from loadgen.commands.problems import users_problems
from loadgen.commands.understood import Trial, Understood, as_data, table
from loadgen.redaction import redacted
from loadgen.scenario.loader import load_scenario
from loadgen.scenario.schema import Scenario

PROMPT = "Count from one to one hundred in words, with a comma after each."
N_TOKENS = 16
SCENARIO = "chat"  # for its timeouts and the way its requests are asked, unless --scenario names another


def examine_server(url: str, options: Mapping[str, Any], as_json: bool) -> None:
    """Print what the server says of itself and how its answers come, as a table or as JSON.

    Raises UsageProblem when it can't be asked at all, or when the answer was no success (after the table).
    """
    headers = request_headers(options)
    with users_problems():
        if options["api"] == "template" and not options["scenario"]:
            raise UsageProblem("--api template: name the file that has the template with --scenario FILE")
        scenario = load_scenario(options["scenario"] or SCENARIO, [f"api={options['api']}"] if options["api"] else [])
        server = named_server(base_url(url), scenario, options["model"], headers, options)
        found = anyio.run(_examine, server, scenario, backend_options={"use_uvloop": uvloop_is_there()})
    click.echo(json.dumps(redacted(scrub(as_data(found))), indent=2, allow_nan=False) if as_json else table(found))
    if not found.first.outcome.ok:
        raise UsageProblem(f"the answer was no success: {found.first.outcome.error}")


async def _examine(server: Server, scenario: Scenario) -> Understood:
    async with _client(server, scenario) as client:
        adapter, endpoint = await open_endpoint(client, server, scenario)
    asking = adapter.asking
    again = (
        replace(asking, usage="every_event") if adapter.dialect.counts_events and asking.usage == "final" else asking
    )
    counter = load_counter(server.tokenizer) if server.tokenizer else None
    # Another client: its first request has to look the name up and to open a connection, and shows what that takes.
    async with _client(server, scenario) as client:
        first = await _try(DialectAdapter(client, adapter.dialect, asking, counter), warm=False)
        second = await _try(DialectAdapter(client, adapter.dialect, again, counter), warm=True)
        return Understood(endpoint, adapter.dialect, asking, first, second, client.via, server.api_is_fixed)


@asynccontextmanager
async def _client(server: Server, scenario: Scenario) -> AsyncIterator[HttpClient]:
    client = open_client(server, scenario)
    try:
        yield client
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()


async def _try(adapter: DialectAdapter, *, warm: bool) -> Trial:
    """One request, with all that was read of its answer."""
    outcome, reads = StreamOutcome(), list[tuple[int, bytes]]()
    reader = adapter.reader(outcome)

    def on_read(instant_ns: int, chunk: bytes) -> None:
        reads.append((instant_ns, chunk))
        reader.on_read(instant_ns, chunk)

    body = adapter.encode(Request(PROMPT, N_TOKENS))
    if not warm:
        await adapter.warm(0)  # what is made once is made, and no connection is open
    begun_ns = monotonic_ns()
    await adapter.client.stream(adapter.path, body, "doctor", outcome, on_read)
    reader.finish()
    adapter.client.hide(outcome)
    return Trial(begun_ns, N_TOKENS, outcome, events_of(adapter.dialect, reads, whole=adapter.whole))
