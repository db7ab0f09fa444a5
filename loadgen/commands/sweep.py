"""`bench sweep`: the ladder of loads that draws the curve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from loadgen.commands.common import (
    ask_options,
    hardware_options,
    located,
    new_folder,
    out_option,
    reach_options,
    scenario_options,
)


@click.command()
@click.argument("scenario")
@click.option("--url", metavar="URL", help="The server's root [the bundled engine is started].")
@click.option("--model", metavar="NAME", help="Model to ask for [the one served]; without --url: tiny or small.")
@ask_options
@reach_options
@hardware_options
@scenario_options
@out_option
@click.option("--dry-run", is_flag=True, help="Print the schedule as JSON lines and send nothing.")
def sweep(
    scenario: str,
    url: str | None,
    model: str | None,
    out: Path | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Drive SCENARIO's ladder of loads and draw concurrency against throughput.

    SCENARIO is a file or a shipped name (chat, rag, code, summarize, agent, batch, smoke). The run folder holds every
    record, summary.json and a self-contained report.html.
    """
    from loadgen.commands.problems import users_problems
    from loadgen.commands.running import finish, prepared, resolve

    url = located(url, options["unix_socket"])
    with users_problems():
        wanted = resolve(scenario, url, options)
        if dry_run:
            for row in dry_rows(wanted.scenario):
                click.echo(json.dumps(row))
            return
        plans = ladder_plans(wanted.scenario)
        folder = new_folder(out, wanted.scenario.name)
        with prepared(wanted, url, model, options) as server:
            finish(wanted.job(server, folder, plans), url)


def ladder_plans(scenario: Any) -> list[Any] | None:
    """The points of a ladder that is written down; None for `rates: auto`."""
    from loadgen.scenario.schedule import plan_point

    load = scenario.load
    if load.concurrency is not None:
        return [plan_point(scenario, point=i, concurrency=users) for i, users in enumerate(load.concurrency)]
    if load.rates == "auto":
        return None
    return [plan_point(scenario, point=i, rate_rps=rate) for i, rate in enumerate(load.rates)]


def dry_rows(scenario: Any) -> Any:
    """All requests of the ladder; an automatic one is shown at rate 1."""
    from loadgen.scenario.schedule import plan_point, schedule_rows

    plans = ladder_plans(scenario)
    if plans is None:
        click.echo("rates: auto needs a server; this is the same stream at 1 request/s", err=True)
        plans = [plan_point(scenario, point=0, rate_rps=1.0)]
    for plan in plans:
        yield from schedule_rows(plan)
