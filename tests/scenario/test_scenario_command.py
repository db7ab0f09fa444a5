"""`bench scenario` shows what resolves and refuses what is wrong, in lines and exit codes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from loadgen.commands.scenario import scenario
from loadgen.scenario.loader import load_scenario
from loadgen.scenario.schedule import schedule_id


def bench(*arguments: str):
    return CliRunner().invoke(scenario, arguments)


def test_schema_is_json_schema():
    assert json.loads(bench("schema").stdout)["properties"].keys() >= {"name", "workload", "load", "slo", "seed"}


def test_show_prints_a_file_that_loads_as_the_same_scenario(tmp_path):
    result = bench("show", "rag", "--set", "load.rates=[1,2,4]")
    path = tmp_path / "shown.yaml"
    path.write_text(result.stdout)
    assert load_scenario(str(path)) == load_scenario("rag", ["load.rates=[1,2,4]"])
    assert result.stdout.splitlines()[0] == f"# schedule_id: {schedule_id(load_scenario('rag'))}"


def test_validate_takes_several_files_and_fails_when_one_is_wrong(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("name: bad\nworkload:\n  prompt: {tokens: 3}\n  ouput: {tokens: 5}\n")
    result = bench("validate", "rag", str(path), "chat")
    assert result.exit_code == 2
    assert result.stdout.splitlines() == ["rag: ok", "chat: ok"]
    assert result.stderr == f"{path}:4: unknown key 'ouput' in workload; did you mean 'output'?\n"
    assert bench("validate", "rag", "chat").exit_code == 0


@pytest.mark.parametrize(
    "arguments", [("show", "nope"), ("show", "rag", "--set", "load.rates=[]"), ("validate", "nope")]
)
def test_a_users_mistake_is_one_line_and_exit_code_2(arguments):
    result = bench(*arguments)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.stderr


def test_list_names_the_shipped_scenarios():
    assert bench("list").stdout.split() == ["agent", "batch", "chat", "code", "rag", "smoke", "summarize"]
