"""The contract between the generator and any engine: what is asked, what came back and when.

Instants are `time.monotonic_ns()` values. An adapter stamps them and stores counts; it derives no metric.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Literal, Protocol

ErrorClass = Literal[
    "connect",  # no connection could be opened
    "connect_timeout",
    "read_timeout",  # the server was silent for longer than the read timeout
    "total_timeout",
    "disconnected",  # the stream ended without [DONE] or a finish reason
    "http_status",  # any status that is not 2xx
    "stream_error",  # an error object inside a 200 stream
    "protocol",  # bytes that are not the API's
    "empty",  # a complete stream without one token
]

TokenSource = Literal["usage", "events"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the generator hands it over; `prompt` is complete text."""

    prompt: str
    max_tokens: int
    ignore_eos: bool = True


@dataclass(slots=True)
class StreamOutcome:
    """What one streamed request did. All `*_at_ns` are monotonic; None means it never happened.

    `read_at_ns[i]`, `read_events[i]` and `read_bytes[i]` are instant, token events and bytes of the i-th socket read
    that carried at least one token event. Tokens of one read share its instant, which is the kernel's receive stamp
    where there is one, else the moment the bytes were read. `reads_total` counts all reads of the answer,
    `reads_kernel_stamped` those with a kernel stamp.
    """

    sent_at_ns: int | None = None  # just before the write that hands the request to an open socket
    resolved_at_ns: int | None = None  # the server's name was looked up; None when its address was known
    tcp_connected_at_ns: int | None = None
    connected_at_ns: int | None = None  # a new connection was ready, TLS included; None when a pooled one was used
    headers_at_ns: int | None = None
    first_token_at_ns: int | None = None  # content, reasoning, refusal or tool-call piece
    first_answer_at_ns: int | None = None  # first piece that is not reasoning
    last_token_at_ns: int | None = None
    stream_end_at_ns: int | None = None
    read_at_ns: array[int] = field(default_factory=lambda: array("q"))
    read_events: array[int] = field(default_factory=lambda: array("i"))
    read_bytes: array[int] = field(default_factory=lambda: array("i"))
    reads_total: int = 0
    reads_kernel_stamped: int = 0
    read_lag_max_ns: int = 0  # longest that received bytes waited in the kernel until they were read
    n_token_events: int = 0
    http_status: int | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None  # from usage
    cached_tokens: int | None = None  # from usage.prompt_tokens_details
    completion_tokens: int | None = None  # from usage; zero after tokens came is stored as None
    text: str = ""
    error_class: ErrorClass | None = None
    error: str | None = None

    @property
    def ok(self) -> bool:
        """2xx, no error in the stream, at least one token event and a terminal mark."""
        return self.error_class is None

    @property
    def output_tokens(self) -> int | None:
        """Tokens received: the last believable usage block, else token events; None when nothing came."""
        if self.completion_tokens:
            return self.completion_tokens
        return self.n_token_events or None

    @property
    def output_tokens_source(self) -> TokenSource | None:
        """Where `output_tokens` comes from."""
        if self.completion_tokens:
            return "usage"
        return "events" if self.n_token_events else None


class Adapter(Protocol):
    """Talks one API to one server."""

    def encode(self, request: Request) -> bytes:
        """The body to send for `request`; called before the run, so that sending does no work but the write."""
        ...

    async def stream(self, body: bytes, request_id: str, outcome: StreamOutcome) -> None:
        """Send `body` and fill `outcome` as things happen.

        Server and network faults end in `outcome.error_class`, not in an exception. The outcome is filled in
        place, so that a cancelled request keeps the instants that it had reached. `request_id` travels as the
        header `x-request-id`.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class PreflightError(Exception):
    """The endpoint can't be measured (unreachable, refused, not an LLM server); the text tells the user why."""
