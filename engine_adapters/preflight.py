"""Before any load: is this an LLM server, which model does it serve, and what does it accept?"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from engine_adapters.apis import find_dialect
from engine_adapters.base import API_ALIASES, OPENAI_APIS, PreflightError, Request, StreamOutcome
from engine_adapters.detect import OWN_LISTS, Facts, detect, examine
from engine_adapters.dialect import Asking, Dialect, DialectAdapter
from engine_adapters.stream import CountTokens
from engine_adapters.transport import HttpClient, Reply

# These list their models as OpenAI does; where the OpenAI route that was wanted is missing, they are tried in turn.
LISTS_MODELS = (*OPENAI_APIS, "openai-responses", "anthropic", "sglang", "llama-cpp", "embeddings", "rerank")
NO_LIST = "the server has no list at /v1/models, so its model name could not be checked"


@dataclass(frozen=True)
class Endpoint:
    """What the server told. `engine` is "unknown" when it does not say."""

    url: str
    model: str
    api: str
    engine: str
    max_model_len: int | None
    send_ignore_eos: bool
    reports_usage: bool
    notes: tuple[str, ...]
    path: str = ""
    max_tokens_field: str = "max_tokens"
    slots: int | None = None
    server_flags: dict[str, Any] = field(default_factory=dict)


async def preflight(
    client: HttpClient,
    model: str | None,
    api: str,
    *,
    asking: Asking | None = None,
    api_is_fixed: bool = False,
    count_tokens: CountTokens | None = None,
) -> tuple[DialectAdapter, Endpoint]:
    """Find the server's kind and model, and send one request of two tokens the way the run will.

    An OpenAI `api` that is not fixed by the user gives way to the server's own where the server has no OpenAI route.
    `asking` holds what the user fixed; what the server then refuses is its own sentence in the error. Raises
    PreflightError (one line for the user) when the server can't be reached, refuses the key, is not an LLM server or
    does not serve the model.
    """
    asking = asking or Asking("")
    found = await find_server(client, API_ALIASES.get(api, api), api_is_fixed)
    dialect = find_dialect(found.api, asking.template)
    chosen, model_notes = choose_model(found.names, model, client.base_url, dialect.needs_model)
    asking, detected = replace(asking, model=chosen), list[str]()
    try:
        adapter, outcome, taken = await first_answer(client, dialect, asking, count_tokens)
    except NoRoute:
        if api_is_fixed or found.api not in OPENAI_APIS or asking.path:
            raise
        other = await other_answer(client, found.api, asking, count_tokens)
        if other is None:
            raise
        adapter, outcome, taken = other
        found = replace(found, api=adapter.dialect.name)
        detected.append(f"the server has no {dialect.path}: {found.api} is used (--api chooses another)")
        dialect = adapter.dialect
    return adapter, Endpoint(
        url=client.base_url,
        model=chosen or found.api,
        api=found.api,
        engine=found.facts.label,
        max_model_len=found.facts.max_model_len,
        send_ignore_eos=adapter.fixes_length,
        reports_usage=outcome.prompt_tokens is not None,
        notes=(*found.notes, *detected, *model_notes, *taken, *answer_notes(adapter, outcome)),
        path=adapter.path,
        max_tokens_field=adapter.asking.max_tokens_field or dialect.max_tokens_field,
        slots=found.facts.slots,
        server_flags=dict(found.facts.flags),
    )


@dataclass(frozen=True)
class Found:
    """The server, the API to use with it and the models that it lists."""

    api: str
    facts: Facts
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


async def find_server(client: HttpClient, api: str, api_is_fixed: bool) -> Found:
    """Ask the server about itself in the way that its API has for it."""
    if api in OWN_LISTS:
        facts = await OWN_LISTS[api](client, "unknown")
        return Found(api, facts, facts.models)
    if api not in LISTS_MODELS:
        return Found(api, Facts("unknown", api))
    models = await list_models(client)
    if models is not None:
        facts = await examine(client, models[0] if models else {})
        return Found(api, facts, tuple(str(entry.get("id")) for entry in models))
    other = await detect(client)
    if other is not None and not api_is_fixed and api in OPENAI_APIS:
        note = f"the server has no OpenAI route: its own API is used ({other.api}; --api chooses another)"
        return Found(other.api, other, other.models, (note,))
    if other is not None and other.api == api:
        return Found(api, other, other.models)
    return Found(api, other or Facts("unknown", api), (), (NO_LIST,))


async def list_models(client: HttpClient) -> list[dict[str, Any]] | None:
    """The entries of `/v1/models`; None from a server that has no such list, an error for what is no LLM server."""
    reply = await client.get("/v1/models")
    if reply.status in (401, 403):
        raise PreflightError(key_refused(client.base_url, reply.status))
    if reply.status in (404, 405) or (
        reply.status == 200 and not reply.text.strip()
    ):  # mlx-lm offline: 200 and nothing
        return None
    data = reply.data.get("data") if isinstance(reply.data, dict) else None
    if reply.status != 200 or not isinstance(data, list):
        raise PreflightError(
            f"{client.base_url} is not an OpenAI-compatible LLM server: "
            f"/v1/models answered {reply.status} with {kind_of(reply)}"
        )
    return [entry for entry in data if isinstance(entry, dict)]


def choose_model(names: tuple[str, ...], asked: str | None, url: str, needed: bool) -> tuple[str, list[str]]:
    """The model to send and notes about it; raises PreflightError when the choice is the user's."""
    if asked is None:
        if len(names) == 1 or (names and not needed):
            return names[0], []
        if not needed:
            return "", []
        if not names:
            raise PreflightError(f"{url} lists no models: is it an LLM server? If so, name its model with --model")
        raise PreflightError(f"{url} serves {len(names)} models: choose one with --model ({', '.join(names[:8])})")
    if names and asked not in names:
        return asked, [
            f"the server answers to model '{asked}', which its model list does not list ({', '.join(names[:8])})"
        ]
    return asked, []


