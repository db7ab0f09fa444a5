"""A wrong scenario file ends in lines that say what, where, and what was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.scenario.errors import ScenarioError
from loadgen.scenario.loader import load_scenario, shipped_names
from loadgen.scenario.schema import all_keys
from loadgen.scenario.yaml_source import parse_yaml

GOOD = """\
name: mine
workload:
  prompt: {tokens: 100}
  output: {tokens: 10}
load:
  rates: [1, 2]
"""


@pytest.fixture
def load(tmp_path):
    def load_text(text: str | bytes, *overrides: str):
        path = tmp_path / "mine.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_scenario(str(path), overrides)

    return load_text


@pytest.fixture
def problems(load, tmp_path):
    def lines(text: str | bytes, *overrides: str) -> list[str]:
        with pytest.raises(ScenarioError) as caught:
            load(text, *overrides)
        return str(caught.value).replace(f"{tmp_path}/", "").splitlines()

    return lines


def with_line(number: int, line: str) -> str:
    lines = GOOD.splitlines()
    lines[number - 1] = line
    return "\n".join(lines) + "\n"


def test_an_unknown_key_names_its_line_its_section_and_the_near_one(problems):
    assert problems(with_line(4, "  ouput: {tokens: 10}")) == [
        "mine.yaml:4: unknown key 'ouput' in workload; did you mean 'output'?"
    ]


def test_a_key_of_another_section_is_sent_there(problems):
    assert problems(GOOD + "ttft: p95 < 1s\n") == ["mine.yaml:7: unknown key 'ttft'; did you mean 'slo.ttft'?"]


def test_all_problems_of_a_file_are_listed_in_order_of_line(problems):
    text = with_line(3, "  prompt: {tokens: {lognormal: {median: 100, sigm: 1}}}")
    text += "  duration: 60\n  warmup: 10 sec\nslo: {ttft: p95 500ms, itl: p96 < 1s, e2e: p95 < 500}\nseed: 1.5\n"
    assert problems(text) == [
        "mine.yaml:3: unknown key 'sigm' in workload.prompt.tokens.lognormal; did you mean 'sigma'?",
        "mine.yaml:7: load.duration: 60 has no unit: write 60s, 60ms or 60m",
        "mine.yaml:8: load.warmup: '10 sec' has the unknown unit 'sec'; units are us, ms, s, m, min, h",
        "mine.yaml:9: slo.e2e: '500' has no unit; units are us, ms, s, m, min, h",
        "mine.yaml:9: slo.itl: unknown statistic 'p96'; known: p50, p90, p95, p99, mean",
        "mine.yaml:9: slo.ttft: 'p95 500ms' is no objective: write \"p95 < 500ms\"",
        "mine.yaml:10: seed: should be a valid integer (got 1.5)",
    ]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("  rates: []", "load.rates: the ladder of rates is empty"),
        ("  rates: fast", "load.rates: a list of requests/s, or auto (got 'fast')"),
        ("  rates: [1, -2]", "load.rates.1: should be greater than 0 (got -2)"),
        ("  rates: [.nan]", "load.rates.0: should be a finite number (got nan)"),
        ("  concurrency: []", "load.concurrency: the ladder of concurrencies is empty"),
        ("  concurrency: [0]", "load.concurrency.0: should be greater than or equal to 1 (got 0)"),
        ("  arrivals: poison", "load.arrivals: unknown arrival process 'poison'; did you mean 'poisson'?"),
        ("  arrivals: gamma", "load.arrivals: gamma needs its burstiness: {gamma: {burstiness: 0.5}}"),
        ("  arrivals: {gamma: {burst: 2}}", "unknown key 'burst' in load.arrivals.gamma; did you mean 'burstiness'?"),
        ("  arrivals: {gamma: {}}", "missing key 'burstiness' in load.arrivals.gamma"),
        ("  duration: 0s", "load.duration: must be longer than 0s"),
        ("  max_points: true", "load.max_points: should be a valid integer (got True)"),
    ],
)
def test_a_bad_value_says_which_key_and_what_would_be_right(problems, line, text):
    assert problems(with_line(6, line)) == [f"mine.yaml:6: {text}"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GOOD + "name: again\n", "mine.yaml:7: duplicate key 'name'; it already stands in line 1"),
        (GOOD + "  rates: [3]\n", "mine.yaml:7: duplicate key 'rates'; it already stands in line 6"),
        (GOOD + "slo: {ttft: [}\n", "mine.yaml:7: not YAML"),
        (GOOD + "\tslo: 3\n", "mine.yaml:7: not YAML"),
        (GOOD + "---\nname: b\n", "mine.yaml:7: not YAML"),
        (GOOD + "seed: !!python/object/apply:os.getcwd []\n", "mine.yaml:7: "),
        (GOOD + "? [a, b]\n: 1\n", "mine.yaml:7: a key must be a word"),
        ("a: &x [1]\nb: *x\n", "mine.yaml:1: YAML aliases (*name) are not supported"),
        ("a: &x [*x]\n", "mine.yaml:1: YAML aliases (*name) are not supported"),
        ("", "mine.yaml:1: the file is empty"),
        ("- a\n", "mine.yaml:1: a scenario is a mapping"),
        (b"name: a\nslo: \xff\n", "mine.yaml:2: not UTF-8"),
        ("name: a\x00b\n", "mine.yaml: not YAML"),
    ],
)
def test_what_is_not_a_scenario_at_all_is_one_line(problems, text, problem):
    lines = problems(text)
    assert len(lines) == 1
    assert lines[0].startswith(problem)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="abc:{}[]-,&*!#'\"|>%@`? \n\t0.\\\x00é", max_size=60))
def test_any_text_ends_in_data_or_in_one_line(text):
    problem = problem_of(text)
    assert problem is None or (problem.startswith("x.yaml") and len(problem.splitlines()) == 1)


def problem_of(text: str) -> str | None:
    try:
        parse_yaml(text, "x.yaml")
    except ScenarioError as error:
        return str(error)
    return None


def test_a_contradiction_between_keys_is_reported_at_the_mapping_that_holds_them(problems):
    assert problems(GOOD + "  concurrency: [1]\n") == [
        "mine.yaml:5: load: rates (open loop) and concurrency (closed loop) exclude each other"
    ]
    assert problems(GOOD.replace("\nload:", "\n  shared_prefix: {tokens: 100}\nload:")) == [
        "mine.yaml:2: workload: shared_prefix.tokens (100) fills prompts of at most 100"
    ]


def test_a_missing_key_is_reported_where_it_belongs(problems):
    assert problems("name: a\nworkload:\n  output: {tokens: 3}\n") == ["mine.yaml:2: missing key 'prompt' in workload"]
    assert problems("name: a\n") == ["mine.yaml:1: missing key 'workload'"]


def test_an_override_replaces_any_key(load):
    scenario = load(
        GOOD, "load.rates=[1,2,4]", "workload.prompt.tokens={uniform: {low: 1, high: 5}}", "slo.ttft=p95 < 2s"
    )
    assert scenario.load.rates == (1, 2, 4)
    assert scenario.workload.prompt.tokens.uniform.high == 5
    assert scenario.slo.objectives["ttft"].limit_s == 2


def test_an_override_of_one_ladder_takes_the_other_away(load):
    closed = load(GOOD, "load.concurrency=[1,2]")
    assert (closed.load.mode, closed.load.rates, closed.load.concurrency) == ("closed", None, (1, 2))
    assert load(GOOD, "load.concurrency=[1]", "load.rates=auto").load.mode == "open"


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("load.rates=[]", "load.rates: the ladder of rates is empty"),
        ("load.rate=[1]", "unknown key 'rate' in load; did you mean 'rates'?"),
        ("load.duration=60", "load.duration: 60 has no unit: write 60s, 60ms or 60m"),
        ("workload.shared_prefix.tokens=500", "workload: shared_prefix.tokens (500) fills prompts of at most 100"),
        ("workload.prompt={}", "workload.prompt: prompt takes either tokens or dataset"),
        ("load.rates.first=1", "load.rates is a plain value"),
        ("load.rates=[", "not YAML"),
        ("load.rates", "write --set key.path=value"),
        ("=3", "write --set key.path=value"),
        ("load={1: 2}", "load.1: "),
    ],
)
def test_errors_in_an_override_are_reported_as_the_override(load, override, problem):
    with pytest.raises(ScenarioError) as caught:
        load(GOOD, override)
    assert str(caught.value).startswith(f"--set {override}: ")
    assert problem in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_files_problem_is_not_blamed_on_an_override_beside_it(problems):
    text = "name: a\nworkload:\n  prompt: {tokens: 3}\n"
    assert problems(text, "workload.ignore_eos=false") == ["mine.yaml:2: missing key 'output' in workload"]


def test_a_data_set_is_read_from_beside_the_scenario(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"prompt": "one two"}\n')
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace("{tokens: 100}", "{dataset: {path: p.jsonl}}"))
    scenario = load_scenario(str(path))
    assert scenario.dataset is not None
    assert scenario.dataset.prompts == ("one two",)


def test_a_data_sets_problem_names_the_scenarios_line_and_its_own(problems, tmp_path):
    (tmp_path / "p.jsonl").write_text('{"prompt": "one"}\n{')
    (line,) = problems(GOOD.replace("{tokens: 100}", "{dataset: {path: p.jsonl}}"))
    assert line.startswith("mine.yaml:3: p.jsonl:2: not JSON")


def test_shipped_scenarios_load_by_name_and_by_their_path_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_scenario("rag") == load_scenario("scenarios/rag.yaml")


def test_a_file_in_the_working_folder_wins_over_a_shipped_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("scenarios").mkdir()
    Path("scenarios/rag.yaml").write_text(GOOD)
    assert load_scenario("scenarios/rag.yaml").name == "mine"


def test_an_unknown_name_lists_the_shipped_ones():
    with pytest.raises(ScenarioError) as caught:
        load_scenario("chatt")
    assert str(caught.value) == (
        "chatt: no such file or scenario; did you mean 'chat'? "
        "(shipped: agent, batch, chat, code, rag, smoke, summarize)"
    )


def test_every_shipped_scenario_is_valid_and_named_after_its_file():
    assert {load_scenario(name).name for name in shipped_names()} == set(shipped_names())
    assert len(shipped_names()) == 7


def test_rag_is_the_contracts_scenario():
    contract = """
    name: rag
    workload:
      prompt: {tokens: {lognormal: {median: 3000, p95: 6000}, min: 512, max: 8000}}
      output: {tokens: {lognormal: {median: 200, p95: 500}, max: 1000}}
      shared_prefix: {tokens: 512, groups: 8}
    load: {arrivals: poisson, rates: auto, duration: 60s, warmup: 10s}
    slo: {ttft: "p95 < 500ms", itl: "p95 < 50ms"}
    roofline: {model: llama-3.1-8b, hardware: h100-sxm, precision: bf16}
    seed: 7
    """
    shipped = load_scenario("rag").as_json()
    for section, wanted in yaml.safe_load(contract).items():
        if isinstance(wanted, dict):
            assert wanted.items() <= shipped[section].items()
        else:
            assert shipped[section] == wanted


def test_the_readme_has_every_key_of_the_schema_in_its_table_and_no_other():
    readme = (Path(__file__).parents[2] / "scenarios" / "README.md").read_text("utf-8")
    section = readme.split("## Every key")[1].split("## ")[0]
    documented = [line.split("|")[1].strip().strip("`") for line in section.splitlines() if line.startswith("| `")]
    assert sorted(documented) == sorted({documented_name(path) for path in all_keys()})


def documented_name(path: tuple[str, ...]) -> str:
    """Both length distributions stand in the table once, as TOKENS."""
    if path[0] == "workload" and path[1:2] in [("prompt",), ("output",)] and path[2:3] == ("tokens",) and path[3:]:
        return ".".join(("TOKENS", *path[3:]))
    return ".".join(path)
