"""Servers x situations: for every cell an answer and what is right; `results` reads them all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from support import documented
from support.documented import Answer, chat_reasoning
from support.streams import naive_text, naive_tokens, read_answer, recorded

from engine_adapters.base import StreamOutcome
from engine_adapters.transport import error_message

COLUMNS = ("stream", "no stream", "usage on", "usage off", "reasoning", "tools", "error", "cut")


@dataclass(frozen=True)
class Row:
    """One server by one API. `cases` names recordings, `built` has answers made from its documentation."""

    server: str
    api: str
    looks: str
    ours: str
    recording: str | None = None
    cases: dict[str, str] = field(default_factory=dict)
    built: dict[str, Answer] = field(default_factory=dict)


def chat_row(server: str, looks: str, ours: str, recording: str, reasoning_key: str, **cases: str) -> Row:
    names = {"stream": "chat_stream_usage", "no stream": "chat_nonstream", "usage on": "chat_stream_usage"}
    names |= {"usage off": "chat_stream_no_usage", "cut": "chat_stream_cut_by_client"}
    built = {"reasoning": chat_reasoning(reasoning_key), "tools": documented.chat_tools()}
    return Row(server, "openai-chat", looks, ours, recording, names | cases, built)


def completions_row(server: str, looks: str, ours: str, recording: str) -> Row:
    names = {"stream": "completion_stream_usage", "no stream": "completion_nonstream"}
    return Row(server, "openai-completions", looks, ours, recording, names | {"usage on": "completion_stream_usage"})


ROWS = (
    chat_row(
        "vLLM 0.32.0",
        "role event with empty content first; tokens merged when its API process lags; usage in an event of its own; "
        "reasoning in `reasoning`",
        "the role event is no token; tokens by usage; `usage: every_event` gives the tokens of each read",
        "vllm",
        "reasoning",
        error="error_in_stream_bad_param",
    ),
    completions_row("vLLM 0.32.0", "text in `text`; usage in an event of its own", "as chat", "vllm"),
    Row(
        "vLLM 0.32.0",
        "openai-responses",
        "typed, named events; several tokens a delta; usage in `response.completed`; no `[DONE]`",
        "`...delta` events are tokens, `...done` repeats are not",
        "vllm",
        {"stream": "responses_stream", "usage on": "responses_stream"},
    ),
    Row(
        "vLLM 0.32.0",
        "anthropic",
        "Anthropic's events; can put a whole short answer into one delta",
        "output tokens of `message_start` are a placeholder; the last `message_delta` counts",
        "vllm",
        {"stream": "messages_stream_anthropic", "usage on": "messages_stream_anthropic"},
    ),
    chat_row(
        "SGLang 0.5.23",
        "role event first; a lone request's tokens can share an event; finish reason in an event without content; "
        "reasoning in `reasoning_content`",
        "as vLLM",
        "sglang",
        "reasoning_content",
        error="error_bad_body",
    ),
    completions_row("SGLang 0.5.23", "text in `text`, `usage: null` until the end", "as chat", "sglang"),
    Row(
        "SGLang 0.5.23",
        "sglang",
        "`/generate`: each event repeats all text and ids so far, with counts",
        "only what is new is a token event; with increments switched on the ids tell",
        "sglang",
        {
            "stream": "native_generate_stream",
            "no stream": "native_generate_nonstream",
            "usage on": "native_generate_stream",
        },
    ),
    Row(
        "SGLang 0.5.23",
        "anthropic",
        "Anthropic's events, several tokens in some deltas",
        "as vLLM's",
        "sglang",
        {"stream": "messages_stream_anthropic", "usage on": "messages_stream_anthropic"},
    ),
    chat_row(
        "llama.cpp b11434",
        "role event with content null; `timings` beside usage; usage of one choice only with n > 1; before 2025 errors "
        "in a field `error:`; announces keep-alive, and closes the connection after each streamed answer",
        "tokens by usage; a wrong model name is served, so the preflight compares it with `/v1/models`",
        "llama-cpp",
        "reasoning_content",
        error="error_bad_body",
        cut="chat_stream_server_killed_midway",
    ),
    completions_row("llama.cpp b11434", "usage always, in the last choice's event", "as chat", "llama-cpp"),
    Row(
        "llama.cpp b11434",
        "llama-cpp",
        "`/completion`: a counter and a token id in every event; progress events without content; ends at `stop: true`",
        "progress is no token; the counter gives the tokens of each read",
        "llama-cpp",
        {
            "stream": "native_completion_stream",
            "no stream": "native_completion_nonstream",
            "usage on": "native_completion_stream",
        },
    ),
    Row(
        "llama.cpp b11434",
        "openai-responses",
        "typed, named events; usage in `response.completed`, which an answer cut by its limit has too; no `[DONE]`",
        "as vLLM's; the finish reason is `stop`, as the server says",
        "llama-cpp",
        {"stream": "responses_stream", "usage on": "responses_stream"},
    ),
    Row(
        "llama.cpp b11434",
        "anthropic",
        "Anthropic's events, a token each",
        "as vLLM's",
        "llama-cpp",
        {"stream": "messages_stream_anthropic", "usage on": "messages_stream_anthropic"},
    ),
    chat_row(
        "mlx-lm 0.32.2",
        "HTTP/1.0 without chunks; comments during prefill; the role in every delta; an error is a bare text",
        "the connection's end is no terminal mark: `[DONE]` or a finish reason is",
        "mlx-lm",
        "reasoning",
        error="error_bad_body",
    ),
    Row(
        "TGI 3",
        "tgi",
        "`/generate_stream`: an event a token, the end token as `special`; the last has the text and `details`",
        "special tokens count and are no text; without details each token event is counted",
        built=documented.TGI,
    ),
    Row(
        "Ollama",
        "ollama",
        "NDJSON; counts and nanoseconds in the last line, which may lack its line end; `thinking` beside `content`",
        "no field fixes the length: said before the run",
        built=documented.OLLAMA,
    ),
    Row(
        "LM Studio",
        "openai-chat",
        "OpenAI's events; older ones without usage; reasoning in `reasoning_content`",
        "without usage: local tokenizer, else events, and the source says so",
        built=documented.CHAT | {"reasoning": chat_reasoning("reasoning_content")},
    ),
    Row(
        "Triton, TensorRT-LLM",
        "triton",
        "`generate_stream`: text pieces, no counts, no terminal mark",
        "the body's clean end is the mark; a cut shows in HTTP's framing alone",
        built=documented.TRITON,
    ),
    Row(
        "Azure OpenAI",
        "azure",
        "OpenAI's events after one with `prompt_filter_results` and no token",
        "deployment in the path, `api-version` in the query, key in `api-key`",
        built=documented.CHAT,
    ),
    Row(
        "Anthropic",
        "anthropic",
        "named events, `ping`s, thinking with a signature; cumulative usage",
        "key in `x-api-key`; prompt tokens are those read, cached and written to the cache",
        built=documented.ANTHROPIC,
    ),
    Row(
        "OpenAI",
        "openai-responses",
        "typed, named events; reasoning as summaries; usage in `response.completed`",
        "no field fixes the length: said before the run",
        built=documented.RESPONSES,
    ),
    Row(
        "embeddings", "embeddings", "one JSON answer", "latency and throughput; no tokens", built=documented.EMBEDDINGS
    ),
    Row("any", "rerank", "one JSON answer", "latency and throughput; no tokens", built=documented.RERANK),
)


@dataclass(frozen=True)
class Cell:
    """What became of one cell: where its answer is from, and what was wrong with our reading, if anything."""

    origin: str  # recorded, built or cut
    problem: str = ""


def results() -> Iterator[tuple[Row, dict[str, Cell]]]:
    """Every row with its cells; a column that the API or server does not have is missing."""
    for row in ROWS:
        yield row, {column: cell for column in COLUMNS if (cell := cell_of(row, column)) is not None}


def cell_of(row: Row, column: str) -> Cell | None:
    if row.recording and column in row.cases:
        return Cell("recorded", recorded_problem(recorded(row.recording)["cases"][row.cases[column]], column))
    if column in row.built:
        body, right = row.built[column]
        return Cell("built", built_problem(read(row.api, body, column != "no stream"), right))
    if column == "usage on" and "stream" in row.built and row.built["stream"][1]["tokens"]:
        return cell_of(row, "stream")
    if column == "cut" and ("stream" in row.cases or "stream" in row.built) and row.api != "triton":
        return Cell("cut", cut_problem(row))
    return None


def read(api: str, body: bytes, streamed: bool) -> StreamOutcome:
    """The outcome of a body that came in reads of 40 bytes, a millisecond apart."""
    return read_answer(api, [(at * 10**6, body[at : at + 40]) for at in range(0, len(body), 40)], streamed=streamed)


def recorded_problem(case: dict[str, Any], column: str) -> str:
    body = case["body"].encode()
    if case["http"] != 200:
        return "" if error_message(case["body"]) else "no sentence"
    outcome = read(case["api"], body, bool(case["request"].get("stream")))
    if column == "cut":
        return "" if outcome.error_class == "disconnected" and outcome.n_token_events else "not seen"
    right = {"text": naive_text(body), "tokens": naive_tokens(body)}
    return built_problem(outcome, right)


def built_problem(outcome: StreamOutcome, right: dict[str, Any]) -> str:
    found = {
        "text": outcome.text,
        "hidden_text": outcome.hidden_text,
        "tokens": outcome.output_tokens if outcome.output_tokens_source in ("usage", "event_counts") else None,
        "events": outcome.n_token_events,
        "prompt": outcome.prompt_tokens,
        "cached": outcome.cached_tokens,
        "finish": outcome.finish_reason,
        "source": outcome.output_tokens_source,
        "decode_s": outcome.server_decode_s,
        "error_class": outcome.error_class,
    }
    wrong = {key: found[key] for key, value in ({"error_class": None} | right).items() if found[key] != value}
    return f"{wrong} instead of {right}" if wrong else ""


def cut_problem(row: Row) -> str:
    """The first half of the row's stream is no complete answer, wherever the cut falls."""
    streamed = recorded(row.recording)["cases"][row.cases["stream"]] if row.recording else None
    body = streamed["body"].encode() if streamed else row.built["stream"][0]
    found = {read(row.api, body[: len(body) // 2 - cut], True).error_class for cut in range(0, len(body) // 4, 7)}
    return "" if found == {"disconnected"} else str(found)
