"""Reading answers without a network: reads at given instants in, an outcome out; and a second, naive reader."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from engine_adapters.apis import find_dialect
from engine_adapters.base import StreamOutcome
from engine_adapters.dialect import make_reader
from loadgen.collectors.records import RequestRecord
from loadgen.generator.point import fill

DATA = Path(__file__).parents[1] / "data"
US, MS = 1_000, 1_000_000


def read_answer(
    api: str, reads: Iterable[tuple[int, bytes]], *, streamed: bool = True, template: dict[str, Any] | None = None
) -> StreamOutcome:
    """The outcome of an answer whose reads came at the given nanoseconds after the request was written."""
    outcome = StreamOutcome(http_status=200, sent_at_ns=0)
    reader = make_reader(outcome, find_dialect(api, template), whole=not streamed)
    at_ns = 0
    for at_ns, chunk in reads:
        reader.on_read(at_ns, chunk)
    outcome.stream_end_at_ns = at_ns
    reader.finish()
    return outcome


def record_of(outcome: StreamOutcome) -> RequestRecord:
    """The record that the generator would keep; due and sent at 0."""
    status = "ok" if outcome.ok else "failed"
    record = RequestRecord(0, 0, "measured", status, intended_at_ns=0, intended_wall_s=0.0)
    fill(record, outcome)
    return record


def raw_streams() -> list[dict[str, Any]]:
    """Inputs from public bug reports, with what is right (tests/data/raw_streams.json)."""
    cases: list[dict[str, Any]] = json.loads((DATA / "raw_streams.json").read_text("utf-8"))
    return cases


def writes_of(case: dict[str, Any]) -> list[tuple[int, bytes]]:
    """(milliseconds, bytes) of a raw stream's writes."""
    return [(write[0], base64.b64decode(write[2]) if len(write) > 2 else write[1].encode()) for write in case["writes"]]


def recorded_servers() -> list[str]:
    """Names of the servers whose answers are in tests/data/endpoints."""
    return sorted(path.stem for path in (DATA / "endpoints").glob("*.json"))


def recorded(server: str) -> dict[str, Any]:
    """{"server": label, "cases": {name: {api, http, version, request, reads, body}}} of one server."""
    found: dict[str, Any] = json.loads((DATA / "endpoints" / f"{server}.json").read_text("utf-8"))
    return found


def reads_of(case: dict[str, Any]) -> list[tuple[int, bytes]]:
    """(nanoseconds, bytes) of a recorded answer's reads; the first instant of a recording is its request."""
    body, reads, at = case["body"].encode(), [], 0
    for at_us, size in case["reads"]:
        reads.append((at_us * US, body[at : at + size]))
        at += size
    assert at == len(body)
    return reads


def naive_events(body: bytes) -> list[Any]:
    """Every JSON event of a complete body, by splitting at line ends: no parser state, no cleverness."""
    lines = body.decode().splitlines()
    texts = [line.removeprefix("data:").strip() for line in lines if line.startswith(("data:", "{"))]
    return [json.loads(text) for text in texts if text and text != "[DONE]"]


def naive_pieces(event: dict[str, Any]) -> str:
    """What an event adds to the answer's text, for any API of the recordings."""
    if "choices" in event:
        first = [choice for choice in event["choices"] if choice.get("index", 0) == 0]
        said = [choice.get("delta") or choice.get("message") or {} for choice in first]
        return "".join((d.get("content") or "") for d in said) + "".join(c.get("text") or "" for c in first)
    if event.get("type") == "response.output_text.delta":
        return str(event["delta"])
    if event.get("type") == "content_block_delta":
        return str(event["delta"].get("text", ""))
    if event.get("object") == "response" or event.get("type") == "message":  # an answer that came whole
        said = (
            event["content"] if "content" in event else [part for item in event["output"] for part in item["content"]]
        )
        return "".join(part["text"] for part in said)
    return str(event.get("content") or "") if isinstance(event.get("content"), str) else ""


def naive_text(body: bytes) -> str:
    """The answer's text; SGLang's native events repeat it, so there the last one has it all."""
    events = naive_events(body)
    if events and "meta_info" in events[-1]:
        return str(events[-1]["text"])
    return "".join(naive_pieces(event) for event in events)


def naive_tokens(body: bytes) -> int | None:
    """The server's own count: the last one that it wrote, under whatever name."""
    names = ("completion_tokens", "output_tokens", "tokens_predicted")
    found = [n for event in naive_events(body) for n in walk(event, names) if n]
    return found[-1] if found else None


def walk(value: Any, names: Sequence[str]) -> list[int]:
    """Every number under one of the names, in the order of writing; a prompt's echo holds none."""
    if isinstance(value, dict):
        here = [below for name, below in value.items() if name in names and isinstance(below, int)]
        return here + [n for below in value.values() for n in walk(below, names)]
    return [n for below in value for n in walk(below, names)] if isinstance(value, list) else []


def naive_first_token_ns(case: dict[str, Any]) -> int | None:
    """Instant of the read that completes the first event with text."""
    seen = b""
    for at_ns, chunk in reads_of(case):
        seen += chunk
        complete = seen[: seen.rfind(b"\n\n") + 2] if b"\n\n" in seen else b""
        if complete and naive_text(complete):
            return at_ns
    return None
