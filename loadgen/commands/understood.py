"""What `bench doctor --url` understood of a server, as a table of a screen and as data. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from engine_adapters.base import StreamOutcome
from engine_adapters.dialect import Asking, Dialect
from engine_adapters.observed import BRINGS_TOKENS, Event
from engine_adapters.preflight import Endpoint
from loadgen.analysis.token_events import came_at_once
from loadgen.redaction import redact

LABEL, WIDTH = 13, 100


@dataclass(frozen=True)
class Trial:
    """One request: when it was begun, how many tokens were asked for, and what came."""

    begun_at_ns: int
    n_asked: int
    outcome: StreamOutcome
    events: Sequence[Event]


@dataclass(frozen=True)
class Understood:
    """The server, how it is asked, and two requests in a row: the first opened its own connection."""

    endpoint: Endpoint
    dialect: Dialect
    asking: Asking
    first: Trial
    second: Trial
    via: str
    api_is_fixed: bool


def table(found: Understood) -> str:
    """Two columns, a blank line between the server and its answer, and what should give pause."""
    blocks = [server_lines(found), answer_lines(found)]
    texts = ["\n".join(line for name, text in block for line in _wrapped(name, redact(text))) for block in blocks]
    notes = ["\n".join(textwrap.wrap(f"! {redact(note)}", WIDTH, subsequent_indent="  ")) for note in notes_of(found)]
    return "\n\n".join(part for part in (*texts, "\n".join(notes)) if part)


def _wrapped(name: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=name.ljust(LABEL), subsequent_indent=" " * LABEL) or [name]


def server_lines(found: Understood) -> list[tuple[str, str]]:
    """Who answers and how it is asked."""
    e = found.endpoint
    length = f"context {e.max_model_len:,} tokens" if e.max_model_len else "context not told"
    slots = f"{e.slots} slots" if e.slots else "slots not told"
    flags = ", ".join(f"{name}={value}" for name, value in e.server_flags.items()) or "none told"
    return [
        ("server", f"{e.engine} at {e.url}"),
        ("model", f"{e.model}, {length}, {slots}"),
        ("flags", flags),
        ("API", f"{e.api}, {e.path}: {api_reason(found)}"),
        ("carried by", found.via),
    ]


def api_reason(found: Understood) -> str:
    """Why this API."""
    if found.api_is_fixed:
        return "as --api says"
    if any("own API is used" in note for note in found.endpoint.notes):
        return "the server has no OpenAI route"
    return "the default, and the server takes it" if found.endpoint.api.startswith("openai") else "by the URL's host"


def answer_lines(found: Understood) -> list[tuple[str, str]]:
    """What one request of a few tokens showed."""
    trial, o = found.first, found.first.outcome
    lines = [("connecting", connecting_text(found)), ("headers", after_send(o, o.headers_at_ns))]
    if trial.events:
        event = trial.events[0]
        lines.append(("first event", f"{after_send(o, event.at_ns)}: {event.kind}"))
    if first := next((event for event in trial.events if event.kind in BRINGS_TOKENS), None):
        lines.append(("first token", f"{after_send(o, o.first_token_at_ns)}: {first.kind}"))
    if o.last_token_at_ns is not None:
        lines.append(
            (
                "last token" if found.dialect.generates else "answer",
                f"{after_send(o, o.last_token_at_ns)}; end {after_send(o, o.stream_end_at_ns)}",
            )
        )
    if o.n_token_events:
        lines += [("events", events_text(trial)), ("tokens", tokens_text(found)), ("length", length_text(found))]
        lines.append(("reasoning", reasoning_text(trial)))
    return [*lines, ("clock", clock_text(o)), ("connection", connection_text(found))]


def after_send(o: StreamOutcome, at_ns: int | None) -> str:
    """An instant in milliseconds after the send."""
    return "never" if at_ns is None or o.sent_at_ns is None else f"{(at_ns - o.sent_at_ns) / 1e6:.2f} ms"


def connecting_text(found: Understood) -> str:
    """Looking the name up, TCP and TLS, each by itself; no latency counts them."""
    o, last_ns, parts = found.first.outcome, found.first.begun_at_ns, []
    steps = [("name", o.resolved_at_ns), ("TCP", o.tcp_connected_at_ns)]
    if found.endpoint.url.startswith("https:"):
        steps.append(("TLS", o.connected_at_ns))
    for name, at_ns in steps:
        if at_ns is not None:
            parts.append(f"{name} {(at_ns - last_ns) / 1e6:.2f} ms")
            last_ns = at_ns
    return f"{', '.join(parts) or 'not seen'}; before the send, so in no latency"


def events_text(trial: Trial) -> str:
    """Events against reads and tokens."""
    o = trial.outcome
    n_reads = len(o.read_at_ns)
    per_event = f", {o.output_tokens / o.n_token_events:.2f} tokens an event" if o.output_tokens else ""
    return f"{len(trial.events)}, {o.n_token_events} of them with tokens, in {n_reads} reads{per_event}"


def tokens_text(found: Understood) -> str:
    """How many, by which count, and where the server puts its counts."""
    o, n_counts = found.first.outcome, n_usage(found.first)
    source = {"usage": "the server's usage", "event_counts": "what its events hold", "tokenizer": "the local tokenizer"}
    where = "no usage" if not n_counts else "usage in one event" if n_counts == 1 else f"usage in {n_counts} events"
    every = f", in every event when asked ({n_usage(found.second)} of {len(found.second.events)})"
    asked = every if counts_every_event(found) and n_counts <= 1 else ""
    prompt = f"; prompt {o.prompt_tokens}, {o.cached_tokens or 0} of it cached" if o.prompt_tokens else ""
    return f"{o.output_tokens} by {source.get(o.output_tokens_source or '', 'its events')}; {where}{asked}{prompt}"


def n_usage(trial: Trial) -> int:
    """Events with the server's counts."""
    return sum(event.has_usage for event in trial.events)


