"""A handful of requests to any server, streamed and not: are text, tokens and finish reason the server's own?

`python tests/support/endpoint_check.py URL [--api NAME] [--model NAME]` prints a line a check; exit code 1 if one
failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from engine_adapters.base import PreflightError, Request, StreamOutcome
from engine_adapters.dialect import Asking, DialectAdapter
from engine_adapters.preflight import Endpoint, preflight
from engine_adapters.transport import HttpClient

PROMPT = "Measure the latency of a request: naïve café 测试 🚀."
N_TOKENS = 24


@dataclass(frozen=True)
class Finding:
    """One comparison: what was asked, whether it held, and both sides."""

    name: str
    holds: bool
    detail: str


async def send(
    adapter: DialectAdapter, asking: Asking, n_tokens: int = N_TOKENS, prompt: str = PROMPT
) -> StreamOutcome:
    """One request, asked in the given way."""
    outcome = StreamOutcome()
    variant = DialectAdapter(adapter.client, adapter.dialect, asking)
    await variant.stream(variant.encode(Request(PROMPT, n_tokens)), "endpoint-check", outcome)
    return outcome


async def check_endpoint(url: str, api: str, model: str | None, api_is_fixed: bool = True) -> list[Finding]:
    """Every finding about the server at `url`; PreflightError when it can't be asked at all."""
    client = HttpClient(url)
    try:
        adapter, endpoint = await preflight(client, model, api, api_is_fixed=api_is_fixed)
        return [finding async for finding in findings(adapter, endpoint)]
    finally:
        await client.close()


async def findings(adapter: DialectAdapter, endpoint: Endpoint) -> AsyncIterator[Finding]:
    asking = adapter.asking
    streamed = await send(adapter, asking)
    yield Finding("streamed", streamed.ok, streamed.error or f"{endpoint.engine}, {adapter.path}")
    whole = await send(adapter, replace(asking, stream=False))
    yield Finding("not streamed", whole.ok, whole.error or repr(whole.text[:40]))
    for name in ("text", "finish_reason", "prompt_tokens", "completion_tokens"):
        ours, its = getattr(streamed, name), getattr(whole, name)
        told = ours is None or its is None  # some tell it only one way
        yield Finding(f"{name} is the unstreamed answer's", ours == its or told, f"{ours!r} and {its!r}"[:100])
    yield Finding("instants are in order", in_order(streamed), repr(instants(streamed)))
    silent = await send(adapter, replace(asking, usage="never"))
    yield Finding("without usage", silent.ok and silent.text == streamed.text, f"source {silent.output_tokens_source}")
    one = await send(adapter, asking, n_tokens=1)
    yield Finding("one token", one.ok and one.output_tokens == 1, f"{one.output_tokens}, {one.error}")
    refused = await send(adapter, asking, n_tokens=-5)
    yield Finding("a senseless limit is no success", check_refused(refused), str(refused.error)[:100])
    if adapter.dialect.counts_events:
        counted = await send(adapter, replace(asking, usage="every_event"))
        told = not counted.read_tokens or sum(counted.read_tokens) == counted.output_tokens
        yield Finding("counts in every event", counted.ok and told, f"{len(counted.read_tokens)} reads counted")


def check_refused(outcome: StreamOutcome) -> bool:
    """A refusal is an HTTP status or an error in the stream with a sentence; some servers serve it all the same."""
    return outcome.ok or bool(outcome.error)


def instants(outcome: StreamOutcome) -> list[int | None]:
    return [outcome.sent_at_ns, outcome.first_token_at_ns, outcome.last_token_at_ns, outcome.stream_end_at_ns]


def in_order(outcome: StreamOutcome) -> bool:
    known = [at for at in instants(outcome) if at is not None]
    return len(known) == 4 and known == sorted(known)


def main() -> int:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("url")
    options.add_argument("--api", default=None)
    options.add_argument("--model", default=None)
    given = options.parse_args()
    try:
        found = anyio.run(check_endpoint, given.url, given.api or "chat", given.model, given.api is not None)
    except PreflightError as error:
        sys.exit(str(error))
    for finding in found:
        print(f"{'ok  ' if finding.holds else 'FAIL'} {finding.name}: {finding.detail}")
    return 0 if all(finding.holds for finding in found) else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.exit(main())
