"""From the reads of one answer to the outcome's instants and counts, the same for every API."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec

from engine_adapters.base import StreamOutcome
from engine_adapters.sse import FramingError

T = TypeVar("T")


class Parser(Protocol):
    """Bytes to events."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Payloads of the events that `chunk` completes."""
        ...

    def finish(self) -> list[bytes]:
        """What the end of the bytes completes."""
        ...


class Answer:
    """What the events of one answer say. An API's `take(answer, payload)` changes it and sees no clock.

    A token event adds 1 to `n_events`, and sets `answered` unless it is reasoning. Its text goes to `text` (content,
    refusal) or `hidden` (reasoning, tool calls). `done` is the API's terminal mark. `told` is the number of tokens so
    far by the server's own count, 0 while it tells none.
    """

    __slots__ = ("answered", "done", "hidden", "n_choices", "n_events", "n_finished", "outcome", "seen", "text", "told")

    def __init__(self, outcome: StreamOutcome) -> None:
        self.outcome = outcome
        self.n_events = 0
        self.answered = False
        self.text: list[str] = []
        self.hidden: list[str] = []
        self.done = False
        self.n_choices = 1
        self.n_finished = 0
        self.told = 0
        self.seen = ""  # all text so far, for servers that repeat it in every event

    def say(self, piece: str) -> None:
        """A token event of the answer proper; nothing when `piece` is empty."""
        if piece:
            self.n_events += 1
            self.answered = True
            self.text.append(piece)

    def say_hidden(self, piece: str, *, is_answer: bool) -> None:
        """A token event of reasoning, or of a tool call (`is_answer`), which may lack text."""
        self.n_events += 1
        self.answered = self.answered or is_answer
        self.hidden.append(piece)

    def end(self, reason: Any) -> None:
        """A choice has ended, and why; a missing reason ends nothing."""
        told = reason
        if isinstance(reason, dict):
            reason = reason.get("type")
        if reason:
            self.outcome.finish_reason = str(reason)
            self.n_finished += 1
        if reason in BROKEN_OFF:
            said = f": {error_sentence(told)}" if isinstance(told, dict) and told.get("message") else ""
            self.outcome.fail("stream_error", f"the server broke the answer off (finish reason '{reason}'){said}")

    def count(self, prompt: Any = None, completion: Any = None, cached: Any = None, reasoning: Any = None) -> None:
        """The server's counts. Zeros of tokens are not believed: some proxies put them into every event."""
        outcome = self.outcome
        if n := tokens(completion):
            outcome.completion_tokens = self.told = n
        outcome.prompt_tokens = tokens(prompt) or outcome.prompt_tokens
        if (n_cached := tokens(cached)) is not None:
            outcome.cached_tokens = n_cached
        outcome.reasoning_tokens = tokens(reasoning) or outcome.reasoning_tokens

    def tell(self, n_more: int) -> None:
        """The event brought `n_more` tokens, by ids or logprobs in it; ignored once there is usage."""
        if n_more and self.outcome.completion_tokens is None:
            self.told += n_more
            self.outcome.counted_tokens = self.told

    def fail(self, error: Any) -> None:
        """An error inside the answer."""
        self.outcome.fail("stream_error", error_sentence(error))

    def read(self, payload: bytes, decoder: msgspec.json.Decoder[T], shape: type[T]) -> T | None:
        """The event by an API's decoder; see `decode` for what that refuses."""
        try:
            return decoder.decode(payload)
        except msgspec.MsgspecError:
            return self.decode(payload, shape)

    def decode(self, payload: bytes, shape: type[T]) -> T | None:
        """The event as `shape` where the strict decoder refused it: NaN is taken, and `[DONE]` is the terminal mark.

        None when there is nothing to read; what is no JSON or of another shape is a fault.
        """
        if payload.strip() in (b"[DONE]", b""):  # an empty event keeps a connection open
            self.done = self.done or bool(payload.strip())
            return None
        try:
            data = json.loads(payload)  # takes NaN, which servers in Python write
            return msgspec.convert(data, shape) if isinstance(data, dict) else None
        except msgspec.MsgspecError as error:
            self.outcome.fail("protocol", f"an event is not the API's ({error}): {shown(payload)}")
        except (ValueError, RecursionError):
            self.outcome.fail("protocol", f"an event is not JSON: {shown(payload)}")
        return None


BROKEN_OFF = ("error", "abort")
CONNECTION_FAULTS = ("read_timeout", "total_timeout", "disconnected")
Take = Callable[[Answer, bytes], None]
CountTokens = Callable[[str], int]


