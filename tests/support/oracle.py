"""An executor that keeps token ids where a real one keeps keys and values, so that every context can be read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine_adapters.reference.executors.base import StepCost
from engine_adapters.reference.request import Request
from engine_adapters.reference.scheduler import ScheduledRequest, SchedulerOutput

EOS = 256  # the tokenizer's
N_WORDS = 90


def next_token(token_ids: Sequence[int]) -> int:
    """A "model": the next token follows from the whole context; now and then it is the end of sequence."""
    draw = (hash(tuple(token_ids)) >> 8) % 120
    return draw if draw < N_WORDS else EOS


def drawn(token_ids: Sequence[int], may_end: bool) -> int:
    """The model's token where the answer may end, and where it may not."""
    token = next_token(token_ids)
    return 0 if token == EOS and not may_end else token


def expected_output(prompt: list[int], max_tokens: int, ignore_eos: bool = True) -> list[int]:
    """The answer of a batch of one."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        token = drawn(tokens, not ignore_eos)
        if token == EOS:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


@dataclass
class OracleExecutor:
    """`pages[block]` holds the tokens whose keys and values a real executor would have there."""

    block_size: int
    num_blocks: int = 1 << 20
    pages: dict[int, list[int]] = field(default_factory=dict)
    fails: bool = False
    last: SchedulerOutput = field(default_factory=lambda: SchedulerOutput([]))

    def capacity(self) -> int:
        return self.num_blocks

    def warmup(self) -> None: ...

    def step_cost(self, output: SchedulerOutput) -> StepCost:
        return StepCost(1.0, 1.0)

    def close(self) -> None: ...

    def execute(self, output: SchedulerOutput) -> list[list[int]]:
        """All keys are written before any is read, as in a step of one layer."""
        self.last = output
        for item in output.scheduled:
            self._write(item)
        if self.fails:
            raise RuntimeError("a worker fails on purpose")
        return [self._sample(item) for item in output.scheduled]

    def _write(self, item: ScheduledRequest) -> None:
        request, first = item.request, item.request.num_computed_tokens
        last = first + item.num_tokens
        tokens = [*request.token_ids[first:last], *item.draft_token_ids][: item.num_tokens]
        for position, token in zip(range(first, last), tokens, strict=True):
            page = self.pages.setdefault(request.block_ids[position // self.block_size], [-1] * self.block_size)
            page[position % self.block_size] = token

    def _sample(self, item: ScheduledRequest) -> list[int]:
        request = item.request
        n_known = request.num_computed_tokens + item.num_tokens - len(item.draft_token_ids)
        context = self.context(request, n_known + len(item.draft_token_ids))
        assert context[:n_known] == request.token_ids[:n_known], "a page does not hold what its sequence believes"
        assert item.samples == (n_known == len(request.token_ids))
        if not item.samples:
            return []
        sampled = [drawn(context[:n_known], request.eos_allowed)]
        for guess in item.draft_token_ids:
            if guess != sampled[-1]:
                break
            may_end = request.may_end_after(request.num_output_tokens + len(sampled))
            sampled.append(drawn(context[: n_known + len(sampled)], may_end))
        return sampled

    def context(self, request: Request, n_tokens: int) -> list[int]:
        """What the blocks of a request hold."""
        n_blocks = -(-n_tokens // self.block_size)
        return [token for block in request.block_ids[:n_blocks] for token in self.pages[block]][:n_tokens]
