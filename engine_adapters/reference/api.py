"""What a request body may say: chat, completions and Responses, read into one kind of valid request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from engine_adapters.reference.api_fields import (
    ApiError,
    Fields,
    bad_type,
    bad_value,
    check_model,
    flag,
    integer,
    mapping,
    missing,
    number,
    parse_object,
    strings,
    unsupported,
)
from engine_adapters.reference.request import SamplingParams
from engine_adapters.reference.tokenizer import Tokenizer

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for completions; chat goes on to the end of the context
ROLES = ("system", "developer", "user", "assistant", "tool")
TEXT_PARTS = ("text", "input_text", "output_text")
MAX_CHOICES = 128
MAX_LOGPROBS = 20  # OpenAI's and vLLM's most
MAX_STOPS = 16
MAX_SEED = 2**63 - 1

# Fields that change nothing as long as they have these values; any other is refused rather than ignored.
NEUTRAL = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "min_p": 0,
    "logit_bias": {},
    "suffix": "",
    "use_beam_search": False,
    "response_format": {"type": "text"},
}

Api = Literal["chat", "completions", "responses"]


@dataclass(frozen=True, slots=True)
class Served:
    """The model that a request may ask for."""

    name: str
    vocab_size: int
    max_model_len: int
    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """A valid request: `n` choices for each of `prompts`.

    What `sampling` says of stop strings is carried out by the server, which has the text; the rest by the engine.
    """

    prompts: list[list[int]]
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    sampling: SamplingParams
    n: int = 1
    priority: int = 0
    echo: bool = False
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether events in the middle of an answer hold text alone."""
        return not (self.continuous_usage or self.return_token_ids or self.sampling.logprobs is not None)


def parse_generation(api: Api, body: bytes, served: Served) -> GenerationParams:
    """Read the body of a generating request; raises ApiError with status 400 or 404."""
    fields = parse_object(body)
    check_model(fields, served.name)
    prompts = PROMPT_PARSERS[api](fields, served)
    max_tokens = _max_tokens(api, fields, served.max_model_len, max(map(len, prompts)))
    for name, neutral in NEUTRAL.items():
        if fields.get(name) not in (None, neutral):
            raise unsupported(name, f"{name} is not supported by this engine; only {neutral!r} is")
    options = mapping(fields, "stream_options")
    if options and not flag(fields, "stream"):
        raise ApiError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    min_tokens = integer(fields, "min_tokens", 0, at_least=0)
    if min_tokens > max_tokens:
        raise bad_value("min_tokens", f"be less than or equal to max_tokens={max_tokens}", min_tokens)
    include_usage = flag(options, "include_usage")
    return GenerationParams(
        prompts=prompts,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=flag(fields, "ignore_eos"),
        sampling=_sampling(api, fields, served.vocab_size),
        n=1 if api == "responses" else integer(fields, "n", 1, at_least=1, at_most=MAX_CHOICES),
        priority=integer(fields, "priority", 0, at_least=-(2**31)),
        echo=_echo(api, fields),
        stream=flag(fields, "stream"),
        include_usage=include_usage,
        continuous_usage=include_usage and flag(options, "continuous_usage_stats"),
        return_token_ids=api != "responses" and flag(fields, "return_token_ids"),
    )


def completion_prompts(fields: Fields, served: Served) -> list[list[int]]:
    """`prompt` as tokens: a string, a list of token ids, or a list of either."""
    prompt = fields.get("prompt")
    if prompt is None:
        raise missing("prompt")
    is_batch = isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list)
    return [_one_prompt(each, served) for each in (prompt if is_batch else [prompt])]


def _one_prompt(prompt: Any, served: Served) -> list[int]:
    if isinstance(prompt, str) and prompt:
        return served.tokenizer.encode(prompt)
    if isinstance(prompt, list) and prompt and all(type(i) is int for i in prompt):
        if not all(0 <= i < served.vocab_size for i in prompt):
            raise ApiError(400, f"prompt: a token id is outside the vocabulary of {served.vocab_size}", param="prompt")
        return prompt
    if prompt in ("", []):
        raise ApiError(400, "The decoder prompt cannot be empty", param="prompt")
    raise bad_type("prompt", "string", prompt)


def chat_prompt(fields: Fields, served: Served) -> list[list[int]]:
    """`messages` as tokens of the chat template."""
    if "messages" not in fields:
        raise missing("messages")
    messages = fields["messages"]
    if not isinstance(messages, list):
        raise bad_type("messages", "list", messages)
    if not messages:
        raise ApiError(400, "messages must not be empty", param="messages")
    return [served.tokenizer.encode_chat([_message(message, "messages") for message in messages])]


