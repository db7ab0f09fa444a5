"""What an answer is made of, and the bytes of chat and completions: stream events one by one, or the answer whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from engine_adapters.reference.api import GenerationParams
from engine_adapters.reference.api_fields import error_body
from engine_adapters.reference.request import FinishReason, Logprobs

TextOf = Callable[[int], str]  # the text of one token

FINGERPRINT = "openloop-reference"
DONE = b"data: [DONE]\n\n"


class Usage(NamedTuple):
    """Tokens of a request: its prompts, how many of those came out of the prefix cache, its output so far."""

    n_prompt: int
    n_cached: int
    n_output: int

    def as_json(self) -> dict[str, Any]:
        """OpenAI's usage block."""
        return {
            "prompt_tokens": self.n_prompt,
            "total_tokens": self.n_prompt + self.n_output,
            "completion_tokens": self.n_output,
            "prompt_tokens_details": {"cached_tokens": self.n_cached},
        }


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step brought to a choice: text that may leave, its tokens, and at the end why it ended.

    token_ids and logprobs belong to the step, also where a possible stop string holds their text back.
    """

    index: int
    text: str
    token_ids: Sequence[int] = ()
    logprobs: Sequence[Logprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | None = None


@dataclass(slots=True)
class Choice:
    """One choice of an answer that is not streamed; its pieces put together."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | None = None

    def add(self, piece: Piece) -> None:
        """The next piece."""
        self.text.append(piece.text)
        self.token_ids += piece.token_ids
        if piece.logprobs is not None:
            self.logprobs = [*(self.logprobs or []), *piece.logprobs]
        self.finish_reason, self.stop_reason = piece.finish_reason, piece.stop_reason


class Writer(Protocol):
    """Writes one request's answer in the format of its API."""

    def opening(self, usage: Usage) -> bytes:
        """Events before the first token; may be empty."""
        ...

    def plain(self, index: int, text: str) -> bytes:
        """One event in the middle of an answer that carries text alone: the fast path."""
        ...

    def piece(self, piece: Piece, usage: Usage) -> bytes:
        """One event with all that was asked for; `usage` counts up to here."""
        ...

    def closing(self, usage: Usage) -> bytes:
        """Events after the last piece of the last choice."""
        ...

    def error(self, message: str) -> bytes:
        """An error in a stream whose headers have gone, and the stream's end."""
        ...

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        ...


@dataclass(frozen=True, slots=True)
class Heading:
    """What all events of an answer say: a number unique in the server, when it began and the model's name."""

    number: str
    created_s: int
    model: str


