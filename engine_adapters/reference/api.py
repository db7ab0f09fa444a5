"""The OpenAI wire format: what a request body may say, and the bytes of each answer and stream event."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine_adapters.reference import tokenizer
from engine_adapters.reference.config import ModelConfig

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for completions; chat goes on to the end of the context
DONE = b"data: [DONE]\n\n"
TOKEN_JSON = [json.dumps(tokenizer.token_text(i)).encode() for i in range(8192)]  # the largest vocabulary is 4096

Api = Literal["chat", "completions"]


class ApiError(Exception):
    """A request that is refused, as vLLM words it."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = json.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}}).encode()


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """A valid request. Decoding is greedy whatever it says: temperature, top_p and the like change nothing."""

    prompt_token_ids: list[int]
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stream: bool
    include_usage: bool


def parse_generation(api: Api, body: bytes, model: ModelConfig, max_model_len: int) -> GenerationParams:
    """Read the body of a chat or completions request; raises ApiError with status 400 or 404."""
    fields = parse_object(body)
    check_model(fields, model.name)
    if fields.get("n") not in (None, 1):
        raise ApiError(400, "only n = 1 is supported", param="n")
    if fields.get("stop"):
        raise ApiError(400, "stop sequences are not supported", param="stop")
    prompt = PROMPT_PARSERS[api](fields, model.vocab_size)
    room = max_model_len - len(prompt)
    if room < 1:
        raise _too_long(max_model_len, f"your prompt has {len(prompt)} tokens")
    max_tokens = _max_tokens(fields, room if api == "chat" else min(DEFAULT_COMPLETION_TOKENS, room))
    if max_tokens > room:
        raise _too_long(max_model_len, f"you asked for {max_tokens} output tokens after {len(prompt)} prompt tokens")
    return GenerationParams(
        prompt_token_ids=prompt,
        max_tokens=max_tokens,
        min_tokens=_integer(fields, "min_tokens", 0, at_least=0),
        ignore_eos=_flag(fields, "ignore_eos"),
        stream=_flag(fields, "stream"),
        include_usage=_flag(_mapping(fields, "stream_options"), "include_usage"),
    )


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`; raises ApiError."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "the body must be a JSON object")
    return fields


def check_model(fields: Mapping[str, Any], served: str) -> None:
    """Raise ApiError 404 if `model` names another one; without a name the served model is meant, as in vLLM."""
    if fields.get("model", served) != served:
        raise ApiError(404, f"The model `{fields['model']}` does not exist.", "NotFoundError", "model")


def completion_prompt(fields: Mapping[str, Any], vocab_size: int) -> list[int]:
    """`prompt` as tokens: a string, a list with one string, or a list of token ids."""
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return tokenizer.encode(prompt)
    if isinstance(prompt, list) and prompt and all(type(i) is int and 0 <= i < vocab_size for i in prompt):
        return prompt
    raise ApiError(400, "prompt must be one non-empty string or list of token ids", param="prompt")


def chat_prompt(fields: Mapping[str, Any], vocab_size: int) -> list[int]:
    """`messages` as tokens of the chat template."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a non-empty list", param="messages")
    return tokenizer.encode_chat([_message(message) for message in messages])


PROMPT_PARSERS: dict[Api, Callable[[Mapping[str, Any], int], list[int]]] = {
    "chat": chat_prompt,
    "completions": completion_prompt,
}


def _message(message: object) -> tuple[str, str]:
    if not isinstance(message, dict) or message.get("role") not in [*tokenizer.ROLE_IDS]:
        raise ApiError(400, f"a message needs a role, one of {', '.join(tokenizer.ROLE_IDS)}", param="messages")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_text_part(part) for part in content)
    if not isinstance(content, str | None):
        raise ApiError(400, "a message's content must be text", param="messages")
    return message["role"], content or ""


def _text_part(part: object) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise ApiError(400, "only text parts are supported in a message's content", param="messages")


def _max_tokens(fields: Mapping[str, Any], default: int) -> int:
    name = "max_tokens" if fields.get("max_completion_tokens") is None else "max_completion_tokens"
    return _integer(fields, name, default, at_least=1)


def _integer(fields: Mapping[str, Any], name: str, default: int, at_least: int) -> int:
    value = fields.get(name)
    if value is None:
        return default
    if type(value) is not int or value < at_least:
        raise ApiError(400, f"{name} must be an integer of at least {at_least}, got {value!r}", param=name)
    return value


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise ApiError(400, f"{name} must be true or false", param=name)


def _mapping(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = fields.get(name)
    if value is None or isinstance(value, dict):
        return value or {}
    raise ApiError(400, f"{name} must be an object", param=name)


def _too_long(max_model_len: int, what: str) -> ApiError:
    return ApiError(400, f"This model's maximum context length is {max_model_len} tokens, but {what}.", param="prompt")


def usage(n_prompt: int, n_output: int) -> dict[str, Any]:
    """The usage block. There is no prefix cache, so no prompt token is ever cached."""
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_output,
        "total_tokens": n_prompt + n_output,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


class EventEncoder:
    """Writes the stream events of one request; what is the same in each token's event is encoded once."""

    def __init__(self, api: Api, answer_id: str, created_s: int, model: str) -> None:
        kind = {"chat": "chat.completion.chunk", "completions": "text_completion"}[api]
        self._head = {"id": answer_id, "object": kind, "created": created_s, "model": model}
        opened = b"data: " + json.dumps(self._head, separators=(",", ":")).encode()[:-1] + b',"choices":[{"index":0,'
        self._before = opened + {"chat": b'"delta":{"content":', "completions": b'"text":'}[api]
        self._after = {"chat": b"}", "completions": b""}[api] + b',"logprobs":null,"finish_reason":'
        self.role = opened + b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'

    def token(self, token_id: int | None, finish_reason: str | None) -> bytes:
        """The event of one token, or of an end without a token (its text is empty)."""
        text = b'""' if token_id is None else TOKEN_JSON[token_id]
        reason = b"null" if finish_reason is None else b'"' + finish_reason.encode() + b'"'
        return self._before + text + self._after + reason + b"}]}\n\n"

    def usage(self, n_prompt: int, n_output: int) -> bytes:
        """The last event before [DONE] when usage was asked for: no choices."""
        return _event({**self._head, "choices": [], "usage": usage(n_prompt, n_output)})


def error_event(message: str) -> bytes:
    """An error inside a stream whose headers have gone."""
    return _event({"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}})


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def answer(
    api: Api, answer_id: str, created_s: int, model: str, n_prompt: int, token_ids: Sequence[int], finish_reason: str
) -> bytes:
    """The body of an answer that is not streamed."""
    text = tokenizer.decode(token_ids)
    content: dict[str, Any]
    if api == "chat":
        kind, content = "chat.completion", {"message": {"role": "assistant", "content": text}}
    else:
        kind, content = "text_completion", {"text": text}
    choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}
    head = {"id": answer_id, "object": kind, "created": created_s, "model": model}
    return json.dumps({**head, "choices": [choice], "usage": usage(n_prompt, len(token_ids))}).encode()
