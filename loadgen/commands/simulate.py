"""`bench simulate`: a scenario against hardware that isn't there, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from loadgen.commands.common import hardware_options, new_folder, out_option, scenario_options, together

split_options = together(
    click.option("--dp", "data_parallel", type=click.IntRange(min=1), default=1, help="Groups of DP attention."),
    click.option("--pp", "pipeline_parallel", type=click.IntRange(min=1), default=1, help="Pipeline stages."),
    click.option("--kv-precision", metavar="P", help="KV cache: bf16, fp16, fp8, int8, fp4 [bf16]."),
    click.option("--speculate", metavar="K:A", help="K tokens drafted a step, each accepted with probability A."),
)
fleet_options = together(
    click.option(
        "--replicas", type=click.IntRange(1, 4096), default=1, show_default=True, help="Engines side by side."
    ),
    click.option(
        "--router",
        type=click.Choice(["round_robin", "least_loaded", "prefix_aware"]),
        default="least_loaded",
        show_default=True,
        help="Who gets the next request.",
    ),
    click.option(
        "--prefill-replicas",
        type=click.IntRange(0, 4096),
        default=0,
        help="Engines of their own for prompts; the KV goes to --replicas over a link.",
    ),
)
engine_options = together(
    click.option("--run-noise", type=click.FloatRange(0, 1), default=0.0, metavar="CV", help="From run to run [0]."),
    click.option("--step-noise", type=click.FloatRange(0, 1), default=0.0, metavar="CV", help="From step to step [0]."),
    click.option(
        "--engine", "engine_settings", multiple=True, metavar="KEY=VALUE", help="max_num_seqs=256 and the like."
    ),
    click.option("--assume", multiple=True, metavar="KEY=VALUE", help="Any of --assumptions; repeatable."),
)


def print_assumptions(ctx: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    """List what a simulation assumes, each with its default and source, and end."""
    if not asked or ctx.resilient_parsing:
        return
    from loadgen.commands.simulating import assumption_lines

    for line in assumption_lines():
        click.echo(line)
    ctx.exit()


@click.command()
@click.argument("scenario")
@click.option("--model", metavar="NAME", help="A model of the table (llama-3.1-8b, ...) [scenario's].")
@hardware_options
@split_options
@fleet_options
@engine_options
@scenario_options
@out_option
@click.option("--step-by-step", is_flag=True, help="Compute every decode step by itself: slower, the same result.")
@click.option(
    "--assumptions",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_assumptions,
    help="List what is assumed, with defaults and sources.",
)
def simulate(scenario: str, model: str | None, out: Path | None, **options: Any) -> None:
    """Drive SCENARIO against a simulated fleet in virtual time: what if?

    The same schedule, scheduler and report as a real run; step times are the roofline's times stated efficiencies. What
    the scenario's roofline section says of model, hardware and precision counts where no option does. --devices are
    those of one replica; what --dp and --pp leave of them is tensor parallel.
    """
    from loadgen.commands import simulating
    from loadgen.commands.problems import users_problems
    from loadgen.commands.running import check_valid, made, resolve
    from loadgen.commands.sweep import ladder_plans

    told = {"model": model, "kv_precision": options.pop("kv_precision")}
    overrides = tuple(f"roofline.{key}={value}" for key, value in told.items() if value is not None)
    options |= {"overrides": (*options["overrides"], *overrides), "api": None}
    with users_problems():
        wanted = resolve(scenario, simulating.URL, options).scenario
        fleet = simulating.fleet_of(wanted, options)
        simulation = simulating.Simulation(wanted, fleet, new_folder(out, wanted.name), ladder_plans(wanted))
        check_valid(made(simulation.folder, lambda: simulating.simulate(simulation)))
