"""The simulated executor: its pace, its noise, and what it says."""

from __future__ import annotations

from statistics import fmean, stdev

import pytest
from support.simulated import deployment

from engine_adapters.reference.config import EngineConfig
from engine_adapters.reference.deployment import Speculation
from engine_adapters.reference.engine import EngineCore
from engine_adapters.reference.executors.simulated import Noise, SimulatedExecutor, StepFactors, answer_tokens, drafter
from engine_adapters.reference.request import Request
from engine_adapters.reference.tokenizer import is_visible


class LateClock:
    """Sleeps 1 ms too long each time."""

    def __init__(self) -> None:
        self.at_ns = 0

    def now_ns(self) -> int:
        return self.at_ns

    def sleep_until_ns(self, at_ns: int) -> None:
        self.at_ns = max(self.at_ns, at_ns) + 1_000_000


def core_of(executor: SimulatedExecutor, n_drafts: int = 0) -> EngineCore:
    config = EngineConfig(num_blocks=1000, max_num_batched_tokens=2048, num_speculative_tokens=n_drafts)
    return EngineCore(config, executor, drafter(executor.deployment.speculation), lambda: 0.0)


def run(core: EngineCore, n_output: int = 50) -> Request:
    request = Request("a", [1] * 100, n_output, ignore_eos=True)
    core.add(request)
    while core.scheduler.has_work:
        core.step()
    return request


def test_a_system_that_sleeps_too_long_does_not_slow_the_simulated_machine() -> None:
    clock = LateClock()
    executor = SimulatedExecutor(deployment(), 16, clock)
    run(core_of(executor))
    assert clock.at_ns - executor.busy_until_ns == 1_000_000


def test_a_process_that_cannot_keep_the_pace_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    class Slow(LateClock):
        def sleep_until_ns(self, at_ns: int) -> None:
            self.at_ns = max(at_ns, self.at_ns + 20_000_000)

    executor = SimulatedExecutor(deployment(), 16, Slow())
    run(core_of(executor), 100)
    assert executor.behind_max_ns > 10**9
    assert capsys.readouterr().err.count("use `bench simulate`") == 1


def test_after_a_pause_a_step_begins_when_its_request_comes() -> None:
    clock = LateClock()
    executor = SimulatedExecutor(deployment(), 16, clock)
    core = core_of(executor)
    run(core, 1)
    clock.at_ns = idle_until_ns = 10**10
    run(core, 1)
    assert executor.busy_until_ns > idle_until_ns


def test_the_slowdown_multiplies_every_step() -> None:
    ends = []
    for slowdown in (1.0, 1.3):
        executor = SimulatedExecutor(deployment(), 16, LateClock(), slowdown=slowdown)
        run(core_of(executor))
        ends.append(executor.busy_until_ns)
    assert ends[1] == pytest.approx(1.3 * ends[0], rel=1e-6)


def test_noise_has_the_asked_variation_and_mean_1_and_is_off_by_default() -> None:
    assert StepFactors(Noise()).of(3) == 1.0
    factors = StepFactors(Noise(step_cv=0.1, seed=1))
    drawn = [factors.of(step) for step in range(20_000)]
    assert fmean(drawn) == pytest.approx(1, abs=0.003)
    assert stdev(drawn) / fmean(drawn) == pytest.approx(0.1, rel=0.05)
    runs = [StepFactors(Noise(run_cv=0.02, seed=seed)).of(0) for seed in range(2000)]
    assert fmean(runs) == pytest.approx(1, abs=0.002)
    assert stdev(runs) == pytest.approx(0.02, rel=0.1)


def test_a_steps_noise_belongs_to_its_number() -> None:
    forwards, backwards = (StepFactors(Noise(step_cv=0.1)) for _ in range(2))
    assert [forwards.of(i) for i in range(9)] == [backwards.of(i) for i in reversed(range(9))][::-1]


def test_speculation_emits_as_many_tokens_a_step_as_its_acceptance_says() -> None:
    speculation = Speculation(3, 0.7)
    executor = SimulatedExecutor(deployment(speculation=speculation), 16, LateClock())
    request = run(core_of(executor, 3), 3900)
    n_steps = executor.n_steps - 1
    assert len(request.output_token_ids) == 3900
    # 1,540 steps of standard deviation 1.2: four standard errors are 0.12.
    assert 3900 / n_steps == pytest.approx(speculation.tokens_per_step, abs=0.12)


def test_answers_are_visible_and_do_not_repeat_themselves() -> None:
    tokens = answer_tokens(Request("a", [5, 6], 900), 2, 900)
    assert all(map(is_visible, tokens))
    pieces = [tuple(tokens[i : i + 8]) for i in range(892)]
    assert len(set(pieces)) == len(pieces)


def test_a_received_prompt_costs_one_token_until_a_preemption_loses_its_kv() -> None:
    times = []
    for received, preemptions in ((False, 0), (True, 0), (True, 1)):
        executor = SimulatedExecutor(deployment(), 16, LateClock())
        core, request = core_of(executor), Request("a", [1] * 800, 2, ignore_eos=True)
        request.num_preemptions = preemptions
        executor.received |= {"a"} if received else set()
        core.add(request)
        core.step()
        times.append(executor.busy_until_ns)
    assert times[1] < 0.5 * times[0]
    assert times[2] == times[0]