class StreamReader:
    """Takes the reads of one answer and stamps what they bring.

    `generates` is False for an API without tokens. `end_is_mark` accepts a stream that simply ends, where an API has
    no other mark. `count_tokens` is a local tokenizer.
    """

    def __init__(
        self,
        outcome: StreamOutcome,
        take: Take,
        parser: Parser,
        *,
        generates: bool = True,
        end_is_mark: bool = False,
        count_tokens: CountTokens | None = None,
    ) -> None:
        self.outcome = outcome
        self._answer = Answer(outcome)
        self._take = take
        self._parser = parser
        self._feed = parser.feed
        self._generates = generates
        self._end_is_mark = end_is_mark
        self._count_tokens = count_tokens
        self._told = 0
        self._last_read_ns: int | None = None

    def on_read(self, instant_ns: int, chunk: bytes) -> None:
        """Take one read; its instant belongs to every token in it."""
        try:
            payloads = self._feed(chunk)
        except FramingError as error:
            self.outcome.fail("protocol", str(error))
            self._feed = _nothing
            return
        if not payloads:
            self._last_read_ns = instant_ns
            return
        answer, take = self._answer, self._take
        try:
            for payload in payloads:
                take(answer, payload)
        except (
            Exception
        ) as error:  # of an adapter that is not ours; an exception here would end the connection's reader
            self.outcome.fail("protocol", f"the adapter could not read an event ({error!r}): {shown(payload)}")
        n_events = answer.n_events
        if not n_events:
            return
        answer.n_events = 0
        outcome = self.outcome
        outcome.n_token_events += n_events
        outcome.last_token_at_ns = instant_ns
        outcome.read_at_ns.append(instant_ns)
        outcome.read_events.append(n_events)
        outcome.read_bytes.append(len(chunk))
        if answer.told or outcome.first_answer_at_ns is None:
            self._mark(answer, instant_ns)

    def finish(self) -> None:
        """Decide how the answer ended; called once, also after a transport fault."""
        outcome, answer = self.outcome, self._answer
        if outcome.error_class in CONNECTION_FAULTS and (answer.done or answer.n_finished >= answer.n_choices):
            # What happens to the connection once the answer is complete is no fault of the answer.
            outcome.error_class = outcome.error = None
            outcome.stream_end_at_ns = max(self._last_read_ns or 0, outcome.last_token_at_ns or 0) or None
        if outcome.error_class is None:
            rest = [payload for payload in self._parser.finish() if not self._is_cut(payload)]
            self._feed = lambda chunk: rest
            self.on_read(self._end_ns(), b"")
        outcome.text, outcome.hidden_text = "".join(answer.text), "".join(answer.hidden)
        if not self._told_every_read():
            del outcome.read_tokens[:]
        if self._count_tokens is not None and outcome.n_token_events:
            outcome.local_tokens = self._count_tokens(outcome.text) + self._count_tokens(outcome.hidden_text)
        if outcome.error_class is None:
            self._judge(answer)

    def _told_every_read(self) -> bool:
        """Whether the counts that came with the reads add up; an end token is counted, and comes with no text."""
        outcome = self.outcome
        hidden = 1 if outcome.finish_reason == "stop" else 0
        missing = (outcome.output_tokens or 0) - self._told
        return len(outcome.read_tokens) == len(outcome.read_at_ns) and 0 <= missing <= hidden

    def _is_cut(self, payload: bytes) -> bool:
        """Whether the stream ended inside this event; one that lacks only its blank line is complete."""
        payload = payload.strip()
        if b"[DONE]".startswith(payload):
            return payload != b"[DONE]"  # cut, but after all that counts
        if not payload.startswith((b"{", b"[")):
            return False
        try:
            json.loads(payload)
        except (ValueError, RecursionError):
            self.outcome.fail("disconnected", f"the stream ended inside an event: {shown(payload)}")
            return True
        return False

    def _mark(self, answer: Answer, instant_ns: int) -> None:
        """The first token, the first one of the answer, and how many tokens the server says have come."""
        outcome = self.outcome
        if outcome.first_token_at_ns is None:
            outcome.first_token_at_ns = instant_ns
        if answer.answered and outcome.first_answer_at_ns is None:
            outcome.first_answer_at_ns = instant_ns
        if answer.told > self._told:
            outcome.read_tokens.append(answer.told - self._told)
            self._told = answer.told

    def _end_ns(self) -> int:
        """When the last bytes came, which is not when the connection was closed."""
        outcome = self.outcome
        return max(self._last_read_ns or outcome.stream_end_at_ns or 0, outcome.last_token_at_ns or 0)

    def _judge(self, answer: Answer) -> None:
        outcome = self.outcome
        complete = answer.done or answer.n_finished >= answer.n_choices or self._end_is_mark
        if not complete:
            outcome.fail("disconnected", "the stream ended without its terminal mark or a finish reason")
        elif not self._generates:
            outcome.last_token_at_ns = self._end_ns()
        elif outcome.n_token_events == 0:
            outcome.fail("empty", "a complete answer without one token")


def _nothing(chunk: bytes) -> list[bytes]:
    return []


def tokens(value: Any) -> int | None:
    """A server's count as a whole number; None for what is no count."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**31:
        return None
    return int(value)


def error_sentence(error: Any) -> str:
    """The sentence in an error: `{"message"}`, `{"detail"}`, `{"error": ...}` or whatever else it is."""
    while isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error.get("error") or json.dumps(error)
    return str(error)[:200]


def text_of(value: Any) -> str:
    """The text in a value that should be one: also a list of parts (`{"type": "text", "text": ...}`)."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return text_of(value.get("text"))
    return "".join(map(text_of, value)) if isinstance(value, list) else ""


def shown(payload: bytes) -> str:
    """The beginning of an event, for an error's text."""
    return payload[:80].decode("utf-8", "replace")
