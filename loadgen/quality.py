"""Fast garbage must not win: do two servers say the same to the same greedy prompts?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from engine_adapters.base import Adapter, Request, StreamOutcome
from loadgen.scenario.prompts import probe_prompt

N_PROMPTS = 50
PROMPT_WORDS = 24
OUTPUT_TOKENS = 32
AT_ONCE = 4
MARGIN = 0.10  # how far below the baseline's agreement with itself the candidate's may lie
REPEATS = 6  # an answer of one piece of text repeated this often is degenerate


@dataclass(frozen=True)
class Agreement:
    """Shares of the fixed prompts; `self_share` is the baseline against itself: batching alone changes answers."""

    n: int
    share: float
    self_share: float
    first_divergence_chars: float | None  # mean over the answers that differ
    degenerate_baseline: int
    degenerate_candidate: int

    @property
    def acceptable(self) -> bool:
        """Whether the candidate may pass."""
        return self.share >= self.self_share - MARGIN and self.degenerate_candidate <= self.degenerate_baseline

    @property
    def text(self) -> str:
        """The result in one sentence."""
        diverge = (
            f"; where they differ, after {self.first_divergence_chars:.0f} characters"
            if self.first_divergence_chars is not None
            else ""
        )
        return (
            f"{self.share:.0%} of {self.n} greedy answers are the baseline's (which agrees with itself in "
            f"{self.self_share:.0%}){diverge}; degenerate answers: baseline {self.degenerate_baseline}, "
            f"candidate {self.degenerate_candidate}"
        )


async def fixed_answers(adapter: Adapter) -> list[str]:
    """Greedy answers to the fixed prompts, the same for every server and run; a failed request answers nothing."""
    answers = [""] * N_PROMPTS
    slots = anyio.Semaphore(AT_ONCE)

    async def ask(i: int) -> None:
        body = adapter.encode(Request(probe_prompt(PROMPT_WORDS, f"quality-{i}"), OUTPUT_TOKENS))
        outcome = StreamOutcome()
        async with slots:
            await adapter.stream(body, f"quality-{i}", outcome)
        answers[i] = outcome.text

    async with anyio.create_task_group() as tasks:
        for i in range(N_PROMPTS):
            tasks.start_soon(ask, i)
    return answers


def agreement(baseline: Sequence[str], again: Sequence[str], candidate: Sequence[str]) -> Agreement:
    """Compare the answers of baseline, baseline once more, and candidate; pure."""
    differing = [(a, b) for a, b in zip(baseline, candidate, strict=True) if a != b]
    divergences = [_common_prefix(a, b) for a, b in differing]
    return Agreement(
        n=len(baseline),
        share=1 - len(differing) / len(baseline),
        self_share=sum(a == b for a, b in zip(baseline, again, strict=True)) / len(baseline),
        first_divergence_chars=sum(divergences) / len(divergences) if divergences else None,
        degenerate_baseline=sum(map(degenerate, baseline)),
        degenerate_candidate=sum(map(degenerate, candidate)),
    )


def degenerate(answer: str) -> bool:
    """Empty, with characters that are not text, or nothing but one short piece repeated at its end."""
    if not answer.strip() or "\ufffd" in answer:
        return True
    return any(answer.endswith(answer[-n:] * REPEATS) for n in range(1, min(len(answer) // REPEATS, 24) + 1))


def _common_prefix(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
