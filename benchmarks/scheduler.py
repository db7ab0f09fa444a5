"""What one engine step costs before and after the model: `python benchmarks/scheduler.py`.

CPU time of schedule + update_from_output with so many requests running, by a worker that costs nothing. "decode": the
same requests go on. "churn": answers of 64 tokens to prompts of 512 that share 256, replaced as they end. "draft":
decode with three guesses a step, of which one is right. Goals: at most 100 us at 64 running, 400 us at 256 (median).
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from statistics import median, quantiles

from engine_adapters.reference.config import EngineConfig
from engine_adapters.reference.request import Request
from engine_adapters.reference.scheduler import Scheduler

BATCHES = (1, 16, 64, 128, 256, 512)
N_STEPS, N_WARM = 600, 100
GOALS_US = {64: 100.0, 256: 400.0}
FORMAT = "{:8} {:>8} {:>12} {:>12} {:>14} {:>10}"


def guess(request: Request, n_tokens: int) -> Sequence[int]:
    """The worker below accepts the first."""
    return [7, 8, 8][:n_tokens]


class Load:
    """A scheduler that is kept at `n_running` requests."""

    def __init__(self, kind: str, n_running: int) -> None:
        self.kind, self.n_running = kind, n_running
        self.rng = random.Random(n_running)
        config = EngineConfig(
            max_num_seqs=n_running,
            max_num_batched_tokens=8192 + 4 * n_running,
            num_blocks=n_running * 256 + 256,
            num_speculative_tokens=3 if kind == "draft" else 0,
        )
        self.scheduler = Scheduler(config, frozenset({256}), guess)
        self.stem = [self.rng.randrange(256) for _ in range(256)]
        self.n_added = 0

    def fill(self) -> None:
        """Add requests until enough are there."""
        while len(self.scheduler.requests) < self.n_running:
            churn = self.kind == "churn"
            n_own = 256 if churn else self.rng.randrange(64)  # so that not all need a block in the same step
            prompt = self.stem + [self.rng.randrange(256) for _ in range(n_own)]
            self.scheduler.add(Request(str(self.n_added), prompt, 64 if churn else 3000, ignore_eos=True))
            self.n_added += 1

    def step(self) -> float:
        """CPU seconds that the scheduler took for one step."""
        self.fill()
        begun_s = time.thread_time()
        output = self.scheduler.schedule()
        chosen_s = time.thread_time()
        tokens = [([7, 9] if item.draft_token_ids else [7]) if item.samples else [] for item in output.scheduled]
        sampled_s = time.thread_time()
        self.scheduler.update_from_output(output, tokens)
        return time.thread_time() - sampled_s + chosen_s - begun_s


def measure(kind: str, n_running: int) -> tuple[float, float]:
    """Median and p99 of a step, in microseconds."""
    load = Load(kind, n_running)
    steps_us = [1e6 * load.step() for _ in range(N_WARM + N_STEPS)][N_WARM:]
    return median(steps_us), quantiles(steps_us, n=100)[98]


def main() -> None:
    """Measure and print the table."""
    print(FORMAT.format("load", "running", "median us", "p99 us", "us a request", "goal us"))
    for kind in ("decode", "churn", "draft"):
        for n_running in BATCHES:
            middle_us, p99_us = measure(kind, n_running)
            goal_us = GOALS_US.get(n_running)
            verdict = "" if goal_us is None else f"{goal_us:.0f} {'ok' if middle_us <= goal_us else 'MISSED'}"
            row = (kind, n_running, f"{middle_us:.1f}", f"{p99_us:.1f}", f"{middle_us / n_running:.2f}", verdict)
            print(FORMAT.format(*row), flush=True)


if __name__ == "__main__":
    main()
