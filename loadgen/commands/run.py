"""`bench run`: one load point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from loadgen.commands.common import (
    UsageProblem,
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
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="R", help="Open loop: requests/s.")
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="Closed loop: users.")
@click.option("--duration", metavar="30s", help="Measured time [scenario's].")
@click.option(
    "--requests", "n_requests", type=click.IntRange(min=1), metavar="N", help="Measured requests instead of a time."
)
@ask_options
@reach_options
@hardware_options
@scenario_options
@out_option
def run(
    scenario: str,
    url: str | None,
    model: str | None,
    rate: float | None,
    concurrency: int | None,
    duration: str | None,
    n_requests: int | None,
    out: Path | None,
    **options: Any,
) -> None:
    """Measure one point of SCENARIO: --rate R (open loop) or --concurrency N (closed loop).

    With neither, the first entry of the scenario's ladder.
    """
    from loadgen.commands.problems import users_problems
    from loadgen.commands.running import finish, prepared, resolve
    from loadgen.scenario.schedule import plan_point

    if rate is not None and concurrency is not None:
        raise UsageProblem("--rate is open loop and --concurrency closed loop: give one of them")
    if duration is not None and n_requests is not None:
        raise UsageProblem("--duration and --requests both end the run: give one of them")
    load: dict[str, Any] = {"duration": duration} if duration is not None else {}
    load |= {"rates": [rate]} if rate is not None else {"concurrency": [concurrency]} if concurrency is not None else {}
    url = located(url, options["unix_socket"])
    with users_problems():
        if not load.keys() & {"rates", "concurrency"}:
            load |= first_load(resolve(scenario, url, options, load).scenario)
        wanted = resolve(scenario, url, options, load)
        rates, users = wanted.scenario.load.rates, wanted.scenario.load.concurrency
        one: dict[str, Any] = {"concurrency": users[0]} if users else {"rate_rps": rates[0]}  # type: ignore[index]
        plan = plan_point(wanted.scenario, point=0, n_requests=n_requests, **one)
        folder = new_folder(out, wanted.scenario.name)
        with prepared(wanted, url, model, options) as server:
            finish(wanted.job(server, folder, [plan]), url)


def first_load(scenario: Any) -> dict[str, Any]:
    """The scenario's ladder cut down to its first entry, so that the conditions tell what was driven."""
    if scenario.load.concurrency is not None:
        return {"concurrency": [scenario.load.concurrency[0]]}
    if scenario.load.rates == "auto":
        raise UsageProblem("this scenario finds its rates itself: give --rate R or --concurrency N, or use bench sweep")
    return {"rates": [scenario.load.rates[0]]}
