"""Values of a scenario mean what was written, and survive being written again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.scenario.fields import format_duration, parse_duration_s, parse_objective
from loadgen.scenario.loader import load_scenario, shipped_names
from loadgen.scenario.schema import Scenario


@pytest.mark.parametrize(
    ("text", "seconds"), [("60s", 60), ("2m", 120), ("500ms", 0.5), ("1.5h", 5400), ("3 min", 180), ("250us", 250e-6)]
)
def test_a_duration_is_a_number_and_a_unit(text, seconds):
    assert parse_duration_s(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("wrong", [60, 1.5, "60", "60 sec", "s", "-3s", "", "1e3s", None, [1], True])
def test_anything_else_is_no_duration(wrong):
    with pytest.raises(ValueError):
        parse_duration_s(wrong)


@given(st.integers(0, 10**9))
def test_a_duration_reads_back_as_it_was_written(microseconds):
    seconds = microseconds / 1e6
    assert parse_duration_s(format_duration(seconds)) == pytest.approx(seconds, rel=1e-9, abs=0)


def test_an_objective_is_a_statistic_and_a_limit():
    objective = parse_objective("p95 < 500ms")
    assert (objective.stat, objective.limit_s, str(objective)) == ("p95", 0.5, "p95 < 500ms")
    assert parse_objective("mean<=2s").limit_s == 2


@pytest.mark.parametrize("name", shipped_names())
def test_a_resolved_scenario_reads_back_as_itself(name):
    scenario = load_scenario(name)
    assert Scenario.model_validate(scenario.as_json()) == scenario


@pytest.mark.parametrize(("duration", "cooldown_s"), [("2s", 10), ("60s", 60), ("10m", 120)])
def test_the_automatic_cool_down_is_the_duration_within_10_and_120_seconds(duration, cooldown_s):
    scenario = load_scenario("rag", [f"load.duration={duration}"])
    assert scenario.load.cooldown_max_s == cooldown_s
    assert load_scenario("rag", ["load.cooldown=3s"]).load.cooldown_max_s == 3


def test_a_scenario_cannot_be_changed_in_place():
    with pytest.raises(ValueError, match="frozen"):
        load_scenario("rag").seed = 3  # type: ignore[misc]


def test_the_json_schema_allows_the_short_forms():
    schema = Scenario.model_json_schema(by_alias=True)
    assert {"type": "integer", "minimum": 1} in schema["$defs"]["LengthDist"]["anyOf"]
    load = schema["$defs"]["Load"]["properties"]
    assert load["duration"]["type"] == "string"
    assert "auto" in str(load["rates"])
    assert schema["additionalProperties"] is False
