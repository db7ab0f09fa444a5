"""From what a user says to a simulated replica: its deployment, its engine settings, its executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, get_type_hints

from engine_adapters.reference.config import EngineConfig
from engine_adapters.reference.deployment import Deployment, DeploymentProblem, Speculation, assumptions_from
from loadgen.roofline.hardware import Hardware
from loadgen.roofline.model_shape import ModelShape

# vLLM's defaults on data-centre GPUs, where a user says nothing else.
DEFAULTS: dict[str, Any] = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
LONGEST_MODEL_LEN = 131_072
FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def deployment_from(
    model: ModelShape,
    hardware: Hardware,
    *,
    devices: int = 1,
    data_parallel: int = 1,
    pipeline_parallel: int = 1,
    precision: str | None = None,
    kv_precision: str | None = None,
    speculate: str | None = None,
    assume: Sequence[str] = (),
) -> Deployment:
    """One replica on `devices`: what data and pipeline parallelism leave of them is tensor parallel.

    speculate: "K:A". assume: "NAME=NUMBER" for fields of Assumptions. Raises DeploymentProblem.
    """
    if devices % (data_parallel * pipeline_parallel):
        raise DeploymentProblem(f"{devices} devices can't be split by DP {data_parallel} x PP {pipeline_parallel}")
    return Deployment(
        model=model,
        hardware=hardware,
        tensor_parallel=devices // (data_parallel * pipeline_parallel),
        data_parallel=data_parallel,
        pipeline_parallel=pipeline_parallel,
        precision=precision or "bf16",
        kv_precision=kv_precision or "bf16",
        speculation=speculation_from(speculate),
        assumed=assumptions_from({name: _number(name, value) for name, value in pairs(assume, "--assume")}),
    )


def speculation_from(text: str | None) -> Speculation:
    """ "3:0.7" is 3 tokens drafted a step, each accepted with probability 0.7."""
    if text is None:
        return Speculation()
    n_tokens, _, acceptance = text.partition(":")
    try:
        return Speculation(int(n_tokens), float(acceptance))
    except DeploymentProblem:
        raise
    except ValueError:
        raise DeploymentProblem(f"--speculate {text}: it looks like 3:0.7 (tokens : acceptance)") from None


def engine_from(deployment: Deployment, settings: Sequence[str] = (), block_size: int = 16) -> EngineConfig:
    """The engine's settings for a deployment: as many KV blocks as fit, vLLM's limits, and "NAME=VALUE" over them.

    Raises DeploymentProblem for an unknown name, a value of the wrong kind, or more blocks than fit.
    """
    given: dict[str, Any] = {name: _setting(name, value) for name, value in pairs(settings, "--engine")}
    size = int(given.setdefault("block_size", block_size))
    fits = deployment.kv_tokens // size
    if given.setdefault("num_blocks", fits) > fits:
        raise DeploymentProblem(f"--engine num_blocks={given['num_blocks']}: only {fits} blocks of {size} tokens fit")
    given.setdefault("max_model_len", min(given["num_blocks"] * size, LONGEST_MODEL_LEN))
    given["num_speculative_tokens"] = deployment.speculation.n_tokens
    try:
        return EngineConfig(**DEFAULTS | given)
    except ValueError as error:
        raise DeploymentProblem(str(error)) from None


def pairs(texts: Sequence[str], option: str) -> list[tuple[str, str]]:
    """ "NAME=VALUE" apart; raises DeploymentProblem for anything else."""
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise DeploymentProblem(f"{option} {text}: it looks like NAME=VALUE")
        found.append((name.strip().replace("-", "_"), value.strip()))
    return found


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise DeploymentProblem(f"--assume {name}={value}: a number is wanted") from None


def _setting(name: str, value: str) -> Any:
    """The value as the field's type wants it."""
    kinds = get_type_hints(EngineConfig)
    if name not in kinds:
        raise DeploymentProblem(
            f"--engine {name}: unknown; known are {', '.join(f.name for f in fields(EngineConfig))}"
        )
    readers: dict[Any, Callable[[str], Any]] = {int: int, bool: FLAGS.__getitem__, float | None: float}
    read = readers.get(kinds[name], str)
    try:
        return read(value)
    except (ValueError, KeyError):
        raise DeploymentProblem(f"--engine {name}={value}: not a value that it can take") from None
