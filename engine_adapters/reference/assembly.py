"""From the command line to a model behind an executor: the one place that knows all executors."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from engine_adapters.reference.config import EngineConfig
from engine_adapters.reference.deployment import Deployment
from engine_adapters.reference.engine import EngineCore
from engine_adapters.reference.executors.base import Executor
from engine_adapters.reference.metrics import Ceilings
from engine_adapters.reference.options import SIMULATED_DEFAULTS, engine_config
from engine_adapters.reference.scheduler import Drafter
from engine_adapters.reference.tokenizer import BYTES, Tokenizer


class Assembled(NamedTuple):
    """What a server serves, and how fast the machine behind it can be at most, where that is known."""

    name: str
    vocab_size: int
    tokenizer: Tokenizer
    core: EngineCore
    ceilings: Ceilings | None


class Parts(NamedTuple):
    """What an executor brings along."""

    name: str
    vocab_size: int
    tokenizer: Tokenizer
    config: EngineConfig
    executor: Executor
    draft: Drafter
    ceilings: Ceilings | None


def assemble(args: argparse.Namespace) -> Assembled:
    """The engine that the options describe, warmed up; raises ValueError, one line for the user."""
    parts = EXECUTORS[args.executor](args)
    parts.executor.warmup()
    core = EngineCore(parts.config, parts.executor, parts.draft, eos_token_ids=parts.tokenizer.eos_token_ids)
    ceilings = parse_ceilings(args.ceilings) if args.ceilings else parts.ceilings
    return Assembled(parts.name, parts.vocab_size, parts.tokenizer, core, ceilings)


def parse_ceilings(text: str) -> Ceilings:
    """`GBPS:GFLOPS`; raises ValueError."""
    try:
        gigabytes, gigaflops = map(float, text.split(":"))
    except ValueError:
        gigabytes = gigaflops = 0.0
    if not (gigabytes > 0 and gigaflops > 0):
        raise ValueError(f"--ceilings {text}: write GB/s and GFLOP/s, both above 0, as 75.3:100.2")
    return Ceilings(gigabytes * 1e9, gigaflops * 1e9)


def make_numpy(args: argparse.Namespace) -> Parts:
    """A real model on one CPU thread."""
    from engine_adapters.reference import ngram
    from engine_adapters.reference.executors.numpy import NumpyExecutor
    from engine_adapters.reference.executors.numpy_kv import KV_STORES
    from engine_adapters.reference.model_loader import load_model

    if args.kv_cache_dtype not in KV_STORES:
        raise ValueError(f"--kv-cache-dtype {args.kv_cache_dtype}: must be one of {', '.join(KV_STORES)}")
    loaded = load_model(args.model, args.seed)
    config = _numpy_config(args, loaded.config.max_position_embeddings)
    executor = NumpyExecutor(loaded.config, config, loaded.weights, loaded.tokenizer, args.kv_cache_dtype)
    model = loaded.config
    return Parts(model.name, model.vocab_size, loaded.tokenizer, config, executor, ngram.draft, None)


def _numpy_config(args: argparse.Namespace, longest: int | None) -> EngineConfig:
    """The settings as told; by default no longer than the positions that the model was trained for."""
    if longest is None:
        return engine_config(args)
    config = engine_config(args, max_model_len=min(EngineConfig().max_model_len, longest))
    if config.max_model_len > longest:
        told = f"--max-model-len {config.max_model_len}"
        raise ValueError(f"{told}: the model has only {longest} positions (max_position_embeddings in its config.json)")
    return config


def make_simulated(args: argparse.Namespace) -> Parts:
    """Hardware that is not there: steps take as long as the roofline and stated efficiencies say."""
    from engine_adapters.reference.executors.simulated import Noise, SimulatedExecutor, drafter
    from engine_adapters.reference.simulated_setup import deployment_from
    from loadgen.roofline.hardware import find_hardware
    from loadgen.roofline.model_shape import find_model, from_config

    path = Path(args.model, "config.json") if Path(args.model).is_dir() else None
    deployment = deployment_from(
        from_config(json.loads(path.read_text()), path.parent.name) if path else find_model(args.model),
        find_hardware(args.hardware),
        devices=args.devices,
        data_parallel=args.dp,
        pipeline_parallel=args.pp,
        precision=args.precision,
        kv_precision=None if args.kv_cache_dtype == "auto" else args.kv_cache_dtype,
        speculate=args.speculate,
        assume=args.assume,
    )
    config = _simulated_config(args, deployment)
    noise = Noise(args.run_noise, args.step_noise, args.seed)
    executor = SimulatedExecutor(deployment, config.block_size, noise=noise, slowdown=args.slowdown)
    n, hardware = deployment.devices, deployment.hardware
    ceilings = Ceilings(n * hardware.bandwidth_bps, n * deployment.peak_flops)
    draft = drafter(deployment.speculation)
    return Parts(args.model, deployment.model.vocab, BYTES, config, executor, draft, ceilings)


EXECUTORS: Mapping[str, Callable[[argparse.Namespace], Parts]] = {"numpy": make_numpy, "simulated": make_simulated}


def _simulated_config(args: argparse.Namespace, deployment: Deployment) -> EngineConfig:
    """Defaults of a server on data-centre GPUs; the KV cache and the longest request are what memory holds."""
    block_size = args.block_size or EngineConfig().block_size
    num_blocks = args.num_blocks or deployment.kv_tokens // block_size
    longest = min(SIMULATED_DEFAULTS["max_model_len"], num_blocks * block_size)
    fitting = {"num_blocks": num_blocks, "max_model_len": longest}
    return engine_config(
        args, **SIMULATED_DEFAULTS | fitting | {"num_speculative_tokens": deployment.speculation.n_tokens}
    )