class OpenAIWriter:
    """Chat (`is_chat`) and completions; what is the same in each plain event is encoded once."""

    def __init__(self, is_chat: bool, heading: Heading, params: GenerationParams, text_of: TextOf) -> None:
        self._is_chat, self._params, self._text_of = is_chat, params, text_of
        head = {"id": ("chatcmpl-" if is_chat else "cmpl-") + heading.number}
        tail = {"created": heading.created_s, "model": heading.model}
        self._head = {**head, "object": "chat.completion" if is_chat else "text_completion", **tail}
        self._event_head = {**head, "object": "chat.completion.chunk" if is_chat else "text_completion", **tail}
        self._opened = b"data: " + compact(self._event_head)[:-1] + b',"choices":[{"index":'
        self._before_text = b',"delta":{"content":' if is_chat else b',"text":'
        unset = b',"logprobs":null,"finish_reason":null'
        rest = b"}" + unset if is_chat else unset + b',"stop_reason":null'
        self._after_text = rest + b',"token_ids":null}]}\n\n'
        self._offsets: dict[int, int] = {}  # of completions logprobs: characters of each choice so far

    def opening(self, usage: Usage) -> bytes:
        """Chat begins each choice with the role alone."""
        if not self._is_chat:
            return b""
        told = self._told(usage) | (
            {"prompt_token_ids": self._params.prompts[0]} if self._params.return_token_ids else {}
        )
        delta = {"role": "assistant", "content": ""}
        choices = [{"index": i, "delta": delta, "logprobs": None, "finish_reason": None} for i in range(self._params.n)]
        return b"".join(self._event([choice], told) for choice in choices)

    def plain(self, index: int, text: str) -> bytes:
        """The event of a token in the middle of an answer."""
        return b"%b%d%b%b%b" % (self._opened, index, self._before_text, text_json(text), self._after_text)

    def piece(self, piece: Piece, usage: Usage) -> bytes:
        """The event of one step's tokens, or of an end without any."""
        choice: dict[str, Any] = {"index": piece.index}
        choice |= {"delta": {"content": piece.text}} if self._is_chat else {"text": piece.text}
        choice |= {"logprobs": self._logprobs(piece.index, piece.logprobs), "finish_reason": piece.finish_reason}
        if piece.finish_reason or not self._is_chat:
            choice["stop_reason"] = piece.stop_reason
        choice["token_ids"] = list(piece.token_ids) if self._params.return_token_ids else None
        return self._event([choice], self._told(usage))

    def closing(self, usage: Usage) -> bytes:
        """The usage event, which has no choices, where it was asked for; then the end mark."""
        if not self._params.include_usage:
            return DONE
        return self._event([], {"usage": usage.as_json(), "system_fingerprint": FINGERPRINT}) + DONE

    def error(self, message: str) -> bytes:
        """The error object as an event, then the end mark."""
        return b"data: " + error_body(message, "InternalServerError", None, 500) + b"\n\n" + DONE

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The answer in one object."""
        listed = [self._choice(index, choice) for index, choice in enumerate(choices)]
        tail = {"service_tier": None, "system_fingerprint": FINGERPRINT, "usage": usage.as_json()}
        return compact({**self._head, "choices": listed, **tail})

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        text = "".join(choice.text)
        message = {"role": "assistant", "content": text, "refusal": None, "reasoning": None}
        return {
            "index": index,
            **({"message": message} if self._is_chat else {"text": text}),
            "logprobs": self._logprobs(index, choice.logprobs),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": choice.token_ids if self._params.return_token_ids else None,
        }

    def _told(self, usage: Usage) -> dict[str, Any]:
        return {"usage": usage.as_json()} if self._params.continuous_usage else {}

    def _event(self, choices: Sequence[dict[str, Any]], more: dict[str, Any]) -> bytes:
        return b"data: " + compact({**self._event_head, "choices": choices, **more}) + b"\n\n"

    def _logprobs(self, index: int, logprobs: Sequence[Logprobs] | None) -> dict[str, Any] | None:
        if logprobs is None:
            return None
        if self._is_chat:
            return {"content": [self._chat_logprob(each) for each in logprobs]}
        return self._completion_logprobs(index, logprobs)

    def _chat_logprob(self, logprobs: Logprobs) -> dict[str, Any]:
        drawn, *top = [(logprobs.token_id, logprobs.logprob), *logprobs.top]
        return self._named(*drawn) | {"top_logprobs": [self._named(*each) for each in top]}

    def _named(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self._text_of(token_id)
        return {"token": text, "logprob": finite(logprob), "bytes": list(text.encode())}

    def _completion_logprobs(self, index: int, logprobs: Sequence[Logprobs]) -> dict[str, Any]:
        tokens = [self._text_of(each.token_id) for each in logprobs]
        offset, offsets = self._offsets.get(index, 0), []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        self._offsets[index] = offset
        tops = [[(each.token_id, each.logprob), *each.top] for each in logprobs]
        return {
            "text_offset": offsets,
            "token_logprobs": [finite(each.logprob) for each in logprobs],
            "tokens": tokens,
            "top_logprobs": [{self._text_of(i): finite(value) for i, value in top} for top in tops],
        }


def finite(logprob: float) -> float:
    """JSON has no infinity: an impossible token gets -9999, as in vLLM."""
    return max(float(logprob), -9999.0)


def compact(data: Any) -> bytes:
    """JSON without blanks."""
    return json.dumps(data, separators=(",", ":")).encode()


@lru_cache(maxsize=1 << 16)
def text_json(text: str) -> bytes:
    """A token's text as a JSON string; answers repeat their tokens."""
    return json.dumps(text).encode()
