"""Real servers over real sockets: text, counts and instants are those of a second reader of the very same bytes.

A relay between client and server (tests/support/relay.py) keeps what the server wrote and when. TTFT is compared
within max(2 ms, 5%) between the client's own instants and the relay's: request's last byte in, first text out. What
waited while the client got no CPU is read together and by definition has the instant of the last, so that one is
compared then; the plain stream is asked for again until its first text came in a read of its own. Texts are also
compared with the same greedy request that is not streamed and is sent by urllib.
"""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import anyio
import pytest
from support.live import Held, started
from support.relay import Tape, relay
from support.streams import MS, naive_events, naive_text, naive_tokens

from engine_adapters.apis import find_dialect
from engine_adapters.base import Request, StreamOutcome
from engine_adapters.dialect import Asking, DialectAdapter
from engine_adapters.preflight import find_server
from engine_adapters.transport import HttpClient

PROMPT = "Measure the latency of a request: naïve café 测试 🚀."
N_TOKENS = 24
TRIES = 20
LOGPROBS: dict[str, dict[str, Any]] = {
    "openai-chat": {"logprobs": True, "top_logprobs": 1},
    "openai-completions": {"logprobs": 1},
}
STOP_FIELD = {"anthropic": "stop_sequences"}
NO_PROMPT = {"messages": None, "prompt": None, "input": None}


@dataclass(frozen=True)
class Case:
    """A server and the API by which it is asked."""

    url: str
    api: str

    def adapter(self, client: HttpClient, **asking: Any) -> DialectAdapter:
        return DialectAdapter(client, find_dialect(self.api), Asking("tiny", **asking))

    async def ask(
        self, n_tokens: int = N_TOKENS, when_begun: Callable[[anyio.CancelScope], None] | None = None, **asking: Any
    ) -> tuple[StreamOutcome, Tape]:
        """One request through the relay; `when_begun` is called after the first tokens, and may cancel it."""
        outcome = StreamOutcome()
        with relay(self.url) as (url, tapes):
            client = HttpClient(url)
            adapter = self.adapter(client, **asking)
            async with anyio.create_task_group() as tasks:
                if when_begun is not None:
                    tasks.start_soon(after_first_token, outcome, when_begun, tasks.cancel_scope)
                await adapter.stream(adapter.encode(Request(PROMPT, n_tokens)), "live", outcome)
                tasks.cancel_scope.cancel()
            await client.close()
            await until(lambda: tapes[0].client_left and len(tapes[0].handed_on_ns) == len(tapes[0].reads))
        return outcome, tapes[0]

    def whole(self) -> bytes:
        """The same request, not streamed and not ours."""
        adapter = self.adapter(HttpClient(self.url), stream=False)
        body = adapter.encode(Request(PROMPT, N_TOKENS))
        headers = {"content-type": "application/json", **adapter.dialect.headers}
        request = urllib.request.Request(self.url + adapter.path, body, headers)
        with urllib.request.urlopen(request, timeout=60) as reply:
            found: bytes = reply.read()
        return found


async def after_first_token(
    outcome: StreamOutcome, when_begun: Callable[[anyio.CancelScope], None], scope: anyio.CancelScope
) -> None:
    await until(lambda: outcome.n_token_events > 0)
    when_begun(scope)


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not holds():
            await anyio.sleep(0.001)


def agree(outcome: StreamOutcome, tape: Tape) -> bool:
    """Our reading and the second reader's, of one answer; whether the first text came to us in a read of its own."""
    assert outcome.ok, outcome.error
    assert outcome.text == naive_text(tape.body)
    assert outcome.sent_at_ns is not None
    assert outcome.first_token_at_ns is not None
    last, first = tape.last_of(outcome.read_bytes[0]), tape.first_text()
    ours_ns = outcome.first_token_at_ns - outcome.sent_at_ns
    before_ns, after_ns = (at_ns - tape.asked_at_ns for at_ns in tape.handed_on_ns[last])
    print(f"TTFT {ours_ns / 1e6:.3f} ms, second reader {before_ns / 1e6:.3f} to {after_ns / 1e6:.3f} ms", last - first)
    assert max(before_ns - ours_ns, ours_ns - after_ns, 0) <= max(2 * MS, 0.05 * before_ns)
    return last == first


async def stream(case: Case) -> None:
    alone = False
    for _ in range(TRIES):
        outcome, tape = await case.ask()
        alone = agree(outcome, tape) or alone
        if alone:
            break
    assert alone, "the client never got the CPU in time"
    assert outcome.text == naive_text(case.whole())
    assert outcome.finish_reason == told_reason(case.api, tape)


def told_reason(api: str, tape: Tape) -> str:
    """llama.cpp's Responses API calls an answer complete that its limit ended."""
    complete = api == "openai-responses" and b'"reason":"max_output_tokens"' not in tape.body
    return "stop" if complete else "length"


async def no_stream(case: Case) -> None:
    outcome, _ = await case.ask(stream=False)
    whole = case.whole()
    assert (outcome.text, outcome.output_tokens) == (naive_text(whole), naive_tokens(whole)) != ("", None)
    assert outcome.output_tokens == N_TOKENS


async def usage_on(case: Case) -> None:
    outcome, tape = await case.ask(usage="final")
    agree(outcome, tape)
    assert (outcome.output_tokens, outcome.output_tokens_source) == (naive_tokens(tape.body), "usage")
    assert outcome.output_tokens == naive_tokens(case.whole()) == N_TOKENS


