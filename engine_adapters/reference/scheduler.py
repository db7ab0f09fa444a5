"""Decides what each engine step computes: continuous batching with chunked prefill and recompute preemption.

Pure Python, no arrays, no clock. There is no prefill phase: a request simply has tokens that are not computed yet.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine_adapters.reference.block_pool import BlockPool
from engine_adapters.reference.config import EngineConfig
from engine_adapters.reference.kv_cache import KVCacheManager
from engine_adapters.reference.request import FinishReason, Rank, Request, TokenOutput
from engine_adapters.reference.request_queue import RequestQueue


@dataclass(slots=True, eq=False)
class ScheduledRequest:
    """The next `num_tokens` tokens of a request, from `request.num_computed_tokens` on; its blocks are `block_ids`.

    The last `len(draft_token_ids)` of them are guesses at what follows `request.token_ids`, to be verified. `samples`
    when the known tokens are computed to their end, so that at least one token follows.
    """

    request: Request
    num_tokens: int
    samples: bool
    draft_token_ids: Sequence[int] = ()

    def without_drafts(self) -> ScheduledRequest:
        """The same without the guesses."""
        return ScheduledRequest(self.request, self.num_tokens - len(self.draft_token_ids), self.samples)

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
    """Counters since the start; each request ends in exactly one `finished` count.

    prefix_cache_queries and prefix_cache_hits are tokens, of first admissions only: what a preempted request finds of
    its own is no hit that a client would feel.
    """

    num_preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    finished: dict[FinishReason, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0})


class Scheduler:
    """Holds the waiting and the running requests, both in the order of their rank.

    `now_s` is the caller's clock; the scheduler only writes it onto requests.
    """

    def __init__(self, config: EngineConfig, eos_token_ids: frozenset[int], draft: Drafter = no_draft) -> None:
        self.config = config
        self.eos_token_ids = eos_token_ids
        self.draft = draft
        self.kv_cache = KVCacheManager(config)
        self.waiting = RequestQueue()
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        self.stats = SchedulerStats()
        self._num_arrived = 0

    @property
    def pool(self) -> BlockPool:
        """The KV blocks."""
        return self.kv_cache.pool

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return bool(self.requests)

    def check_fits(self, request: Request) -> None:
        """Raise ValueError for a request that could never be served."""
        if not request.prompt_token_ids or request.max_tokens < 1:
            raise ValueError("a request needs a prompt and max_tokens of at least 1")
        if request.num_tokens_asked > self.config.max_model_len:
            raise ValueError("prompt and max_tokens exceed max_model_len")

    def add(self, request: Request, now_s: float = 0.0) -> None:
        """Queue a request; raises ValueError for one that could never fit, or whose id is taken."""
        self.check_fits(request)
        if request.request_id in self.requests:
            raise ValueError(f"there is a request {request.request_id} already")
        if not request.ignore_eos:
            request.end_token_ids |= self.eos_token_ids
        request.rank = (request.priority if self.config.policy == "priority" else 0, self._num_arrived)
        request.arrived_at_s = now_s
        self._num_arrived += 1
        self.requests[request.request_id] = request
        self.waiting.push(request)
        self.stats.prompt_tokens += len(request.prompt_token_ids)

    def abort(self, request_id: str, reason: FinishReason = "abort", now_s: float = 0.0) -> Request | None:
        """End a request now, between two steps; None and no effect when it has ended."""
        request = self.requests.get(request_id)
        if request is None:
            return None
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.discard(request)
        self._end(request, reason, now_s)
        return request

    def schedule(self, now_s: float = 0.0) -> SchedulerOutput:
        """The next step's work: running requests first, then waiting ones while tokens and blocks last.

        Nothing is admitted in a step that had to preempt: it would soon be preempted itself, its work done for nothing.
        """
        scheduled, preempted, budget = self._schedule_running(self.config.max_num_batched_tokens)
        admitted = [] if preempted else self._admit_waiting(budget, now_s)
        return SchedulerOutput(scheduled + admitted, [item.request for item in admitted], preempted)

    def update_from_output(
        self, output: SchedulerOutput, token_ids: Sequence[list[int]], now_s: float = 0.0
    ) -> list[TokenOutput]:
        """Book one step's results: the tokens of each request that sampled, and the ends that follow from them."""
        results, num_requests, size = [], len(self.requests), self.config.block_size
        for item, sampled in zip(output.scheduled, token_ids, strict=True):
            request, num_tokens = item.request, item.num_tokens
            if item.draft_token_ids:
                num_tokens -= self._count_drafts(request, len(item.draft_token_ids), len(sampled) - 1)
            request.num_computed_tokens += num_tokens
            if request.num_computed_tokens % size < num_tokens:  # it has come past the end of a block
                self.kv_cache.register_computed(request)
            if item.samples:
                results.append(self._append(request, sampled, now_s))
        if len(self.requests) < num_requests:
            self.running = [request for request in self.running if request.finish_reason is None]
        return results

    def _schedule_running(self, budget: int) -> tuple[list[ScheduledRequest], list[Request], int]:
        """Work for the running requests, whom it preempted for that, and what is left of the budget."""
        scheduled: list[ScheduledRequest] = []
        preempted: list[Request] = []
        for request in self.running:  # preemption shortens the list at its end, and the loop follows
            if budget <= 0:
                break
            item = self._next_tokens(request, budget)
            while not self.kv_cache.grow(request, item.num_tokens):
                if item.draft_token_ids:
                    item = item.without_drafts()
                else:
                    preempted.append(self._preempt_last())
                    if preempted[-1] is request:
                        return scheduled, preempted, budget
            scheduled.append(item)
            budget -= item.num_tokens
        return scheduled, preempted, budget

    def _next_tokens(self, request: Request, budget: int) -> ScheduledRequest:
        """A chunk of a prefill, or one token of a decode and what is guessed to follow it."""
        uncomputed = len(request.token_ids) - request.num_computed_tokens
        if uncomputed > 1:
            num_tokens = self._chunk(uncomputed, budget)
            return ScheduledRequest(request, num_tokens, num_tokens == uncomputed)
        if not self.config.num_speculative_tokens:
            return ScheduledRequest(request, 1, True)
        draft = self._draft(request, budget - 1)
        return ScheduledRequest(request, 1 + len(draft), True, draft)

    def _chunk(self, uncomputed: int, budget: int) -> int:
        limit = self.config.long_prefill_token_threshold or budget
        return min(uncomputed, budget, limit)

    def _draft(self, request: Request, budget: int) -> Sequence[int]:
        """Guesses to verify: no more than the answer may still get beside the one token that is certain."""
        room = request.max_tokens - request.num_output_tokens - 1
        num_tokens = min(self.config.num_speculative_tokens, room, budget)
        return self.draft(request, num_tokens)[:num_tokens] if num_tokens > 0 else ()

    def _preempt_last(self) -> Request:
        """Queue the last of the running requests again; its tokens are kept, its blocks are not.

        Those scheduled in this step stand before it, so none of them is hit. The first of all can take every block and
        fits by itself, so it always advances: no deadlock.
        """
        request = self.running.pop()
        self.kv_cache.free(request)
        request.num_preemptions += 1
        self.stats.num_preemptions += 1
        self.waiting.push(request)
        return request

    def _admit_waiting(self, budget: int, now_s: float) -> list[ScheduledRequest]:
        admitted: list[ScheduledRequest] = []
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            request = self.waiting.peek()
            prefix = self.kv_cache.cached_prefix(request)
            uncomputed = len(request.token_ids) - len(prefix) * self.config.block_size
            num_tokens = self._chunk(uncomputed, budget)
            if not self.kv_cache.admit(request, prefix, num_tokens):
                break
            insort(self.running, self.waiting.pop(), key=_rank)
            if request.first_scheduled_at_s is None:
                self._count_first_admission(request, now_s)
            admitted.append(ScheduledRequest(request, num_tokens, num_tokens == uncomputed))
            budget -= num_tokens
        return admitted

    def _count_first_admission(self, request: Request, now_s: float) -> None:
        request.first_scheduled_at_s = now_s
        request.num_cached_tokens = request.num_computed_tokens
        self.stats.prefix_cache_queries += len(request.prompt_token_ids)
        self.stats.prefix_cache_hits += request.num_cached_tokens

    def _count_drafts(self, request: Request, num_drafts: int, num_accepted: int) -> int:
        """Count verified guesses; how many of them were wrong."""
        request.num_draft_tokens += num_drafts
        request.num_accepted_tokens += num_accepted
        self.stats.num_drafts += 1
        self.stats.num_draft_tokens += num_drafts
        self.stats.num_accepted_tokens += num_accepted
        return num_drafts - num_accepted

    def _append(self, request: Request, sampled: list[int], now_s: float) -> TokenOutput:
        """Book the tokens that a request sampled, up to its end: what comes behind that is no part of the answer."""
        if not sampled:
            raise ValueError(f"no token was sampled for request {request.request_id}")
        if request.first_token_at_s is None:
            request.first_token_at_s = now_s
        num_before = num_output = len(request.token_ids) - len(request.prompt_token_ids)
        for token_id in sampled:
            if token_id in request.end_token_ids and num_output >= request.min_tokens:
                self._end(request, "stop", now_s)
                break
            request.token_ids.append(token_id)
            num_output += 1
            if num_output >= request.max_tokens:
                self._end(request, "length", now_s)
                break
        num_new = num_output - num_before
        self.stats.generation_tokens += num_new
        return TokenOutput(request, sampled if num_new == len(sampled) else sampled[:num_new], request.finish_reason)

    def _end(self, request: Request, reason: FinishReason, now_s: float) -> None:
        self.kv_cache.free(request)
        request.finish_reason = reason
        request.finished_at_s = now_s
        self.stats.finished[reason] += 1
        del self.requests[request.request_id]


def _rank(request: Request) -> Rank:
    return request.rank