async def first_answer(
    client: HttpClient, dialect: Dialect, asking: Asking, count_tokens: CountTokens | None
) -> tuple[DialectAdapter, StreamOutcome, list[str]]:
    """One request, asked again without each thing that the server names when it refuses; with notes on those."""
    notes: list[str] = []
    while True:
        adapter = DialectAdapter(client, dialect, asking, count_tokens)
        outcome = await ask(adapter, "Count to three.", 2)
        if outcome.ok:
            return adapter, outcome, notes
        adjusted = adjust(asking, dialect, outcome) if outcome.http_status in (400, 422) else None
        if adjusted is None:
            missing = outcome.http_status in (404, 405) and not names_model(outcome, asking.model)
            kind = NoRoute if missing else PreflightError
            raise kind(refusal(client.base_url, adapter.path, asking.model, outcome))
        asking, note = adjusted
        notes.append(note)


class NoRoute(PreflightError):
    """The server has no such path, or not for this model."""


async def other_answer(
    client: HttpClient, api: str, asking: Asking, count_tokens: CountTokens | None
) -> tuple[DialectAdapter, StreamOutcome, list[str]] | None:
    """The first answer by another API, as `first_answer` gives it; None when the server has none of them."""
    for name in LISTS_MODELS:
        if name != api:
            try:
                return await first_answer(client, find_dialect(name), asking, count_tokens)
            except PreflightError:
                continue
    return None


def adjust(asking: Asking, dialect: Dialect, outcome: StreamOutcome) -> tuple[Asking, str] | None:
    """How to ask instead, by what the server's refusal names; None when it names nothing that can be left out."""
    text = outcome.error or ""
    if asking.ignore_eos and any(name in text for name in dialect.length_fields):
        return replace(asking, ignore_eos=False), f"the server refuses {' and '.join(dialect.length_fields)}"
    if asking.max_tokens_field is None and "max_completion_tokens" in text:
        return replace(asking, max_tokens_field="max_completion_tokens"), "the server takes max_completion_tokens"
    if asking.usage == "every_event" and "continuous_usage_stats" in text:
        return replace(asking, usage="final"), "the server refuses to count in every event"
    if asking.usage != "never" and ("stream_options" in text or "include_usage" in text):
        return replace(asking, usage="never"), "the server refuses stream_options"
    if "temperature" in text and "temperature" not in asking.extra:
        without = replace(asking, extra={**asking.extra, "temperature": None})
        return without, "the server refuses temperature 0: answers are sampled"
    return None


async def ask(adapter: DialectAdapter, prompt: str, max_tokens: int) -> StreamOutcome:
    """Send one request outside any schedule."""
    outcome = StreamOutcome()
    await adapter.stream(adapter.encode(Request(prompt, max_tokens)), f"preflight-{uuid4().hex[:8]}", outcome)
    return outcome


def names_model(outcome: StreamOutcome, model: str) -> bool:
    """Whether the refusal is about the model: the route is there."""
    return bool(model) and model.lower() in (outcome.error or "").lower()


def refusal(url: str, path: str, model: str, outcome: StreamOutcome) -> str:
    """Why the first request failed, for the user."""
    if outcome.http_status in (401, 403):
        return key_refused(url, outcome.http_status)
    if outcome.http_status == 404 and names_model(outcome, model):
        return f"{url} does not serve the model '{model}' ({outcome.error}); see {url}/v1/models"
    if outcome.http_status in (404, 405):
        return f"{url} has no {path} ({outcome.error}); try another API with --api"
    return f"the first request to {url}{path} failed: {outcome.error}"


def key_refused(url: str, status: int) -> str:
    """The sentence for 401 and 403."""
    return (
        f"{url} refused the credentials (HTTP {status}): give the key's variable with --api-key-env NAME, or a --header"
    )


def answer_notes(adapter: DialectAdapter, outcome: StreamOutcome) -> list[str]:
    """What the first answer says about how lengths and tokens will be known."""
    notes = []
    if adapter.dialect.generates and not adapter.fixes_length:
        why = "refuses" if adapter.dialect.length_fields else "has nothing like"
        notes.append(f"the server {why} ignore_eos: answers may end before their asked length")
    if outcome.prompt_tokens is None and outcome.completion_tokens is not None:
        notes.append("the server does not count prompts: their lengths are estimates")
    elif outcome.prompt_tokens is None and adapter.dialect.generates:
        source = {"tokenizer": "the local tokenizer", "event_counts": "ids in its events"}.get(
            outcome.output_tokens_source or "", "events"
        )
        notes.append(f"the server reports no usage: tokens are counted by {source}, and prompt lengths are estimates")
    return notes


def kind_of(reply: Reply) -> str:
    """A body in three words."""
    if reply.data is not None:
        return "JSON of another kind"
    return reply.headers.get("content-type", "no content type").split(";")[0]
