"""Each way a request can fail has its class and a sentence; a stream's reads are stamped in order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import anyio
import httpx
import pytest

from engine_adapters.base import PreflightError, Request, StreamOutcome
from engine_adapters.dialect import Asking, DialectAdapter
from engine_adapters.openai import CHAT
from engine_adapters.preflight import preflight
from engine_adapters.transport import HttpClient, Timeouts


class Body(httpx.AsyncByteStream):
    """A body that comes as one read; MockTransport's own bytes count as read already."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.data


Handler = Callable[[httpx.Request], httpx.Response]
ANSWER = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}}\n\n'


def stream(handler: Handler, timeouts: Timeouts | None = None) -> StreamOutcome:
    async def main() -> StreamOutcome:
        adapter = DialectAdapter(
            HttpClient("http://test", transport=httpx.MockTransport(handler), timeouts=timeouts), CHAT, Asking("m")
        )
        outcome = StreamOutcome()
        await adapter.stream(adapter.encode(Request("hi", 1)), "id", outcome)
        await adapter.close()
        return outcome

    return anyio.run(main)


def failing(error: Exception) -> Handler:
    def handler(request: httpx.Request) -> httpx.Response:
        raise error

    return handler


@pytest.mark.parametrize(
    ("error", "error_class"),
    [
        (httpx.ConnectError("refused"), "connect"),
        (httpx.ConnectTimeout("slow"), "connect_timeout"),
        (httpx.ReadTimeout("slow"), "read_timeout"),
        (httpx.RemoteProtocolError("gone"), "disconnected"),
        (httpx.ReadError("reset"), "disconnected"),
    ],
)
def test_transport_faults_have_their_class(error: Exception, error_class: str) -> None:
    outcome = stream(failing(error))
    assert outcome.error_class == error_class
    assert outcome.error
    assert outcome.stream_end_at_ns is not None


def test_a_status_is_recorded_with_the_servers_sentence() -> None:
    outcome = stream(lambda _: httpx.Response(503, json={"error": {"message": "overloaded"}}))
    assert (outcome.http_status, outcome.error_class, outcome.error) == (503, "http_status", "HTTP 503: overloaded")


def test_a_request_that_never_ends_meets_the_total_timeout() -> None:
    class Silent(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b": hello\n\n"
            await anyio.sleep_forever()

    outcome = stream(lambda _: httpx.Response(200, stream=Silent()), Timeouts(total_s=0.05))
    assert outcome.error_class == "total_timeout"


def test_instants_are_in_order() -> None:
    outcome = stream(lambda _: httpx.Response(200, stream=Body(ANSWER)))
    assert outcome.ok
    instants = [outcome.sent_at_ns, outcome.headers_at_ns, outcome.first_token_at_ns, outcome.stream_end_at_ns]
    assert None not in instants
    assert instants == sorted(instants)  # type: ignore[type-var]


def check(handler: Handler, model: str | None = None) -> tuple[bool, list[str]]:
    """Preflight against a handler: whether ignore_eos is sent, and the notes."""

    async def main() -> tuple[bool, list[str]]:
        client = HttpClient("http://test", transport=httpx.MockTransport(handler))
        _, endpoint = await preflight(client, model, "chat")
        await client.close()
        return endpoint.send_ignore_eos, list(endpoint.notes)

    return anyio.run(main)


def server(models: object = None, answer: Handler | None = None, status: int = 200) -> Handler:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(status, json={"data": [{"id": "m"}]} if models is None else models)
        if request.url.path == "/version":
            return httpx.Response(404)
        return answer(request) if answer else httpx.Response(200, stream=Body(USAGE + ANSWER))

    return handler


def test_a_server_that_is_fine_gives_no_notes() -> None:
    assert check(server()) == (True, [])


@pytest.mark.parametrize(
    ("handler", "model", "words"),
    [
        (failing(httpx.ConnectError("refused")), None, "no answer from http://test"),
        (server(status=401), None, "refused the credentials"),
        (server(models={"hello": 1}), None, "not an OpenAI-compatible LLM server"),
        (server(models={"data": []}), None, "--model"),
        (server(models={"data": [{"id": "a"}, {"id": "b"}]}), None, "a, b"),
        (
            server(answer=lambda _: httpx.Response(404, json={"error": {"message": "model zz not found"}})),
            "zz",
            "does not serve the model 'zz'",
        ),
        (server(answer=lambda _: httpx.Response(404, text="Not Found")), None, "--api"),
        (server(answer=lambda _: httpx.Response(500, text="boom")), None, "boom"),
    ],
)
def test_what_can_not_be_measured_is_said_in_one_line(handler: Handler, model: str | None, words: str) -> None:
    with pytest.raises(PreflightError) as caught:
        check(handler, model)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_page_that_is_not_json_is_not_an_llm_server() -> None:
    with pytest.raises(PreflightError, match="text/html"):
        check(lambda _: httpx.Response(200, html="<h1>hi</h1>"))


def test_a_model_that_is_not_listed_but_served_gives_a_warning() -> None:
    _, notes = check(server(), model="other")
    assert "does not list" in notes[0]


def test_ignore_eos_is_left_out_where_it_is_refused() -> None:
    def picky(request: httpx.Request) -> httpx.Response:
        if b"ignore_eos" in request.content:
            return httpx.Response(422, json={"error": {"message": "unexpected field ignore_eos"}})
        return httpx.Response(200, stream=Body(USAGE + ANSWER))

    sends, notes = check(server(answer=picky))
    assert not sends
    assert "ignore_eos" in notes[0]


def test_a_server_without_usage_is_noted() -> None:
    _, notes = check(server(answer=lambda _: httpx.Response(200, stream=Body(ANSWER))))
    assert "no usage" in notes[0]