async def usage_off(case: Case) -> None:
    outcome, tape = await case.ask(usage="never")
    agree(outcome, tape)
    if naive_tokens(tape.body) is None:
        assert outcome.output_tokens_source in ("events", "event_counts")
        assert outcome.output_tokens == sum(outcome.read_events)
    else:  # told without being asked
        assert outcome.output_tokens == naive_tokens(tape.body)


async def usage_in_every_event(case: Case) -> None:
    outcome, tape = await case.ask(usage="every_event")
    agree(outcome, tape)
    assert outcome.output_tokens == naive_tokens(tape.body) == N_TOKENS
    assert sum(outcome.read_tokens) in (0, N_TOKENS)


async def error(case: Case) -> None:
    """A request without any prompt: the server's own sentence."""
    outcome, tape = await case.ask(extra=NO_PROMPT)
    assert outcome.error_class == "http_status"
    assert f" {outcome.http_status} ".encode() in tape.reads[0]
    told = json.loads(tape.body)["error"]["message"]
    assert (outcome.error or "").split() == ["HTTP", f"{outcome.http_status}:", *told.split()]


async def cut(case: Case) -> None:
    """The client leaves: what had come stays, the server hears of it, and it answers the next request."""
    outcome, tape = await case.ask(n_tokens=3000, when_begun=lambda scope: scope.cancel())
    assert outcome.sent_at_ns is not None
    assert outcome.stream_end_at_ns is not None
    assert 1 <= len(outcome.read_at_ns) <= len(tape.reads)
    assert 0 < outcome.n_token_events < 3000
    await stream(case)


async def two_choices(case: Case) -> None:
    outcome, tape = await case.ask(extra={"n": 2, "temperature": 1})
    agree(outcome, tape)
    assert outcome.output_tokens == naive_tokens(tape.body)
    others = [choice for event in naive_events(tape.body) for choice in event.get("choices", ()) if choice["index"]]
    assert others
    assert outcome.hidden_text


async def logprobs(case: Case) -> None:
    """Without usage, the tokens are counted by the logprobs in the events."""
    outcome, tape = await case.ask(usage="never", extra=LOGPROBS[case.api])
    agree(outcome, tape)
    if naive_tokens(tape.body) is None:
        assert outcome.output_tokens_source == "event_counts"
    assert outcome.output_tokens == N_TOKENS


async def one_token(case: Case) -> None:
    outcome, tape = await case.ask(n_tokens=1)
    agree(outcome, tape)
    assert outcome.output_tokens == 1
    assert outcome.first_token_at_ns == outcome.last_token_at_ns


async def stop(case: Case) -> None:
    """A stop string in the middle of the answer."""
    text = naive_text(case.whole())
    field = {STOP_FIELD.get(case.api, "stop"): [text[20:24]]}
    outcome, tape = await case.ask(extra=field)
    agree(outcome, tape)
    assert outcome.finish_reason == "stop"
    assert text.startswith(outcome.text)
    assert len(outcome.text) < len(text)


@cache
def version_of(url: str) -> str:
    """What the server says of itself, without its name."""

    async def ask() -> str:
        client = HttpClient(url)
        try:
            found = await find_server(client, "openai-chat", api_is_fixed=True)
        finally:
            await client.close()
        return str(found.facts.version)

    return anyio.run(ask)


Cell = Callable[[Case], Awaitable[None]]
EVERY: dict[str, Cell] = {
    "stream": stream,
    "no stream": no_stream,
    "usage on": usage_on,
    "error": error,
    "cut": cut,
    "one token": one_token,
}
OPENAI: dict[str, Cell] = EVERY | {
    "usage off": usage_off,
    "usage in every event": usage_in_every_event,
    "n=2": two_choices,
    "logprobs": logprobs,
    "stop": stop,
}
CELLS: dict[tuple[str, str], dict[str, Cell]] = {
    ("vllm", "openai-chat"): OPENAI,
    ("vllm", "openai-completions"): OPENAI,
    ("vllm", "openai-responses"): EVERY,
    ("vllm", "anthropic"): EVERY | {"stop": stop},
    ("llamacpp", "openai-chat"): OPENAI,
    ("llamacpp", "openai-completions"): OPENAI,
    ("llamacpp", "openai-responses"): EVERY,
    ("llamacpp", "anthropic"): EVERY | {"stop": stop},
    ("llamacpp", "llama-cpp"): EVERY | {"stop": stop},
}


@pytest.mark.parametrize(
    ("server", "api", "cell"),
    [pytest.param(*key, name, id=f"{key[0]}:{key[1]}:{name}") for key, cells in CELLS.items() for name in cells],
)
def test_a_cell_of_the_matrix_holds_live(
    server: str, api: str, cell: str, request: pytest.FixtureRequest, held: Held
) -> None:
    case = Case(request.getfixturevalue(server), api)
    anyio.run(CELLS[server, api][cell], case)
    held.add(server, version_of(case.url), api, cell)


def test_a_server_that_dies_inside_its_answer_leaves_a_disconnected_request(held: Held) -> None:
    with started("llamacpp", "--threads", "1") as (url, pid):
        case = Case(url, "openai-chat")
        assert pid is not None
        version = version_of(url)
        outcome, tape = anyio.run(case.ask, 3000, lambda _: os.kill(pid, signal.SIGKILL))
    assert outcome.error_class == "disconnected"
    assert outcome.error == "the server closed the connection before the answer was complete"
    assert 0 < outcome.n_token_events < 3000
    assert naive_text(tape.body[: tape.body.rfind(b"\n\n") + 2]).startswith(outcome.text)
    assert outcome.text
    held.add("llamacpp", version, "openai-chat", "killed")
