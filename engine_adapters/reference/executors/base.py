"""The contract between the engine and whatever computes its steps."""

from __future__ import annotations

from typing import Protocol

from engine_adapters.reference.scheduler import SchedulerOutput


class Executor(Protocol):
    """Computes one step at a time; holds the weights and the KV cache, and no request's state beyond it."""

    def warmup(self) -> None:
        """Do once what would make the first request slow. No effect on results."""
        ...

    def execute(self, output: SchedulerOutput) -> list[int | None]:
        """Compute the scheduled tokens; for each scheduled request the sampled token, or None if it samples none."""
        ...
