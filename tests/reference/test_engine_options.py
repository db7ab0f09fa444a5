"""The engine's command line: what is told reaches the engine, what is wrong is one line, the README's lines work."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from engine_adapters.reference import options
from engine_adapters.reference.assembly import EXECUTORS, assemble, parse_ceilings
from engine_adapters.reference.config import EngineConfig

README = Path(__file__).parent.parent.parent / "README.md"
SIMULATED = ["--executor", "simulated", "--model", "llama-3.1-8b", "--hardware", "h200-sxm"]


def test_without_options_the_settings_are_the_defaults() -> None:
    assert options.engine_config(options.parse([])) == EngineConfig()


def test_every_setting_of_the_engine_has_an_option() -> None:
    told = {field.name for field in fields(EngineConfig)}
    assert set(options.CONFIG_OPTIONS) == told
    args = options.parse(["--no-prefix-caching", "--policy", "priority", "--admission", "reserve", "--max-num-seqs=2"])
    config = options.engine_config(args)
    assert (config.enable_prefix_caching, config.policy, config.admission) == (False, "priority", "reserve")
    assert config.max_num_seqs == 2


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["--port", "70000"], "--port must be from 0 to 65535"),
        (["--slowdown", "0.5"], "--slowdown must be from 1 to 100"),
        (["--fault", "melt"], "unknown fault 'melt'"),
        (["--executor", "simulated"], "needs --hardware"),
        (["--policy", "best"], "invalid choice"),
        (["--max-num-seqs", "many"], "invalid int value"),
        (["--run-noise", "2"], "from 0 to 1"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        options.parse(argv)
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"error: .*\n", error)
    assert says in error


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--ceilings", "fast"], "write GB/s and GFLOP/s"),
        (["--kv-cache-dtype", "int4"], "must be one of auto, int8, fp8"),
        (["--model", "nope"], "no model 'nope'"),
        (["--num-blocks", "1"], "cannot hold one sequence"),
        ([*SIMULATED[:-1], "abacus"], "abacus"),
        ([*SIMULATED, "--assume", "x"], "--assume x"),
        ([*SIMULATED, "--dp", "3"], "can't be split"),
    ],
)
def test_what_cannot_be_served_is_one_line(argv: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        assemble(options.parse(argv))
    assert says in str(error.value)


def test_every_line_of_the_readme_that_serves_an_engine_is_understood() -> None:
    lines = re.findall(r"^(?:\.venv/bin/)?bench engine serve ?(.*)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(lines) >= 3
    for line in lines:
        options.parse(shlex.split(re.split(r"\s{2,}(?=[a-z])|\s*&$", line)[0]))


def test_the_help_names_every_option_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        options.parse(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in text for name in options.CONFIG_OPTIONS if name[:6] != "enable")
    assert "stall=after:N,seconds:S" in text


def test_both_executors_make_an_engine_that_answers() -> None:
    assert list(EXECUTORS) == list(options.EXECUTORS)
    numpy = assemble(options.parse(["--max-model-len", "64", "--num-blocks", "16", "--ceilings", "75:100"]))
    assert (numpy.name, numpy.vocab_size, numpy.core.config.num_blocks) == ("tiny", 1024, 16)
    assert numpy.ceilings == parse_ceilings("75:100")
    simulated = assemble(options.parse([*SIMULATED, "--speculate", "3:0.5"]))
    assert simulated.core.config.max_num_seqs == options.SIMULATED_DEFAULTS["max_num_seqs"]
    assert simulated.core.config.num_speculative_tokens == 3
    assert simulated.core.config.capacity_tokens > 100_000
    assert simulated.ceilings is not None
    assert simulated.ceilings.bandwidth_bps == pytest.approx(4.8e12)
