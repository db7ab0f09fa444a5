"""The executor without a model: every step takes as long as the roofline and the stated efficiencies say."""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from engine_adapters.reference.deployment import Deployment, Speculation, StepTimer
from engine_adapters.reference.executors.base import StepCost
from engine_adapters.reference.request import Request
from engine_adapters.reference.scheduler import Drafter, ScheduledRequest, SchedulerOutput, no_draft
from engine_adapters.reference.step_cost import StepLoad, load_of, step_bytes, step_flops

TEXT_LENGTH = 4096
BEHIND_NS = 250_000_000
TOO_SLOW = "this process is slower than the machine that it simulates, and clients measure it; use `bench simulate`"


def _text() -> list[int]:
    """Visible bytes in an order that does not repeat early: what every simulated answer is cut from."""
    rng = Random("simulated text")
    return [rng.randrange(33, 127) if rng.random() < 0.83 else 32 for _ in range(TEXT_LENGTH)] * 2


TEXT = _text()


class Clock(Protocol):
    """What paces the steps: the machine's clock, or one that jumps."""

    def now_ns(self) -> int:
        """Nanoseconds."""
        ...

    def sleep_until_ns(self, at_ns: int) -> None:
        """Return at that instant; at once when it has passed."""
        ...


class RealClock:
    """Real time: steps of the simulated machine take as long as they would."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds."""
        return time.monotonic_ns()

    def sleep_until_ns(self, at_ns: int) -> None:
        """Sleep; a deadline that was missed does not move the next one."""
        left_ns = at_ns - time.monotonic_ns()
        if left_ns > 0:
            time.sleep(left_ns / 1e9)


@dataclass(frozen=True, slots=True)
class Noise:
    """What makes two runs and two steps of a real machine differ; off by default.

    run_cv: coefficient of variation of a factor drawn once. step_cv: of a factor drawn for each step. Both factors are
    lognormal with mean 1.
    """

    run_cv: float = 0.0
    step_cv: float = 0.0
    seed: int = 0


class StepFactors:
    """The factor of each step by its number, so that steps computed in any order or together have the same ones."""

    def __init__(self, noise: Noise, name: str = "") -> None:
        self._step_cv = noise.step_cv
        self._rng = Random(f"{noise.seed}/{name}")
        self._run = _lognormal(self._rng, noise.run_cv)
        self._drawn = array("d")

    def of(self, step: int) -> float:
        """The factor of step number `step`."""
        if not self._step_cv:
            return self._run
        while len(self._drawn) <= step:
            self._drawn.append(_lognormal(self._rng, self._step_cv))
        return self._run * self._drawn[step]


def _lognormal(rng: Random, cv: float) -> float:
    sigma = cv / (1 + cv * cv / 4)  # of log x; equal to sqrt(log(1 + cv^2)) to a thousandth below cv = 0.5
    return rng.lognormvariate(-sigma * sigma / 2, sigma) if cv else 1.0


