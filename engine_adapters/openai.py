"""The OpenAI API, chat and completions, streamed: what to send, and what each event of the answer means."""

from __future__ import annotations

import json
from typing import Any, Literal

from engine_adapters.base import Request, StreamOutcome
from engine_adapters.sse import SSEParser
from engine_adapters.transport import HttpClient, error_message, fail

Api = Literal["chat", "completions"]
PATHS: dict[Api, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
REASONING_KEYS = ("reasoning", "reasoning_content")
ANSWER_KEYS = ("content", "refusal", "tool_calls")


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
        before = self.outcome.n_token_events
        for payload in payloads:
            self._take_event(instant_ns, payload)
        n_events = self.outcome.n_token_events - before
        if n_events:
            self.outcome.reads.append((instant_ns, n_events, n_bytes))
            self.outcome.last_token_at_ns = instant_ns

    def _take_event(self, instant_ns: int, payload: bytes) -> None:
        if payload.strip() == b"[DONE]":
            self._done = True
            return
        try:
            event = json.loads(payload)
        except ValueError:
            fail(self.outcome, "protocol", f"an event is not JSON: {payload[:80]!r}")
            return
        if not isinstance(event, dict):
            return
        if event.get("error"):
            fail(self.outcome, "stream_error", error_message(json.dumps(event)))
        if event.get("usage"):
            self._take_usage(event["usage"])
        for choice in event.get("choices") or ():
            self._take_choice(instant_ns, choice)

    def _take_choice(self, instant_ns: int, choice: dict[str, Any]) -> None:
        outcome = self.outcome
        outcome.finish_reason = choice.get("finish_reason") or outcome.finish_reason
        delta = choice.get("delta") or choice
        answer = next((delta[key] for key in ANSWER_KEYS if delta.get(key)), None) or choice.get("text")
        reasoning = next((delta[key] for key in REASONING_KEYS if delta.get(key)), None)
        if not answer and not reasoning:
            return
        outcome.n_token_events += 1
        if outcome.first_token_at_ns is None:
            outcome.first_token_at_ns = instant_ns
        if answer and outcome.first_answer_at_ns is None:
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
