"""Which adapter is taken, how it asks, and what a server's refusal changes."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from typing import Any

import anyio
import httpx
import pytest
from support import documented
from support.streams import MS, read_answer

from engine_adapters import apis, base
from engine_adapters.apis import DIALECTS, api_for_url, find_dialect, with_headers
from engine_adapters.base import API_NAMES, PreflightError, Request
from engine_adapters.dialect import Asking, Dialect, DialectAdapter
from engine_adapters.local_tokens import load_counter
from engine_adapters.preflight import Endpoint, preflight
from engine_adapters.template import at_path, fill
from engine_adapters.transport import HttpClient

ANSWER = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
)
TEMPLATE = {
    "path": "/w/{model}",
    "body": {"input": "{prompt}", "note": "for {model}", "limits": [{"n": "{max_tokens}"}]},
    "text": "out[0].piece",
    "finish_reason": "out[0].why",
    "error": "problem.text",
    "usage": {"completion_tokens": "n_out"},
}


class Server:
    """Routes by path; what was posted is kept."""

    def __init__(self, **routes: Any) -> None:
        self.routes = {"/" + path.replace("__", "/"): reply for path, reply in routes.items()}
        self.posted: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        reply = self.routes.get(request.url.path)
        if request.method == "POST":
            self.posted.append(json.loads(request.content))
        if reply is None:
            return httpx.Response(404, json={"detail": "Not Found"})
        if callable(reply):
            reply = reply(self.posted[-1])
        if isinstance(reply, httpx.Response):
            return reply
        return (
            httpx.Response(200, stream=httpx.ByteStream(reply))
            if isinstance(reply, bytes)
            else httpx.Response(200, json=reply)
        )


def opened(server: Server, api: str = "chat", model: str | None = None, **how: Any) -> tuple[DialectAdapter, Endpoint]:
    async def main() -> tuple[DialectAdapter, Endpoint]:
        client = HttpClient("http://test", transport=httpx.MockTransport(server))
        try:
            return await preflight(client, model, api, **how)
        finally:
            await client.close()

    return anyio.run(main)


def refusing(word: str, answer: bytes = ANSWER) -> Any:
    """A route that answers 400 with its sentence while the body has `word`."""

    def reply(body: dict[str, Any]) -> httpx.Response:
        if word in json.dumps(body):
            hint = ": use max_completion_tokens" if "max_tokens" in word else ""
            return httpx.Response(400, json={"error": {"message": f"unknown field {word}{hint}"}})
        return httpx.Response(200, stream=httpx.ByteStream(answer))

    return reply


MODELS = {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]}


def test_every_name_of_the_command_line_is_an_api() -> None:
    assert set(API_NAMES) == {*DIALECTS, "template"}
    assert find_dialect("chat") is find_dialect("openai-chat")


@pytest.mark.parametrize("name", DIALECTS)
def test_a_body_has_the_prompt_the_limit_and_no_length_field_when_none_is_wanted(name: str) -> None:
    dialect = DIALECTS[name]
    body = json.dumps(dialect.body(Request("one two three", 77), Asking("m")))
    assert "three" in body
    if dialect.generates:
        assert "77" in body
        assert f'"{dialect.max_tokens_field}": 77' in body
        assert '"limit": 77' in json.dumps(dialect.body(Request("x", 77), Asking("m", max_tokens_field="limit")))
    plain = json.dumps(dialect.body(Request("x", 5, ignore_eos=False), Asking("m")))
    assert not any(field in plain for field in dialect.length_fields)


@pytest.mark.parametrize(
    ("routes", "api", "engine"),
    [
        ({"api__version": {"version": "0.9"}, "api__tags": {"models": [{"name": "m"}]}}, "ollama", "ollama 0.9"),
        ({"info": {"model_id": "m", "version": "3.0", "max_total_tokens": 99}}, "tgi", "tgi 3.0"),
        (
            {"v2": {"name": "triton", "version": "2.5"}, "v2__repository__index": [{"name": "m", "state": "READY"}]},
            "triton",
            "triton 2.5",
        ),
        (
            {"get_server_info": {"model_path": "m", "version": "0.5", "tp_size": 2, "api_key": "k"}},
            "sglang",
            "sglang 0.5",
        ),
        ({"props": {"default_generation_settings": {"n_ctx": 512}, "total_slots": 4}}, "llama-cpp", "llama.cpp"),
    ],
)
def test_a_server_without_openai_routes_is_asked_by_its_own_api(routes: dict[str, Any], api: str, engine: str) -> None:
    answers = {
        "api__chat": b'{"message":{"content":"a"},"done":true,"prompt_eval_count":3,"eval_count":2}\n',
        "generate_stream": b'data: {"token":{"id":1,"text":"a"},"generated_text":"a","details":null}\n\n',
        "v2__models__m__generate_stream": b'data: {"text_output":"a"}\n\n',
        "generate": b'data: {"text":"a","meta_info":{"finish_reason":{"type":"stop"},"completion_tokens":1}}\n\n',
        "completion": b'data: {"content":"a","stop":true,"tokens_predicted":1}\n\n',
    }
    adapter, endpoint = opened(Server(**routes, **answers))
    assert (adapter.dialect.name, endpoint.api, endpoint.engine) == (api, api, engine)
    assert "no OpenAI route" in endpoint.notes[0]
    assert "api_key" not in endpoint.server_flags


@pytest.mark.parametrize(
    ("path", "answer", "api"),
    [
        (
            "v1__messages",
            b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}\n\n'
            b'data: {"type":"message_stop"}\n\n',
            "anthropic",
        ),
        (
            "v1__responses",
            b'data: {"type":"response.output_text.delta","delta":"a"}\n\n'
            b'data: {"type":"response.completed","response":{"status":"completed"}}\n\n',
            "openai-responses",
        ),
        (
            "v1__completions",
            b'data: {"choices":[{"index":0,"text":"a","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
            "openai-completions",
        ),
        ("v1__embeddings", b'{"data":[{"embedding":[0.1]}],"usage":{"prompt_tokens":3}}', "embeddings"),
        ("v1__rerank", b'{"results":[{"index":0,"relevance_score":0.5}]}', "rerank"),
    ],
)
def test_a_server_with_a_model_list_and_another_api_is_asked_by_that(path: str, answer: Any, api: str) -> None:
    server = Server(v1__models={"data": [{"id": "m", "owned_by": "x"}]}, **{path: answer})
    adapter, endpoint = opened(server)
    assert (adapter.dialect.name, endpoint.api, endpoint.model) == (api, api, "m")
    assert any("the server has no /v1/chat/completions" in note for note in endpoint.notes)


def test_a_refused_model_is_no_missing_route() -> None:
    server = Server(
        v1__models={"data": [{"id": "other"}]},
        v1__chat__completions=httpx.Response(404, json={"error": {"message": "The model `mine` does not exist"}}),
    )
    with pytest.raises(PreflightError, match="does not serve the model 'mine'"):
        opened(server, model="mine")
    assert len(server.posted) == 1  # no other API was tried


def test_what_is_counted_is_told_as_it_is() -> None:
    rerank = Server(v1__models={"data": [{"id": "m"}]}, v1__rerank=b'{"results":[{"index":0}]}')
    _, endpoint = opened(rerank)
    assert not any("usage" in note for note in endpoint.notes)
    half = ANSWER.replace(b'"prompt_tokens":3,', b"")
    _, endpoint = opened(Server(v1__models={"data": [{"id": "m"}]}, v1__chat__completions=half))
    assert any("does not count prompts" in note for note in endpoint.notes)


def test_an_api_that_the_user_named_is_not_replaced() -> None:
    server = Server(api__version={"version": "0.9"}, api__tags={"models": [{"name": "m"}]})
    with pytest.raises(PreflightError, match="/v1/chat/completions"):
        opened(server, "openai-chat", "m", api_is_fixed=True)


def test_an_openai_server_is_examined_and_keeps_the_scenarios_api() -> None:
    server = Server(v1__models=MODELS, version={"version": "0.32.0"}, v1__completions=ANSWER)
    adapter, endpoint = opened(server, "completions")
    assert (endpoint.api, endpoint.engine, endpoint.max_model_len) == ("openai-completions", "vllm 0.32.0", 4096)
    assert adapter.path == "/v1/completions"


@pytest.mark.parametrize(
    ("word", "left_out", "note"),
    [
        ("ignore_eos", "ignore_eos", "refuses ignore_eos"),
        ('"max_tokens"', "max_tokens", "takes max_completion_tokens"),
        ("stream_options", "stream_options", "refuses stream_options"),
        ("temperature", "temperature", "refuses temperature"),
    ],
)
def test_what_a_refusal_names_is_left_out_and_noted(word: str, left_out: str, note: str) -> None:
    server = Server(v1__models=MODELS, v1__chat__completions=refusing(word))
    _, endpoint = opened(server)
    assert left_out in server.posted[0]
    assert left_out not in server.posted[-1]
    assert any(note in text for text in endpoint.notes)


def test_a_field_that_the_user_fixed_stays_and_the_servers_sentence_ends_the_run() -> None:
    server = Server(v1__models=MODELS, v1__chat__completions=refusing('"max_tokens"'))
    with pytest.raises(PreflightError, match="max_completion_tokens"):
        opened(server, asking=Asking("", max_tokens_field="max_tokens"))
    assert len(server.posted) == 1
    opened(server, asking=Asking("", max_tokens_field="max_completion_tokens"))
    assert server.posted[-1]["max_completion_tokens"] == 2


def test_an_api_that_can_not_fix_the_length_says_so_before_the_run() -> None:
    body = b'data: {"type":"content_block_delta","delta":{"text":"a"}}\n\ndata: {"type":"message_stop"}\n\n'
    _, endpoint = opened(Server(v1__models=MODELS, v1__messages=body), "anthropic")
    assert not endpoint.send_ignore_eos
    assert any("before their asked length" in note for note in endpoint.notes)


def test_extra_fields_lie_over_the_body_and_a_null_removes_one() -> None:
    asking = Asking("m", extra={"temperature": 0.7, "ignore_eos": None, "top_k": 5}, usage="every_event")
    adapter = DialectAdapter(HttpClient("http://test"), find_dialect("chat"), asking)
    body = json.loads(adapter.encode(Request("x", 5)))
    assert (body["temperature"], body["top_k"], "ignore_eos" in body) == (0.7, 5, False)
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_azure_and_anthropic_are_known_by_their_host_and_take_the_key_in_their_own_header() -> None:
    assert api_for_url("chat", "https://me.openai.azure.com") == "azure"
    assert api_for_url("openai-chat", "https://api.anthropic.com") == "anthropic"
    assert api_for_url("ollama", "https://me.openai.azure.com") == "ollama"
    bearer = {"Authorization": "Bearer key-1", "X-Other": "o"}
    assert with_headers(DIALECTS["azure"], bearer) == {"x-other": "o", "api-key": "key-1"}
    sent = with_headers(DIALECTS["anthropic"], bearer)
    assert (sent["x-api-key"], "authorization" in sent, sent["anthropic-version"]) == ("key-1", False, "2023-06-01")
    assert with_headers(DIALECTS["openai-chat"], bearer)["authorization"] == "Bearer key-1"


def test_the_deployment_of_azure_stands_in_the_path() -> None:
    adapter = DialectAdapter(HttpClient("http://test"), DIALECTS["azure"], Asking("my gpt"))
    assert adapter.path.startswith("/openai/deployments/my%20gpt/chat/completions?api-version=")


def test_an_answer_without_tokens_has_an_end_and_no_first_token() -> None:
    body = documented.EMBEDDINGS["no stream"][0]
    outcome = read_answer("embeddings", [(10 * MS, body[:9]), (20 * MS, body[9:])])
    assert outcome.ok
    assert (outcome.first_token_at_ns, outcome.last_token_at_ns) == (None, 20 * MS)
    assert (outcome.output_tokens, outcome.output_tokens_source) == (None, None)
    for empty in (b'{"data": []}', b"{}", b'{"results": null}'):
        assert read_answer("rerank", [(1, empty)]).error_class == "empty"


def test_the_placeholder_of_anthropics_first_event_is_no_count() -> None:
    events = documented.anthropic(documented.TEXT_BLOCK, output=9)
    cut = read_answer("anthropic", [(1, events[: events.index(b"content_block_stop")])])
    assert (cut.error_class, cut.output_tokens, cut.output_tokens_source) == ("disconnected", 2, "events")


def test_an_error_event_of_the_responses_api_is_a_failure_with_its_sentence() -> None:
    for error in ({"type": "error", "message": "boom"}, {"type": "error", "error": {"message": "boom"}}):
        outcome = read_answer("openai-responses", [(1, documented.sse(error, done=False, named=True))])
        assert (outcome.error_class, outcome.error) == ("stream_error", "boom")


def test_a_template_asks_and_reads_as_it_is_written() -> None:
    dialect = find_dialect("template", TEMPLATE)
    body = dialect.body(Request("hi", 7), Asking("m", template=TEMPLATE))
    assert body == {"input": "hi", "note": "for m", "limits": [{"n": 7}]}
    reads = [
        (10 * MS, b'data: {"out":[{"piece":"a"}]}\n\n'),
        (20 * MS, b'data: {"out":[{"piece":"b","why":"length"}],"n_out":5}\n\n'),
    ]
    outcome = read_answer("template", reads, template=TEMPLATE)
    assert (outcome.ok, outcome.text, outcome.output_tokens, outcome.finish_reason) == (True, "ab", 5, "length")
    assert read_answer("template", reads[:1], template=TEMPLATE).error_class == "disconnected"
    failed = read_answer("template", [(1, b'data: {"problem":{"text":"boom"}}\n\n')], template=TEMPLATE)
    assert (failed.error_class, failed.error) == ("stream_error", "boom")


def test_a_cumulative_template_counts_only_what_is_new() -> None:
    template = TEMPLATE | {"cumulative": True, "framing": "ndjson", "text": "t"}
    lines = b'{"t": "a"}\n{"t": "a"}\n{"t": "abc", "out": [{"why": "stop"}]}\n'
    outcome = read_answer("template", [(1, lines)], template=template)
    assert (outcome.text, outcome.n_token_events) == ("abc", 2)


def test_places_in_a_prompt_are_not_filled_again() -> None:
    assert fill("{prompt}", {"prompt": "say {model}", "model": "m", "max_tokens": 1}) == "say {model}"
    assert fill("x {prompt}", {"prompt": "say {model}", "model": "m", "max_tokens": 1}) == "x say {model}"


@pytest.mark.parametrize(
    ("path", "found"),
    [("a.b[1]", 2), ("a.b[-1]", 3), ("a.b[9]", None), ("a.x.y", None), ("a[0]", None), (None, None)],
)
def test_a_path_leads_to_its_value_or_nowhere(path: str | None, found: Any) -> None:
    assert at_path({"a": {"b": [1, 2, 3]}}, path) == found


MINE = Dialect(name="mine", path="/mine", body=lambda request, asking: {"p": request.prompt}, take=lambda *_: None)


def test_an_adapter_of_an_installed_package_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {
        "mine": EntryPoint("mine", f"{__name__}:MINE", "openloop.adapters"),
        "broken": EntryPoint("broken", "no_such_package:X", "openloop.adapters"),
        "odd": EntryPoint("odd", "json:loads", "openloop.adapters"),
    }
    monkeypatch.setattr(apis, "adapter_entry_points", lambda: points)
    assert find_dialect("mine").path == "/mine"
    for name, words in (("broken", "can't be loaded"), ("odd", "is no"), ("none", "no API is called 'none'")):
        with pytest.raises(PreflightError, match=words):
            find_dialect(name)


def test_the_entry_points_are_those_of_the_group() -> None:
    assert base.adapter_entry_points() == {}  # nothing is installed here


def test_a_missing_tokenizer_is_said_in_one_line(tmp_path: Any) -> None:
    with pytest.raises(PreflightError, match="no such file"):
        load_counter(tmp_path)


def test_a_local_tokenizer_counts_without_special_tokens(tmp_path: Any) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the extra 'tokenizers' is not installed")
    vocabulary = {"<s>": 0, "[UNK]": 1, "a": 2, "b": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    count = load_counter(tmp_path)
    assert (count("a b a"), count("")) == (3, 0)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(PreflightError, match="not a tokenizer"):
        load_counter(tmp_path)