class SimulatedExecutor:
    """Answers are cut from a fixed text, as long as asked; the end token never comes.

    One step follows the other without a gap while there is work: what the host does between them counts as hidden
    behind the device, as engines that schedule ahead do. `slowdown` makes every step that many times as long.
    `received` holds ids of requests whose prompt came with its KV from another replica: only the last prompt token is
    computed here, unless a preemption has thrown the KV away.
    """

    def __init__(
        self,
        deployment: Deployment,
        block_size: int,
        clock: Clock | None = None,
        noise: Noise | None = None,
        slowdown: float = 1.0,
        name: str = "",
    ) -> None:
        self.deployment = deployment
        self.clock: Clock = clock or RealClock()
        self.received: set[str] = set()
        self.n_steps = 0
        self.busy_until_ns = 0
        self.behind_max_ns = 0  # how far this process was behind the simulated machine, at worst
        self._block_size = block_size
        self._timer = StepTimer(deployment)
        self._factors = StepFactors(noise or Noise(), name)
        self._scale_ns = 1e9 * slowdown
        self._chances = Random(f"{(noise or Noise()).seed}/{name}/accepted")
        self._last: Sequence[ScheduledRequest] = ()
        self._counted: Sequence[ScheduledRequest] = ()  # the step whose load is known: it is asked for twice
        self._load = load_of(())

    def capacity(self) -> int:
        """KV blocks of all the replica's devices; raises DeploymentProblem when the weights leave no room."""
        return self.deployment.kv_tokens // self._block_size

    def warmup(self) -> None:
        """Nothing is cold."""

    def close(self) -> None:
        """Nothing is held."""

    def execute(self, output: SchedulerOutput) -> list[list[int]]:
        """Wait as long as the step takes; then the next tokens of the text for each request that samples."""
        self.busy_until_ns = self._begin_ns(output) + self.step_ns(self.load(output), self.n_steps)
        self.n_steps += 1
        self.clock.sleep_until_ns(self.busy_until_ns)
        self._look_behind()
        return [self._sample(item) if item.samples else [] for item in output.scheduled]

    def _look_behind(self) -> None:
        """Say once when this process can't keep the simulated machine's pace."""
        behind_ns, before_ns = self.clock.now_ns() - self.busy_until_ns, self.behind_max_ns
        if behind_ns > before_ns:
            self.behind_max_ns = behind_ns
            if behind_ns > BEHIND_NS >= before_ns:
                print(f"{behind_ns / 1e9:.2f} s behind: {TOO_SLOW}", file=sys.stderr, flush=True)

    def _begin_ns(self, output: SchedulerOutput) -> int:
        """The end of the last step if this one goes on with a request of it, else now: the machine was idle."""
        first, last = output.scheduled[0].request, self._last
        self._last = output.scheduled
        return self.busy_until_ns if any(item.request is first for item in last) else self.clock.now_ns()

    def step_ns(self, load: StepLoad, step: int) -> int:
        """Whole nanoseconds of a step of this load that is number `step`."""
        return self.raw_ns(load.n_seqs, load.n_tokens, load.n_sampled, load.context_tokens, load.pairs, step)

    def raw_ns(self, n_seqs: int, n_tokens: int, n_sampled: int, context_tokens: int, pairs: int, step: int) -> int:
        """`step_ns` for the fields of a load."""
        seconds = self._timer.raw_s(n_seqs, n_tokens, n_sampled, context_tokens, pairs)
        return round(seconds * self._factors.of(step) * self._scale_ns)

    def load(self, output: SchedulerOutput) -> StepLoad:
        """What the step makes the machine do; before its results are booked."""
        if output.scheduled is not self._counted:
            self._counted, self._load = output.scheduled, load_of(self._parts(output.scheduled))
        return self._load

    def step_cost(self, output: SchedulerOutput) -> StepCost:
        """Bytes and FLOPs of the step, over all devices of the replica together."""
        d = self.deployment
        load = self.load(output)
        return StepCost(step_bytes(load, d.model, d.precision, d.kv_precision), step_flops(load, d.model))

    def _parts(self, scheduled: Iterable[ScheduledRequest]) -> Iterable[tuple[int, int, int]]:
        for item in scheduled:
            request, n_tokens = item.request, item.num_tokens
            computed, n_drafts = request.num_computed_tokens, len(item.draft_token_ids)
            if self.received and request.request_id in self.received and not request.num_preemptions:
                n_known = min(n_tokens, max(0, len(request.prompt_token_ids) - 1 - computed))
                computed, n_tokens = computed + n_known, n_tokens - n_known
            yield computed, n_tokens, 1 + n_drafts if item.samples else 0

    def _sample(self, item: ScheduledRequest) -> list[int]:
        start = text_start(item.request, len(item.request.token_ids))
        if not item.draft_token_ids:
            return [TEXT[start]]
        return TEXT[start : start + 1 + self._accepted(len(item.draft_token_ids))]

    def _accepted(self, n_drafts: int) -> int:
        """How many drafts hold: each does with the same chance while those before it did."""
        n = 0
        while n < n_drafts and self._chances.random() < self.deployment.speculation.acceptance:
            n += 1
        return n


def drafter(speculation: Speculation) -> Drafter:
    """Guesses what the simulated model will say; whether a guess holds is drawn when it is verified."""
    if not speculation.n_tokens:
        return no_draft

    def draft(request: Request, n_tokens: int) -> Sequence[int]:
        return answer_tokens(request, len(request.token_ids), min(n_tokens, speculation.n_tokens))

    return draft


def answer_tokens(request: Request, position: int, n: int) -> list[int]:
    """`n` tokens of a request's answer, the first at `position` of prompt and answer together."""
    start = text_start(request, position)
    return TEXT[start : start + n]


def text_start(request: Request, position: int) -> int:
    """Where in the text the token at `position` of prompt and answer stands; at least TEXT_LENGTH more follow it."""
    return (position + 61 * len(request.prompt_token_ids)) % TEXT_LENGTH
