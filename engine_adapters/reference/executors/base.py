"""The contract between the engine and whatever computes its steps."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from engine_adapters.reference.scheduler import SchedulerOutput


class StepCost(NamedTuple):
    """What one step must move and compute at least, from `loadgen.roofline`: the numerator of the live fractions.

    n_bytes: weights read once, plus KV read and written. flops: multiply-adds count twice.
    """

    n_bytes: float
    flops: float


class Executor(Protocol):
    """Computes one step at a time; holds the weights and the KV cache, and no request's state beyond it."""

    def capacity(self) -> int:
        """KV blocks that it holds; the engine's `num_blocks` may not be larger."""
        ...

    def warmup(self) -> None:
        """Do once what would make the first request slow. No effect on results."""
        ...

    def execute(self, output: SchedulerOutput) -> list[list[int]]:
        """Compute the scheduled tokens; for each scheduled request the tokens sampled, in order.

        None where it does not sample; one where it does; with drafts, those at the front that turned out right and one
        more, so 1 to 1 + len(draft_token_ids). Requests are read, never changed, but for `Request.logprobs`. If it
        raises, every request of the step ends with an error and the engine goes on.
        """
        ...

    def step_cost(self, output: SchedulerOutput) -> StepCost:
        """The cost of a step, asked before its results are booked; cheap, since every step asks."""
        ...

    def close(self) -> None:
        """Let go of what it holds; it is not used again."""
        ...
