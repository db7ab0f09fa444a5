"""`bench engine`: serve the bundled reference engine, or measure what this machine allows it."""

from __future__ import annotations

import os
import sys

import click

from engine_adapters.reference.config import (
    BYTES_PER_WEIGHT,
    MODELS,
    PROCESS_ENVIRONMENT,
    EngineConfig,
    params_by_group,
)

DEFAULTS = EngineConfig()
SLOWDOWN_HELP = (
    "Make every engine step take this many times as long (it sleeps before it hands over the step's tokens): "
    "1.3 makes TTFT, TPOT and E2E about 30% longer. Reading and writing HTTP is not slowed."
)


@click.group()
def engine() -> None:
    """Serve or calibrate the bundled reference engine."""


@engine.command()
@click.option(
    "--model", type=click.Choice(list(MODELS)), default="tiny", show_default=True, help="3.4M or 20M weights."
)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option("--max-num-seqs", type=int, default=DEFAULTS.max_num_seqs, show_default=True, help="Largest batch.")
@click.option(
    "--max-num-batched-tokens",
    type=int,
    default=DEFAULTS.max_num_batched_tokens,
    show_default=True,
    help="Most tokens in one step, prefill chunks included: more gives a shorter TTFT and a rougher ITL.",
)
@click.option(
    "--num-blocks",
    type=int,
    default=DEFAULTS.num_blocks,
    show_default=True,
    help=f"KV cache size, in blocks of {DEFAULTS.block_size} tokens.",
)
@click.option(
    "--max-waiting",
    type=int,
    default=DEFAULTS.max_waiting,
    show_default=True,
    help="Requests accepted beyond --max-num-seqs; the next is answered 429.",
)
@click.option(
    "--max-model-len", type=int, default=DEFAULTS.max_model_len, show_default=True, help="Prompt and output together."
)
@click.option("--slowdown", type=click.FloatRange(1.0, 100.0), default=1.0, show_default=True, help=SLOWDOWN_HELP)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random weights.")
def serve(**options: str | float) -> None:
    """Serve an OpenAI-compatible API until Ctrl-C. It logs when each token left at /truth."""
    # Becomes the engine's process: numpy must not be imported before the environment says one BLAS thread.
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "engine_adapters.reference", *arguments]
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
