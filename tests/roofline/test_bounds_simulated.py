"""No run of an ideal machine, played step by step, beats the bound; and a good run comes near it.

The machine here is written from scratch with its own arithmetic: in each step all running requests emit a token, prompt
tokens fill what compute is free, and the step takes max(bytes / bandwidth, FLOPs / peak). Nothing else costs anything.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.roofline.bounds import Mix, Target, bound_at
from loadgen.roofline.hardware import Hardware
from loadgen.roofline.model_shape import ModelShape

# L 2, h 32, 4 query and 2 KV heads of 8, ffn 64, vocabulary 50, in single precision.
SHAPE = ModelShape("toy", 2, 32, 4, 2, 8, 64, 50)
MATRICES = 2 * (32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 64)
HEAD = 50 * 32
WEIGHT_BYTES = 4 * (MATRICES + HEAD + 5 * 32)
KV_BYTES = 4 * 2 * 2 * 16
PAIR_FLOPS = 4 * 32 * 2


@dataclass
class Job:
    """A request on the ideal machine."""

    prompt: int
    output: int
    arrives_s: float = 0.0
    prefilled: int = 0
    emitted: int = 0


@dataclass
class Run:
    """What a run showed: tokens, its length, and in-flight integrated over time."""

    tokens: int = 0
    time_s: float = 0.0
    in_flight_s: float = 0.0
    finished_at_s: list[float] = field(default_factory=list)

    @property
    def tps(self) -> float:
        return self.tokens / self.time_s


@dataclass(frozen=True)
class Machine:
    """Bandwidth, peak, KV pool and prompt tokens a step (None: as many as cost no extra time, at least one)."""

    bandwidth: float
    flops: float
    pool_bytes: float = math.inf
    chunk: int | None = None

    def run(self, jobs: list[Job], slots: float = math.inf) -> Run:
        """Play `jobs` in order of arrival, at most `slots` in flight."""
        run, queue, flight = Run(), deque(jobs), list[Job]()
        while queue or flight:
            while queue and len(flight) < slots and queue[0].arrives_s <= run.time_s and self._fits(flight, queue[0]):
                flight.append(queue.popleft())
            if not flight:
                run.time_s = queue[0].arrives_s
                continue
            took_s = self._step(flight, run)
            run.time_s += took_s
            run.in_flight_s += took_s * len(flight)
            flight = [job for job in flight if job.emitted < job.output]
        return run

    def _fits(self, flight: list[Job], job: Job) -> bool:
        held = sum(j.prompt + j.output for j in [*flight, job]) * KV_BYTES
        return not flight or held <= self.pool_bytes

    def _step(self, flight: list[Job], run: Run) -> float:
        n_bytes, flops = float(WEIGHT_BYTES), 0.0
        for job in [j for j in flight if j.emitted]:
            context = job.prompt + job.emitted
            n_bytes += KV_BYTES * (context - 1)
            flops += 2 * (MATRICES + HEAD) + PAIR_FLOPS * context
            job.emitted += 1
            run.tokens += 1
        free = self._free_tokens(n_bytes, flops)
        for job in [j for j in flight if not j.emitted]:
            n = min(free, job.prompt - job.prefilled)
            free -= n
            for position in range(job.prefilled + 1, job.prefilled + n + 1):
                flops += 2 * MATRICES + PAIR_FLOPS * position
            job.prefilled += n
            if job.prefilled == job.prompt:
                flops += 2 * HEAD
                job.emitted = 1
                run.tokens += 1
        return max(n_bytes / self.bandwidth, flops / self.flops)

    def _free_tokens(self, n_bytes: float, flops: float) -> int:
        if self.chunk is not None:
            return self.chunk
        spare_flops = n_bytes / self.bandwidth * self.flops - flops
        return max(1, int(spare_flops / (2 * MATRICES)))


def _target(machine: Machine) -> Target:
    hardware = Hardware("ideal", math.inf, machine.bandwidth, {"fp32": machine.flops}, "made up", True)
    pool = None if math.isinf(machine.pool_bytes) else machine.pool_bytes
    return Target(SHAPE, hardware, precision="fp32", kv_precision="fp32", kv_pool_bytes=pool)


def _mix(jobs: list[Job]) -> Mix:
    return Mix(np.array([j.prompt for j in jobs]), np.array([j.output for j in jobs]))


def _jobs(lengths: list[tuple[int, int]]) -> list[Job]:
    return [Job(prompt, output) for prompt, output in lengths]


LENGTHS = st.lists(st.tuples(st.integers(1, 200), st.integers(1, 30)), min_size=1, max_size=25)
BALANCE = st.floats(0.05, 500)  # FLOPs a byte: from compute bound always to memory bound always


@settings(max_examples=150, deadline=None)
@given(LENGTHS, st.integers(1, 12), BALANCE, st.one_of(st.none(), st.integers(1, 256)))
def test_no_closed_loop_run_beats_the_bound(
    lengths: list[tuple[int, int]], slots: int, balance: float, chunk: int | None
) -> None:
    machine, jobs = Machine(1e9, balance * 1e9, chunk=chunk), _jobs(lengths)
    run = machine.run(jobs, slots)
    assert run.tokens == sum(output for _, output in lengths)
    bound = bound_at(_target(machine), _mix(jobs), slots)
    assert run.tps <= bound.output_tps * (1 + 1e-9)
    # The latency roof needs no steady state: it holds for the mean in flight of any run.
    assert run.tps <= bound_at(_target(machine), _mix(jobs), run.in_flight_s / run.time_s).latency_tps * (1 + 1e-9)


@settings(max_examples=80, deadline=None)
@given(LENGTHS, BALANCE, st.floats(0.05, 0.9))
def test_no_run_in_a_limited_kv_pool_beats_the_bound(
    lengths: list[tuple[int, int]], balance: float, share: float
) -> None:
    need = [KV_BYTES * (prompt + output) for prompt, output in lengths]
    machine = Machine(1e9, balance * 1e9, pool_bytes=max(max(need), share * sum(need)))
    jobs = _jobs(lengths)
    run = machine.run(jobs)
    assert run.tps <= bound_at(_target(machine), _mix(jobs), len(jobs)).output_tps * (1 + 1e-9)


@pytest.mark.parametrize("balance", [0.5, 5.0, 50.0])
@pytest.mark.parametrize("load", [0.3, 0.6, 0.9])
def test_no_poisson_run_beats_the_bound_at_its_mean_in_flight(balance: float, load: float) -> None:
    # Seeds are fixed: the outcome is the same in each run, so there is no false alarm.
    rng = np.random.default_rng(11)
    machine = Machine(1e9, balance * 1e9)
    lengths = [(int(p) + 1, int(o) + 1) for p, o in rng.lognormal(3, 0.8, (250, 2))]
    capacity_rps = bound_at(_target(machine), _mix(_jobs(lengths)), 1e6).output_tps / np.mean([o for _, o in lengths])
    arrivals = np.cumsum(rng.exponential(1 / (load * capacity_rps), len(lengths)))
    jobs = [Job(p, o, float(t)) for (p, o), t in zip(lengths, arrivals, strict=True)]
    run = machine.run(jobs)
    bound = bound_at(_target(machine), _mix(jobs), run.in_flight_s / run.time_s)
    assert run.tps <= bound.output_tps


@pytest.mark.parametrize(
    ("balance", "slots", "prompt", "output", "limiter"),
    [
        (200.0, 8, 4, 120, "bandwidth"),
        (200.0, 32, 60, 120, "bandwidth"),
        (0.5, 16, 200, 8, "compute"),
        (0.5, 16, 16, 60, "compute"),
        (1.0, 1, 200, 8, "latency"),
    ],
)
def test_a_steady_run_of_the_ideal_machine_comes_near_the_bound(
    balance: float, slots: int, prompt: int, output: int, limiter: str
) -> None:
    machine, jobs = Machine(1e9, balance * 1e9), _jobs([(prompt, output)] * (20 * slots))
    run = machine.run(jobs, slots)
    bound = bound_at(_target(machine), _mix(jobs), slots)
    assert bound.limiter == limiter
    assert 0.85 <= run.tps / bound.output_tps <= 1 + 1e-9


def test_a_full_kv_pool_comes_near_the_bound_when_answers_are_short_against_prompts() -> None:
    # The machine reserves the whole length, the bound counts what is resident on average: nearly the same here.
    machine = Machine(1e9, 1e15, pool_bytes=20 * 220 * KV_BYTES)
    jobs = _jobs([(200, 20)] * 400)
    run = machine.run(jobs)
    bound = bound_at(_target(machine), _mix(jobs), 400)
    assert bound.limiter == "kv capacity"
    assert 0.85 <= run.tps / bound.output_tps <= 1 + 1e-9