def counts_every_event(found: Understood) -> bool:
    """Whether the second request, which asks for it where the API can, got a count with each token event."""
    return found.dialect.counts_events and n_usage(found.second) >= max(found.second.outcome.n_token_events, 2)


def length_text(found: Understood) -> str:
    """Whether the limit is taken and kept to, and the end token ignored."""
    o, n_asked = found.first.outcome, found.first.n_asked
    kept = "kept to" if o.output_tokens == n_asked else f"{n_asked} were asked for"
    fixed = " and ".join(found.dialect.length_fields)
    ignored = f"{fixed} taken" if found.endpoint.send_ignore_eos else f"{fixed or 'ignore_eos'} not taken"
    return f"{found.endpoint.max_tokens_field}: {kept}, finish reason {o.finish_reason or 'not told'}; {ignored}"


def reasoning_text(trial: Trial) -> str:
    """Whether a reasoning channel was seen."""
    n_events = sum(event.kind == "reasoning" for event in trial.events)
    if not n_events:
        return "none seen"
    return f"{n_events} events in a channel of their own; TTFO is the first token after them"


def clock_text(o: StreamOutcome) -> str:
    """What stamped the reads."""
    if not o.reads_kernel_stamped:
        return "each read is stamped when it is read; no receive stamps of the kernel here"
    waited = f"bytes waited {o.read_lag_max_ns / 1e6:.2f} ms at most to be read"
    return f"the kernel's receive stamp on {o.reads_kernel_stamped} of {o.reads_total} reads; {waited}"


def connection_text(found: Understood) -> str:
    """Whether the second request went over the first one's connection."""
    if not found.second.outcome.ok:
        return "a second request failed"
    if is_reused(found):
        return "kept, and used again"
    how = "unannounced" if found.second.outcome.reconnected else "as announced"
    return f"closed by the server after the answer, {how}: each request opens its own"


