"""The OpenAI API, chat and completions, streamed: what to send, and what each event of the answer means."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from engine_adapters.base import Request, StreamOutcome
from engine_adapters.sse import SSEParser
from engine_adapters.transport import HttpClient, error_message, fail

Api = Literal["chat", "completions"]
PATHS: dict[Api, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


class Delta(msgspec.Struct, gc=False):
    """What a chat event adds. Servers differ in what they put where, so only what is read has a type."""

    content: Any = None
    refusal: Any = None
    tool_calls: Any = None
    reasoning: Any = None
    reasoning_content: Any = None


class Choice(msgspec.Struct, gc=False):
    """One choice of an event; `text` is the completions API's."""

    delta: Delta | None = None
    text: Any = None
    finish_reason: str | None = None


class Event(msgspec.Struct, gc=False):
    """One event of either API; what is not named here is skipped, which makes decoding eight times cheaper."""

    choices: list[Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


decode_event = msgspec.json.Decoder(Event).decode
NO_DELTA = Delta()


class OpenAIAdapter:
    """Streams from `/v1/chat/completions` or `/v1/completions` and asks for usage in the last event.

    `send_ignore_eos` adds vLLM's `ignore_eos`, which the field's servers accept and some others refuse; the
    preflight finds out. Answers are greedy, so that two engines can be compared.
    """

    def __init__(self, client: HttpClient, model: str, api: Api = "chat", send_ignore_eos: bool = True) -> None:
        self.client = client
        self.model = model
        self.api = api
        self.send_ignore_eos = send_ignore_eos

    def encode(self, request: Request) -> bytes:
        """The JSON body of a request."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.api == "chat":
            body["messages"] = [{"role": "user", "content": request.prompt}]
        else:
            body["prompt"] = request.prompt
        if request.ignore_eos and self.send_ignore_eos:
            body["ignore_eos"] = True
        return json.dumps(body).encode()

    async def stream(self, body: bytes, request_id: str, outcome: StreamOutcome) -> None:
        """See `Adapter.stream`."""
        reader = StreamReader(outcome)
        await self.client.stream(PATHS[self.api], body, request_id, outcome, reader.on_read)
        reader.finish()

    async def close(self) -> None:
        """Close all connections."""
        await self.client.close()


class StreamReader:
    """Turns the reads of one answer into the outcome's instants, counts and text."""

    def __init__(self, outcome: StreamOutcome) -> None:
        self.outcome = outcome
        self._sse = SSEParser()
        self._text: list[str] = []
        self._done = False
        self._raw_bytes = 0

    def on_read(self, instant_ns: int, chunk: bytes) -> None:
        """Take one read; its instant belongs to every token in it."""
        self._raw_bytes += len(chunk)
        self._take(instant_ns, self._sse.feed(chunk), len(chunk))

    def finish(self) -> None:
        """Decide how the stream ended; called once, also after a transport fault."""
        outcome = self.outcome
        if outcome.error_class is None:
            end_ns = outcome.stream_end_at_ns or outcome.last_token_at_ns or 0
            self._take(end_ns, self._sse.finish(), 0)
        outcome.text = "".join(self._text)
        if outcome.error_class is not None:
            return
        if not self._done and outcome.finish_reason is None:
            fail(outcome, "disconnected", "the stream ended without [DONE] or a finish reason")
        elif outcome.n_token_events == 0:
            fail(outcome, "empty", "a complete answer without one token")

    def _take(self, instant_ns: int, payloads: list[bytes], n_bytes: int) -> None:
        outcome = self.outcome
        before = outcome.n_token_events
        for payload in payloads:
            try:
                event = decode_event(payload)
            except msgspec.MsgspecError:
                event = self._decode_odd(payload)
            for choice in event.choices or ():
                self._take_choice(instant_ns, choice)
            if event.usage:
                self._take_usage(event.usage)
            if event.error:
                fail(outcome, "stream_error", error_message(json.dumps({"error": event.error})))
        n_events = outcome.n_token_events - before
        if n_events:
            outcome.read_at_ns.append(instant_ns)
            outcome.read_events.append(n_events)
            outcome.read_bytes.append(n_bytes)
            outcome.last_token_at_ns = instant_ns

    def _decode_odd(self, payload: bytes) -> Event:
        """An event that is not strict JSON of the API's shape; what it means, or an event of nothing."""
        if payload.strip() == b"[DONE]":
            self._done = True
            return Event()
        try:
            data = json.loads(payload)  # takes NaN, which servers in Python write
            return msgspec.convert(data, Event) if isinstance(data, dict) else Event()
        except msgspec.MsgspecError as error:
            fail(self.outcome, "protocol", f"an event is not the API's ({error}): {payload[:80]!r}")
        except ValueError:
            fail(self.outcome, "protocol", f"an event is not JSON: {payload[:80]!r}")
        return Event()

    def _take_choice(self, instant_ns: int, choice: Choice) -> None:
        outcome = self.outcome
        if choice.finish_reason:
            outcome.finish_reason = choice.finish_reason
        delta = choice.delta or NO_DELTA
        answer = delta.content or choice.text or delta.refusal or delta.tool_calls
        if not answer and not delta.reasoning and not delta.reasoning_content:
            return
        outcome.n_token_events += 1
        if outcome.first_token_at_ns is None:
            outcome.first_token_at_ns = instant_ns
        if answer:
            if outcome.first_answer_at_ns is None:
                outcome.first_answer_at_ns = instant_ns
            if isinstance(answer, str):
                self._text.append(answer)

    def _take_usage(self, usage: dict[str, Any]) -> None:
        outcome = self.outcome
        # Some proxies put a usage block of zeros in every event: a zero is not believed.
        outcome.completion_tokens = usage.get("completion_tokens") or outcome.completion_tokens
        outcome.prompt_tokens = usage.get("prompt_tokens") or outcome.prompt_tokens
        details = usage.get("prompt_tokens_details") or {}
        if details.get("cached_tokens") is not None:
            outcome.cached_tokens = details["cached_tokens"]
