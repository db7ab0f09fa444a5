"""Before any load: is this an LLM server, which model does it serve, and what does it accept?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from engine_adapters.base import PreflightError, Request, StreamOutcome
from engine_adapters.openai import PATHS, Api, OpenAIAdapter
from engine_adapters.transport import HttpClient, Reply


@dataclass(frozen=True)
class Endpoint:
    """What the server told. `engine` is "unknown" when it does not say."""

    url: str
    model: str
    api: Api
    engine: str
    max_model_len: int | None
    send_ignore_eos: bool
    reports_usage: bool
    notes: tuple[str, ...]


async def preflight(client: HttpClient, model: str | None, api: Api) -> tuple[OpenAIAdapter, Endpoint]:
    """Ask `/v1/models`, choose the model, and send one request of one token the way the run will.

    Raises PreflightError (one line for the user) when the server can't be reached, refuses the key, is not an LLM
    server or does not serve the model.
    """
    models, notes = await list_models(client)
    chosen, model_notes = choose_model(models, model, client.base_url)
    adapter, outcome = await first_answer(client, chosen, api)
    entry = next((m for m in models if m.get("id") == chosen), {})
    return adapter, Endpoint(
        url=client.base_url,
        model=chosen,
        api=api,
        engine=await identify(client, entry),
        max_model_len=entry.get("max_model_len") or (entry.get("meta") or {}).get("n_ctx"),
        send_ignore_eos=adapter.send_ignore_eos,
        reports_usage=outcome.prompt_tokens is not None,
        notes=(*notes, *model_notes, *answer_notes(adapter, outcome)),
    )


async def list_models(client: HttpClient) -> tuple[list[dict[str, Any]], list[str]]:
    """The entries of `/v1/models`; a server without that route gets a note, anything else that is wrong an error."""
    reply = await client.get("/v1/models")
    if reply.status in (401, 403):
        raise PreflightError(key_refused(client.base_url, reply.status))
    if reply.status == 404:
        return [], ["the server has no /v1/models, so its model name could not be checked"]
    data = reply.data.get("data") if isinstance(reply.data, dict) else None
    if reply.status != 200 or not isinstance(data, list):
        raise PreflightError(
            f"{client.base_url} is not an OpenAI-compatible LLM server: "
            f"/v1/models answered {reply.status} with {kind_of(reply)}"
        )
    return [entry for entry in data if isinstance(entry, dict)], []


def choose_model(models: list[dict[str, Any]], asked: str | None, url: str) -> tuple[str, list[str]]:
    """The model to send and notes about it; raises PreflightError when the choice is the user's."""
    names = [str(entry.get("id")) for entry in models]
    if asked is None:
        if len(names) == 1:
            return names[0], []
        if not names:
            raise PreflightError(f"{url} lists no models: is it an LLM server? If so, name its model with --model")
        raise PreflightError(f"{url} serves {len(names)} models: choose one with --model ({', '.join(names[:8])})")
    if names and asked not in names:
        return asked, [
            f"the server answers to model '{asked}', which its /v1/models does not list ({', '.join(names[:8])})"
        ]
    return asked, []


async def first_answer(client: HttpClient, model: str, api: Api) -> tuple[OpenAIAdapter, StreamOutcome]:
    """One streamed request; without `ignore_eos` when the server refuses that field."""
    adapter = OpenAIAdapter(client, model, api)
    outcome = await ask(adapter, "Count to three.", 2)
    if outcome.http_status in (400, 422) and "ignore_eos" in (outcome.error or ""):
        adapter = OpenAIAdapter(client, model, api, send_ignore_eos=False)
        outcome = await ask(adapter, "Count to three.", 2)
    if not outcome.ok:
        raise PreflightError(refusal(client.base_url, PATHS[api], model, outcome))
    return adapter, outcome


async def ask(adapter: OpenAIAdapter, prompt: str, max_tokens: int) -> StreamOutcome:
    """Send one request outside any schedule."""
    outcome = StreamOutcome()
    await adapter.stream(adapter.encode(Request(prompt, max_tokens)), f"preflight-{uuid4().hex[:8]}", outcome)
    return outcome


def refusal(url: str, path: str, model: str, outcome: StreamOutcome) -> str:
    """Why the first request failed, for the user."""
    if outcome.http_status in (401, 403):
        return key_refused(url, outcome.http_status)
    if outcome.http_status == 404 and model.lower() in (outcome.error or "").lower():
        return f"{url} does not serve the model '{model}' ({outcome.error}); see {url}/v1/models"
    if outcome.http_status in (404, 405):
        return f"{url} has no {path} ({outcome.error}); try the other API with --api"
    return f"the first request to {url}{path} failed: {outcome.error}"


def key_refused(url: str, status: int) -> str:
    """The sentence for 401 and 403."""
    return (
        f"{url} refused the credentials (HTTP {status}): give the key's variable with --api-key-env NAME, or a --header"
    )


def answer_notes(adapter: OpenAIAdapter, outcome: StreamOutcome) -> list[str]:
    """What the first answer says about how lengths and tokens will be known."""
    notes = []
    if not adapter.send_ignore_eos:
        notes.append("the server refuses ignore_eos: answers may end before their asked length")
    if outcome.prompt_tokens is None:
        notes.append("the server reports no usage: tokens are counted by events, and prompt lengths are estimates")
    return notes


async def identify(client: HttpClient, entry: dict[str, Any]) -> str:
    """Engine and version as far as the server tells them."""
    name = str(entry.get("owned_by") or "unknown")
    reply = await client.get("/version")
    version = reply.data.get("version") if reply.status == 200 and isinstance(reply.data, dict) else None
    if version:
        return f"{name} {version}"
    server = reply.headers.get("server", "")
    return f"{name} ({server})" if server and server != "uvicorn" and name != server else name


def kind_of(reply: Reply) -> str:
    """A body in three words."""
    if reply.data is not None:
        return "JSON of another kind"
    return reply.headers.get("content-type", "no content type").split(";")[0]
