"""`bench scenario schema | show | validate`: what a scenario file may say, and what one says."""

from __future__ import annotations

import json
import sys

import click
import yaml

from loadgen.scenario.errors import ScenarioError
from loadgen.scenario.loader import load_scenario, shipped_names
from loadgen.scenario.schedule import schedule_id
from loadgen.scenario.schema import Scenario

USAGE_ERROR = 2
_override = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override any key (repeatable)."
)


@click.group()
def scenario() -> None:
    """Look at scenario files: their schema, their resolved form, their errors."""


@scenario.command()
def schema() -> None:
    """Print the JSON Schema of a scenario file."""
    click.echo(json.dumps(Scenario.model_json_schema(by_alias=True), indent=2))


@scenario.command()
@click.argument("name", metavar="SCENARIO")
@_override
def show(name: str, overrides: tuple[str, ...]) -> None:
    """Print a scenario as it resolves, defaults and overrides included, with its schedule_id."""
    try:
        resolved = load_scenario(name, overrides)
    except ScenarioError as error:
        click.echo(str(error), err=True)
        sys.exit(USAGE_ERROR)
    click.echo(f"# schedule_id: {schedule_id(resolved)}")
    click.echo(yaml.safe_dump(resolved.as_json(), sort_keys=False, default_flow_style=None, width=120), nl=False)


@scenario.command()
@click.argument("names", nargs=-1, required=True, metavar="SCENARIO...")
@_override
def validate(names: tuple[str, ...], overrides: tuple[str, ...]) -> None:
    """Check scenario files; exit code 2 when one is wrong."""
    n_bad = sum(not _valid(name, overrides) for name in names)
    sys.exit(USAGE_ERROR if n_bad else 0)


@scenario.command(name="list")
def list_shipped() -> None:
    """Print the names of the shipped scenarios."""
    click.echo("\n".join(shipped_names()))


def _valid(name: str, overrides: tuple[str, ...]) -> bool:
    try:
        load_scenario(name, overrides)
    except ScenarioError as error:
        click.echo(str(error), err=True)
        return False
    click.echo(f"{name}: ok")
    return True
