"""What the documents say is what the product does: commands exist, definitions are the code's, links lead somewhere."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import click
import pytest

from loadgen.cli import bench

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def readme_commands() -> list[str]:
    """Every `bench ...` line of the README's code blocks, continued lines joined, comments cut."""
    blocks = re.findall(r"```\n(.*?)```", README, flags=re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").split("\n")
    commands = [re.split(r"\s{2,}(?=[a-z])|\s*&$", line.strip().removeprefix(".venv/bin/"))[0] for line in lines]
    return [command for command in commands if command.startswith("bench ")]


def test_the_readme_has_commands() -> None:
    assert len(readme_commands()) >= 10


@pytest.mark.parametrize("command", readme_commands())
def test_every_command_of_the_readme_is_understood(command: str) -> None:
    _, *args = shlex.split(command)
    group: click.Command = bench
    while isinstance(group, click.Group):
        found = group.get_command(click.Context(group), args.pop(0))
        assert found is not None, command
        group = found
    # Parsing refuses an unknown option, a missing argument and a wrong type; nothing is run.
    group.make_context("bench", [*args], resilient_parsing=False)


def test_make_demo_and_make_test_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_the_metrics_page_is_the_docstrings() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "make_metrics.py"))["page"]()
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == page


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "scenarios/README.md"])
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / name).read_text(encoding="utf-8")):
        assert (ROOT / name).parent.joinpath(target).exists(), target


def test_architecture_names_only_what_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:loadgen|engine_adapters|reports|tests)/[\w/.]*)`", text):
        assert (ROOT / path).exists(), path
