"""`bench engine`: serve the bundled reference engine, or measure what this machine allows it."""

from __future__ import annotations

import os
import sys

import click

from engine_adapters.reference.config import BYTES_PER_WEIGHT, MODELS, PROCESS_ENVIRONMENT, params_by_group


@click.group()
def engine() -> None:
    """Serve or calibrate the bundled reference engine."""


@engine.command(context_settings={"ignore_unknown_options": True, "help_option_names": []}, options_metavar="[OPTIONS]")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def serve(options: tuple[str, ...]) -> None:
    """Serve an OpenAI-compatible API until Ctrl-C; --help tells all options."""
    # Becomes the engine's process, which reads the options itself: numpy must not be imported before the environment
    # says one BLAS thread.
    command = [sys.executable, "-m", "engine_adapters.reference", *options]
    os.execve(sys.executable, command, os.environ | PROCESS_ENVIRONMENT)


@engine.command()
@click.option(
    "--model", type=click.Choice(list(MODELS)), default="tiny", show_default=True, help="Whose weights' size."
)
def calibrate(model: str) -> None:
    """Measure this machine's ceilings for a model's weights: read bandwidth by gemv, compute by sgemm."""
    from engine_adapters.reference.calibrate import measure_ceilings

    weight_bytes = BYTES_PER_WEIGHT * sum(params_by_group(MODELS[model]).values())
    ceilings = measure_ceilings(weight_bytes)
    click.echo(f"read bandwidth  {ceilings.bandwidth_bps / 1e9:8.1f} GB/s  over {weight_bytes / 1e6:.1f} MB ({model})")
    click.echo(f"compute         {ceilings.flops / 1e9:8.1f} GFLOP/s")
    click.echo(f"source          {ceilings.source}")
    click.echo(f"bench engine serve --ceilings {ceilings.bandwidth_bps / 1e9:.1f}:{ceilings.flops / 1e9:.1f}")