def is_reused(found: Understood) -> bool:
    """Whether the second request opened no connection."""
    second = found.second.outcome
    return second.ok and second.connected_at_ns is None and not second.reconnected


def notes_of(found: Understood) -> list[str]:
    """What the preflight noted, and what the answer itself should give pause about."""
    return [*found.endpoint.notes, *pauses(found)]


def pauses(found: Understood) -> Iterator[str]:
    """What would make figures of this server mean something else than they say."""
    trial, o = found.first, found.first.outcome
    if o.error_class is not None:
        yield f"the answer was no success ({o.error_class}): {o.error}"
    if at_once(o):
        yield (
            f"all {o.output_tokens} tokens came at once, {after_send(o, o.last_token_at_ns)} after the send: something "
            "holds the stream back (nginx: proxy_buffering off), or it is not streamed. TTFT would be E2E, and ITL 0"
        )
    elif o.output_tokens and o.n_token_events and o.output_tokens != o.n_token_events:
        yield "events are not tokens here: counts come from the server, and gaps between tokens are shared out"
    if o.ok and o.output_tokens and o.output_tokens > trial.n_asked:
        yield f"{o.output_tokens} tokens came though {trial.n_asked} were asked for: the limit is not kept to"
    if not found.second.outcome.ok:
        yield f"a second request failed: {found.second.outcome.error}"


def at_once(o: StreamOutcome) -> bool:
    """See `came_at_once`."""
    sent_ns, first_ns, last_ns = o.sent_at_ns, o.first_token_at_ns, o.last_token_at_ns
    if sent_ns is None or first_ns is None or last_ns is None:
        return False
    return bool(came_at_once(sent_ns, first_ns, last_ns, o.output_tokens or 0))


def as_data(found: Understood) -> dict[str, Any]:
    """What --json prints; instants are seconds after the send."""
    e, o = found.endpoint, found.first.outcome
    return {
        "schema_version": 1,
        "server": {"engine": e.engine, "url": e.url, "slots": e.slots, "flags": dict(e.server_flags)},
        "model": {"name": e.model, "max_model_len": e.max_model_len},
        "api": {"name": e.api, "path": e.path, "why": api_reason(found), "carried_by": found.via},
        "answer": answer_data(found),
        "connection_reused": is_reused(found),
        "reads": {
            "total": o.reads_total,
            "kernel_stamped": o.reads_kernel_stamped,
            "with_tokens": len(o.read_at_ns),
            "lag_max_s": o.read_lag_max_ns / 1e9,
        },
        "notes": notes_of(found),
    }


def answer_data(found: Understood) -> dict[str, Any]:
    """The first request's part of it."""
    e, trial, o = found.endpoint, found.first, found.first.outcome
    names = ("resolved", "tcp_connected", "connected", "headers", "first_token", "first_answer", "last_token")
    instants = {f"{name}_s": _seconds(o, getattr(o, f"{name}_at_ns")) for name in (*names, "stream_end")}
    return {
        "ok": o.ok,
        "error_class": o.error_class,
        "events": [event.kind for event in trial.events],
        "instants": instants,
        "n_token_events": o.n_token_events,
        "output_tokens": o.output_tokens,
        "output_tokens_asked": trial.n_asked,
        "output_tokens_source": o.output_tokens_source,
        "prompt_tokens": o.prompt_tokens,
        "n_usage_events": n_usage(trial),
        "counts_every_event_when_asked": counts_every_event(found),
        "finish_reason": o.finish_reason,
        "max_tokens_field": e.max_tokens_field,
        "ignore_eos_taken": e.send_ignore_eos,
        "came_at_once": at_once(o),
        "text": o.text,
    }


def _seconds(o: StreamOutcome, at_ns: int | None) -> float | None:
    return None if at_ns is None or o.sent_at_ns is None else (at_ns - o.sent_at_ns) / 1e9