def responses_prompt(fields: Fields, served: Served) -> list[list[int]]:
    """`instructions` and `input`, a string or a list of messages, as tokens of the chat template."""
    if fields.get("previous_response_id") is not None:
        raise unsupported("previous_response_id", "responses are not stored: send the whole conversation as `input`")
    given, instructions = fields.get("input"), fields.get("instructions")
    if given is None:
        raise missing("input")
    if not isinstance(given, str | list) or not given:
        raise bad_type("input", "string", given)
    if not isinstance(instructions, str | None):
        raise bad_type("instructions", "string", instructions)
    messages = [("system", instructions)] if instructions else []
    messages += [("user", given)] if isinstance(given, str) else [_message(item, "input") for item in given]
    return [served.tokenizer.encode_chat(messages)]


PROMPT_PARSERS: dict[Api, Callable[[Fields, Served], list[list[int]]]] = {
    "chat": chat_prompt,
    "completions": completion_prompts,
    "responses": responses_prompt,
}


def _message(message: object, param: str) -> tuple[str, str]:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise ApiError(400, f"{param}: a message needs a role, one of {', '.join(ROLES)}", param=param)
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_text_part(part, param) for part in content)
    if not isinstance(content, str | None):
        raise bad_type(param, "string", content)
    return message["role"], content or ""


def _text_part(part: object, param: str) -> str:
    if isinstance(part, dict) and part.get("type") in TEXT_PARTS and isinstance(part.get("text"), str):
        return str(part["text"])
    raise ApiError(400, f"{param}: only text parts are supported in a message's content", param=param)


def _max_tokens(api: Api, fields: Fields, max_model_len: int, n_prompt: int) -> int:
    """The most output tokens: what is asked, or the API's default; raises ApiError where the context is too small."""
    names = {"chat": ("max_completion_tokens", "max_tokens"), "responses": ("max_output_tokens",)}
    name = next((n for n in names.get(api, ()) if fields.get(n) is not None), "max_tokens")
    room = max_model_len - n_prompt
    default = min(DEFAULT_COMPLETION_TOKENS, room) if api == "completions" else room
    asked = integer(fields, name, max(default, 1), at_least=1)
    if asked > room:
        raise ApiError(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, you asked for {asked} output "
            f"tokens after a prompt of {n_prompt} tokens. Please reduce the length of the prompt or of the output. "
            f"(parameter={name}, value={asked})",
            param=name if asked > max_model_len else "prompt",
        )
    return asked


def _sampling(api: Api, fields: Fields, vocab_size: int) -> SamplingParams:
    """How tokens are drawn. Without a temperature decoding is greedy: this engine's default is 0, not OpenAI's 1."""
    top_k = integer(fields, "top_k", 0, at_least=-1)
    seed = fields.get("seed")
    stop_ids = fields.get("stop_token_ids") or []
    if not isinstance(stop_ids, list) or not all(type(i) is int and 0 <= i < vocab_size for i in stop_ids):
        raise bad_type("stop_token_ids", "list", stop_ids)
    return SamplingParams(
        temperature=number(fields, "temperature", 0.0, 0.0, 2.0),
        top_k=max(top_k, 0),
        top_p=number(fields, "top_p", 1.0, 0.0, 1.0, above=True),
        seed=None if seed is None else integer(fields, "seed", 0, at_least=-MAX_SEED - 1, at_most=MAX_SEED),
        logprobs=_logprobs(api, fields),
        stop=_stop(fields),
        stop_token_ids=frozenset(stop_ids),
    )


def _logprobs(api: Api, fields: Fields) -> int | None:
    """How many alternatives beside each drawn token; None for no logprobs at all."""
    if api == "completions":
        asked = fields.get("logprobs")
        return None if asked is None else integer(fields, "logprobs", 0, at_least=0, at_most=MAX_LOGPROBS)
    if api == "responses":
        return None
    top = integer(fields, "top_logprobs", 0, at_least=0, at_most=MAX_LOGPROBS)
    wanted = flag(fields, "logprobs")
    if top and not wanted:
        raise ApiError(400, "when using `top_logprobs`, `logprobs` must be set to true.", param="top_logprobs")
    return top if wanted else None


def _stop(fields: Fields) -> tuple[str, ...]:
    if flag(fields, "include_stop_str_in_output"):
        raise unsupported("include_stop_str_in_output", "a stop string can't be kept in the answer")
    stop = strings(fields, "stop")
    if len(stop) > MAX_STOPS:
        raise bad_value("stop", f"have at most {MAX_STOPS} strings", len(stop))
    return stop


def _echo(api: Api, fields: Fields) -> bool:
    echo = api == "completions" and flag(fields, "echo")
    if echo and fields.get("logprobs") is not None:
        raise unsupported("echo", "echo together with logprobs is not supported: a prompt's logprobs are not kept")
    return echo
