"""Decides what each engine step computes: continuous batching with chunked prefill, first come first served.

Pure Python, no arrays, no clock. There is no prefill phase: a request simply has tokens that are not computed yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine_adapters.reference.block_pool import BlockPool
from engine_adapters.reference.config import EngineConfig
from engine_adapters.reference.request import FinishReason, Request, TokenOutput


class ScheduledRequest(NamedTuple):
    """The next `num_tokens` tokens of a request, from `request.num_computed_tokens` on; its blocks are `block_ids`.

    The last `len(draft_token_ids)` of them are guesses at what follows `request.token_ids`, to be verified. `samples`
    when the known tokens are computed to their end, so that at least one token follows.
    """

    request: Request
    num_tokens: int
    samples: bool
    draft_token_ids: Sequence[int] = ()

    @property
    def is_decode(self) -> bool:
        """Whether it computes one known token (and its drafts), as opposed to a prefill chunk of several."""
        return self.num_tokens - len(self.draft_token_ids) == 1


class SchedulerOutput(NamedTuple):
    """One step's work in the order of admission, what was admitted for it and what was preempted for it."""

    scheduled: list[ScheduledRequest]
    admitted: Sequence[Request] = ()
    preempted: Sequence[Request] = ()

    @property
    def total_num_scheduled_tokens(self) -> int:
        """Tokens that this step computes."""
        return sum(item.num_tokens for item in self.scheduled)

    @property
    def num_decodes(self) -> int:
        """Requests of which it computes one known token."""
        return sum(item.is_decode for item in self.scheduled)

    @property
    def num_prefills(self) -> int:
        """Requests of which it computes a chunk of several."""
        return len(self.scheduled) - self.num_decodes

    @property
    def block_tables(self) -> list[list[int]]:
        """KV blocks of each scheduled request, in the order of its tokens."""
        return [item.request.block_ids for item in self.scheduled]


# Guesses at most so many tokens that follow a request's tokens; fewer or none when it has no idea.
Drafter = Callable[[Request, int], Sequence[int]]


def no_draft(request: Request, n_tokens: int) -> Sequence[int]:
    """Guesses nothing."""
    return ()


@dataclass(slots=True)
class SchedulerStats:
    """Counters since the start; each request ends in exactly one `finished` count."""

    num_preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[FinishReason, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0})


class Scheduler:
    """Holds the waiting and running requests and the KV blocks between them."""

    def __init__(self, config: EngineConfig, eos_token_id: int, draft: Drafter = no_draft) -> None:
        self.config = config
        self.draft = draft
        self.eos_token_id = eos_token_id
        self.pool = BlockPool(config.num_blocks)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        self.stats = SchedulerStats()

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return bool(self.requests)

    def add(self, request: Request) -> None:
        """Queue a request; raises ValueError for one that could never fit."""
        if len(request.prompt_token_ids) + request.max_tokens > self.config.max_model_len:
            raise ValueError("prompt and max_tokens exceed max_model_len")
        self.requests[request.request_id] = request
        self.waiting.append(request)
        self.stats.prompt_tokens += len(request.prompt_token_ids)

    def abort(self, request_id: str, reason: FinishReason = "abort") -> None:
        """End a request now, whatever it is doing; no effect on one that has ended."""
        request = self.requests.get(request_id)
        if request is None:
            return
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._end(request, reason)

    def schedule(self, now_s: float = 0.0) -> SchedulerOutput:
        """The next step's work: running requests first, then waiting ones while tokens and blocks last.

        Nothing is admitted in a step that had to preempt: it would soon be preempted itself, its work done for nothing.
        """
        budget = self.config.max_num_batched_tokens
        preemptions_before = self.stats.num_preemptions
        scheduled = self._schedule_running(budget)
        budget -= sum(item.num_tokens for item in scheduled)
        if self.stats.num_preemptions == preemptions_before:
            scheduled += self._admit_waiting(budget)
        return SchedulerOutput(scheduled)

    def update_from_output(
        self, output: SchedulerOutput, token_ids: Sequence[list[int]], now_s: float = 0.0
    ) -> list[TokenOutput]:
        """Book one step's results: the tokens of each request that sampled, and the ends that follow from them."""
        results = []
        for item, sampled in zip(output.scheduled, token_ids, strict=True):
            item.request.num_computed_tokens += item.num_tokens
            if sampled:
                results.append(self._append(item.request, sampled[0]))
        if any(item.request.finish_reason for item in output.scheduled):
            self.running = [request for request in self.running if request.finish_reason is None]
        return results

    def _schedule_running(self, budget: int) -> list[ScheduledRequest]:
        scheduled: list[ScheduledRequest] = []
        while budget > 0 and len(scheduled) < len(self.running):
            request = self.running[len(scheduled)]
            num_tokens = min(request.num_uncomputed_tokens, budget)
            if not self._allocate_or_preempt(request, num_tokens):
                break
            scheduled.append(self._item(request, num_tokens))
            budget -= num_tokens
        return scheduled

    def _admit_waiting(self, budget: int) -> list[ScheduledRequest]:
        admitted: list[ScheduledRequest] = []
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            num_tokens = min(request.num_uncomputed_tokens, budget)
            if not self._allocate(request, num_tokens):
                break
            self.running.append(self.waiting.popleft())
            admitted.append(self._item(request, num_tokens))
            budget -= num_tokens
        return admitted

    def _item(self, request: Request, num_tokens: int) -> ScheduledRequest:
        return ScheduledRequest(request, num_tokens, num_tokens == request.num_uncomputed_tokens)

    def _allocate(self, request: Request, num_tokens: int) -> bool:
        """Give `request` the blocks that its next `num_tokens` need; False and nothing taken if there are too few."""
        num_blocks = -(-(request.num_computed_tokens + num_tokens) // self.config.block_size)
        blocks = self.pool.allocate(num_blocks - len(request.block_ids))
        if blocks is None:
            return False
        request.block_ids += blocks
        return True

    def _allocate_or_preempt(self, request: Request, num_tokens: int) -> bool:
        """Like _allocate, at the cost of the last admitted requests; False when that is `request` itself.

        Those scheduled in this step stand before `request`, so none of them can be preempted. The oldest request
        can take every block and fits by itself, so it always advances: no deadlock.
        """
        while not self._allocate(request, num_tokens):
            last = self.running.pop()
            self._preempt(last)
            if last is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        """Take a request's blocks and queue it first; its tokens are kept and computed again later."""
        self._free(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.stats.num_preemptions += 1
        self.waiting.appendleft(request)

    def _append(self, request: Request, token_id: int) -> TokenOutput:
        """Book one sampled token. An end-of-sequence token ends the answer and is no part of it."""
        if token_id == self.eos_token_id and request.eos_allowed:
            self._end(request, "stop")
            return TokenOutput(request, [], "stop")
        request.token_ids.append(token_id)
        self.stats.generation_tokens += 1
        if request.num_output_tokens >= request.max_tokens:
            self._end(request, "length")
        return TokenOutput(request, [token_id], request.finish_reason)

    def _end(self, request: Request, reason: FinishReason) -> None:
        self._free(request)
        request.finish_reason = reason
        self.stats.finished[reason] += 1
        del self.requests[request.request_id]

    def _free(self, request: Request) -> None:
        self.pool.release(request.block_ids)
        request.block_ids = []
