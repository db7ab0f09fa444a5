"""What one API has of its own (a `Dialect`), how it is to be asked, and the adapter made of both."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from engine_adapters.base import Request, StreamOutcome
from engine_adapters.ndjson import WholeParser
from engine_adapters.sse import SSEParser
from engine_adapters.stream import CountTokens, Parser, StreamReader, Take
from engine_adapters.transport import HttpClient

Usage = Literal["final", "every_event", "never"]


@dataclass(frozen=True)
class Asking:
    """How the API is asked, as the user wants it and the preflight found it to be taken.

    `max_tokens_field` and `path` replace the API's own. `usage` is what the server is asked to count. `extra` is laid
    over the body; a None in it removes a field. `template` is for the `template` API alone.
    """

    model: str
    stream: bool = True
    usage: Usage = "final"
    ignore_eos: bool = True
    max_tokens_field: str | None = None
    path: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    template: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Dialect:
    """One API: where it is, how a request becomes a body, how an event changes the answer.

    `length_fields` are the body's fields that fix the answer's length, empty where the API has none. `key_header`
    takes the bare key instead of `authorization: Bearer`; `headers` go with every request. `streams` and `generates`
    are False for an API that answers at once or without tokens; `end_is_mark` says that nothing but the end of the
    body marks the end of an answer.
    """

    name: str
    path: str  # may hold {model}
    body: Callable[[Request, Asking], dict[str, Any]]
    take: Take
    whole_path: str | None = None  # where an answer is asked for that is not streamed, if elsewhere
    parser: Callable[[], Parser] = SSEParser
    max_tokens_field: str = "max_tokens"
    length_fields: tuple[str, ...] = ()
    counts_events: bool = False  # understands Asking.usage == "every_event"
    needs_model: bool = True
    streams: bool = True
    generates: bool = True
    end_is_mark: bool = False
    key_header: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class DialectAdapter:
    """An `Adapter` for any dialect. Answers are asked for greedily, so that two engines can be compared."""

    def __init__(
        self, client: HttpClient, dialect: Dialect, asking: Asking, count_tokens: CountTokens | None = None
    ) -> None:
        self.client = client
        self.dialect = dialect
        self.asking = asking
        self.whole = not (dialect.streams and asking.stream)
        path = asking.path or (self.whole and dialect.whole_path) or dialect.path
        self.path = path.replace("{model}", quote(asking.model, safe=""))
        self._count_tokens = count_tokens

    @property
    def fixes_length(self) -> bool:
        """Whether requests can ask for an answer of exactly their length."""
        return bool(self.dialect.length_fields) and self.asking.ignore_eos

    def encode(self, request: Request) -> bytes:
        """The JSON body of a request."""
        body = {**self.dialect.body(request, self.asking), **self.asking.extra}
        return json.dumps({name: value for name, value in body.items() if value is not None}).encode()

    async def stream(self, body: bytes, request_id: str, outcome: StreamOutcome) -> None:
        """See `Adapter.stream`."""
        reader = self.reader(outcome)
        try:
            await self.client.stream(self.path, body, request_id, outcome, reader.on_read)
            reader.finish()
        finally:
            self.client.hide(outcome)

    def reader(self, outcome: StreamOutcome) -> StreamReader:
        """What reads one answer of this API."""
        return make_reader(outcome, self.dialect, whole=self.whole, count_tokens=self._count_tokens)

    async def warm(self, n_connections: int) -> None:
        """See `Adapter.warm`."""
        await self.client.warm(self.path, n_connections)

    async def close(self) -> None:
        """Close all connections."""
        await self.client.close()


def make_reader(
    outcome: StreamOutcome, dialect: Dialect, *, whole: bool = False, count_tokens: CountTokens | None = None
) -> StreamReader:
    """A reader for one answer of `dialect`; `whole` when it was not asked to stream."""
    whole = whole or not dialect.streams
    return StreamReader(
        outcome,
        dialect.take,
        WholeParser() if whole else dialect.parser(),
        generates=dialect.generates,
        end_is_mark=dialect.end_is_mark or whole,
        count_tokens=count_tokens,
    )
