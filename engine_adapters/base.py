"""The contract between the generator and any engine: what is asked, what came back and when.

Instants are `time.monotonic_ns()` values. An adapter stamps them and stores counts; it derives no metric.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ErrorClass = Literal[
    "connect",  # no connection could be opened
    "connect_timeout",
    "read_timeout",  # the server was silent for longer than the read timeout
    "total_timeout",
    "disconnected",  # the stream ended without its terminal mark or a finish reason
    "rejected",  # turned away for its load: 429, or 503 with a Retry-After
    "http_status",  # any other status that is not 2xx
    "stream_error",  # an error object inside a 200 stream
    "protocol",  # bytes that are not the API's
    "empty",  # a complete stream without one token
]

API_ALIASES = {"chat": "openai-chat", "completions": "openai-completions", "responses": "openai-responses"}
OPENAI_APIS = ("openai-chat", "openai-completions")
API_NAMES = (
    "openai-chat",
    "openai-completions",
    "openai-responses",
    "azure",
    "anthropic",
    "sglang",
    "tgi",
    "llama-cpp",
    "ollama",
    "triton",
    "embeddings",
    "rerank",
    "template",
)

# Where a count of output tokens comes from, best first: the server's usage; ids, logprobs or counters that it put into
# the events; the text counted with a local tokenizer; token events.
TokenSource = Literal["usage", "event_counts", "tokenizer", "events"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the generator hands it over; `prompt` is complete text.

    `ignore_eos` asks for an answer of exactly `max_tokens`, where the API has a field for that.
    """

    prompt: str
    max_tokens: int
    ignore_eos: bool = True


@dataclass(slots=True)
class StreamOutcome:
    """What one streamed request did. All `*_at_ns` are monotonic; None means it never happened.

    `read_at_ns[i]`, `read_events[i]` and `read_bytes[i]` are instant, token events and bytes of the i-th socket read
    that carried at least one token event. Tokens of one read share its instant, which is the kernel's receive stamp
    where there is one, else the moment the bytes were read. `reads_total` counts all reads of the answer,
    `reads_kernel_stamped` those with a kernel stamp. `read_tokens[i]` is how many tokens the i-th of these reads
    brought, where the server told it event by event; empty where it did not.

    An API without tokens (embeddings, rerank) has no token event; its answer's arrival is `last_token_at_ns`.
    """

    sent_at_ns: int | None = None  # just before the write that hands the request to an open socket
    resolved_at_ns: int | None = None  # the server's name was looked up; None when its address was known
    tcp_connected_at_ns: int | None = None
    connected_at_ns: int | None = None  # a new connection was ready, TLS included; None when a pooled one was used
    reconnected: bool = False  # the server had closed the pooled connection: sent at once on a new one
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
    read_tokens: array[int] = field(default_factory=lambda: array("i"))
    n_token_events: int = 0
    http_status: int | None = None
    advised_wait_s: float | None = None  # the Retry-After of a refusal
    finish_reason: str | None = None
    prompt_tokens: int | None = None  # from usage
    cached_tokens: int | None = None  # from usage: prompt tokens that came out of the prefix cache
    completion_tokens: int | None = None  # from usage, reasoning included; a zero is not believed
    reasoning_tokens: int | None = None  # from usage, where the server counts them apart
    counted_tokens: int | None = None  # from token ids, logprobs or counters inside the events
    local_tokens: int | None = None  # text, reasoning and tool calls counted with a local tokenizer
    server_decode_s: float | None = None  # the server's own figure for writing the answer
    text: str = ""  # of the first choice; reasoning and tool calls are in `hidden_text`
    hidden_text: str = ""
    error_class: ErrorClass | None = None
    error: str | None = None

    @property
    def ok(self) -> bool:
        """2xx, no error in the stream, at least one token event and a terminal mark."""
        return self.error_class is None

    @property
    def output_tokens(self) -> int | None:
        """Tokens received, from the best source there is (see `TokenSource`); None when nothing came."""
        counts = self.completion_tokens or self.counted_tokens or self.local_tokens
        return counts or self.n_token_events or None

    @property
    def output_tokens_source(self) -> TokenSource | None:
        """Where `output_tokens` comes from."""
        if self.completion_tokens:
            return "usage"
        if self.counted_tokens:
            return "event_counts"
        if self.local_tokens:
            return "tokenizer"
        return "events" if self.n_token_events else None

    def fail(self, error_class: ErrorClass, message: str) -> None:
        """Record the first fault of a request; later ones are its consequences."""
        if self.error_class is None:
            self.error_class = error_class
            # A server's text may hold control characters, which no terminal and no page should get.
            self.error = "".join(c if c.isprintable() else " " for c in message)


def adapter_entry_points() -> dict[str, EntryPoint]:
    """Adapters in installed packages, by name: the entry points of the group `openloop.adapters`."""
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    return {point.name: point for point in entry_points(group="openloop.adapters")}


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

    async def warm(self, n_connections: int) -> None:
        """Open so many connections before the first request is due, as far as the server allows.

        With 0 none is kept either: the first requests open their own.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class PreflightError(Exception):
    """The endpoint can't be measured (unreachable, refused, not an LLM server); the text tells the user why."""
