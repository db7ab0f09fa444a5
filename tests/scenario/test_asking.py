"""The keys that say how a server is asked: names, places and paths are checked when the file is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from loadgen.scenario.errors import ScenarioError
from loadgen.scenario.loader import load_scenario
from loadgen.scenario.schedule import schedule_id

TEMPLATE: dict[str, Any] = {"path": "/w", "body": {"input": "{prompt}"}, "text": "out[0].piece"}


def scenario_file(folder: Path, **keys: Any) -> str:
    workload = {"prompt": {"tokens": 32}, "output": {"tokens": 16}}
    path = folder / "s.yaml"
    path.write_text(yaml.safe_dump({"name": "s", "workload": workload, **keys}), encoding="utf-8")
    return str(path)


def test_the_long_and_the_short_name_of_an_openai_api_are_one_schedule() -> None:
    short, long = load_scenario("chat", ["api=chat"]), load_scenario("chat", ["api=openai-chat"])
    assert short.api == long.api == "chat"
    assert schedule_id(short) == schedule_id(long)


@pytest.mark.parametrize("api", ["openai-responses", "anthropic", "sglang", "tgi", "llama-cpp", "ollama", "triton"])
def test_every_api_can_stand_in_a_scenario(api: str) -> None:
    assert load_scenario("chat", [f"api={api}"]).api == api


def test_an_unknown_api_names_the_near_one() -> None:
    with pytest.raises(ScenarioError, match="did you mean 'anthropic'"):
        load_scenario("chat", ["api=antropic"])


def test_an_adapter_of_an_installed_package_is_an_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.scenario.asking.adapter_entry_points", lambda: {"mine": None})
    assert load_scenario("chat", ["api=mine"]).api == "mine"


def test_how_to_ask_is_read_and_written_again(tmp_path: Path) -> None:
    request = {"usage": "every_event", "max_tokens_field": "max_completion_tokens", "path": "/x", "extra": {"a": None}}
    scenario = load_scenario(scenario_file(tmp_path, request=request))
    assert scenario.as_json()["request"] == request
    assert scenario.request.extra == {"a": None}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"api": "template"}, "belong together"),
        ({"template": TEMPLATE}, "belong together"),
        ({"api": "template", "template": TEMPLATE | {"text": "out[x]"}}, "no path into JSON"),
        ({"api": "template", "template": TEMPLATE | {"path": "w"}}, "begin it with /"),
        ({"api": "template", "template": TEMPLATE | {"body": {"input": "hi"}}}, "no {prompt}"),
        ({"api": "template", "template": TEMPLATE | {"framing": "xml"}}, "'sse', 'ndjson' or 'whole'"),
        ({"api": "template", "template": TEMPLATE | {"textt": "a"}}, "unknown key 'textt'"),
        ({"request": {"usage": "sometimes"}}, "'final', 'every_event' or 'never'"),
        ({"request": {"max_token_field": "x"}}, "did you mean 'max_tokens_field'"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(scenario_file(tmp_path, **keys))
    assert words in str(caught.value)
    assert "s.yaml:" in str(caught.value)
