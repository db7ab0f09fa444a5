"""Embeddings and rerank: no tokens come back, so there is latency and throughput and nothing else."""

from __future__ import annotations

from typing import Any

import msgspec

from engine_adapters.base import Request
from engine_adapters.dialect import Asking, Dialect
from engine_adapters.openai import take_usage
from engine_adapters.stream import Answer

QUERY_WORDS = 16
DOCUMENTS = 8
ABSENT = msgspec.Raw()
EMPTY = (b"", b"[]", b"null")


class Event(msgspec.Struct, gc=False):
    """The whole answer; the vectors stay raw bytes."""

    data: msgspec.Raw = ABSENT
    results: msgspec.Raw = ABSENT
    embeddings: msgspec.Raw = ABSENT
    usage: dict[str, Any] | None = None
    error: Any = None


DECODER = msgspec.json.Decoder(Event)


def take(answer: Answer, payload: bytes) -> None:
    """The answer: complete when it has a list that is not empty."""
    event = answer.read(payload, DECODER, Event)
    if event is None:
        return
    if event.error:
        answer.fail(event.error)
    if event.usage:
        take_usage(answer, {"prompt_tokens": event.usage.get("total_tokens")} | event.usage)
    if all(bytes(listed).strip() in EMPTY for listed in (event.data, event.results, event.embeddings)):
        answer.outcome.fail("empty", "an answer without vectors or scores")


def embeddings_body(request: Request, asking: Asking) -> dict[str, Any]:
    """The prompt is the one input."""
    return {"model": asking.model, "input": request.prompt}


def rerank_body(request: Request, asking: Asking) -> dict[str, Any]:
    """The prompt's first words are the query, the rest of it is eight documents."""
    words = request.prompt.split()
    query, rest = words[:QUERY_WORDS], words[QUERY_WORDS:] or words
    size = max(1, -(-len(rest) // DOCUMENTS))
    documents = [" ".join(rest[at : at + size]) for at in range(0, len(rest), size)]
    return {"model": asking.model, "query": " ".join(query), "documents": documents}


EMBEDDINGS = Dialect(
    name="embeddings", path="/v1/embeddings", body=embeddings_body, take=take, streams=False, generates=False
)
RERANK = Dialect(name="rerank", path="/v1/rerank", body=rerank_body, take=take, streams=False, generates=False)
