"""Many decode steps at once: what the scheduler would do step by step while nothing but decoding can happen.

A stretch is foreseen when every running request decodes, nobody can be admitted, and the KV pool holds what the steps
need. It ends with the first request that is complete, so that each step of it has the same requests.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from engine_adapters.reference.executors.simulated import TEXT, SimulatedExecutor, text_start
from engine_adapters.reference.request import Request, TokenOutput
from engine_adapters.reference.scheduler import ScheduledRequest, Scheduler, SchedulerOutput

LONGEST = 128  # steps; an arrival throws away what was foreseen behind it
GROW, REGISTER = 0, 1


@dataclass(slots=True)
class Stretch:
    """Steps of the same decoding requests; the i-th ends at `end_ns[i]`."""

    requests: list[Request]
    end_ns: array[int]

    def cut(self, n_steps: int) -> None:
        """Keep the first steps only."""
        del self.end_ns[n_steps:]


def foresee(scheduler: Scheduler, executor: SimulatedExecutor, begin_ns: int) -> Stretch | None:
    """The steps from `begin_ns` on that only decode; None when the next step may be any other. Changes nothing."""
    requests, config = scheduler.running, scheduler.config
    n_seqs = len(requests)
    if not 0 < n_seqs <= config.max_num_batched_tokens or config.num_speculative_tokens:
        return None
    if scheduler.waiting and n_seqs < config.max_num_seqs:
        return None
    n_steps, context = LONGEST, 0
    for request in requests:
        computed, n_known = request.num_computed_tokens, len(request.token_ids)
        if n_known - computed != 1:
            return None
        context += computed
        left = len(request.prompt_token_ids) + request.max_tokens - n_known
        if left < n_steps:
            n_steps = left
    n_steps = _that_fit(scheduler, n_steps)
    return Stretch(requests.copy(), _ends(executor, begin_ns, n_seqs, context, n_steps)) if n_steps > 1 else None


def _that_fit(scheduler: Scheduler, n_steps: int) -> int:
    """Fewer steps where the KV pool can't hold as many; halved until it can."""
    size, n_free = scheduler.config.block_size, scheduler.pool.num_free_blocks
    if n_free >= len(scheduler.running) * (n_steps // size + 1):  # more than any of them can want
        return n_steps
    while n_steps > 1 and _blocks_wanted(scheduler.running, n_steps, size) > n_free:
        n_steps //= 2
    return n_steps


def _blocks_wanted(requests: Sequence[Request], n_steps: int, block_size: int) -> int:
    return sum(max(0, -(-(r.num_computed_tokens + n_steps) // block_size) - len(r.block_ids)) for r in requests)


def _ends(executor: SimulatedExecutor, at_ns: int, n_seqs: int, context: int, n_steps: int) -> array[int]:
    """When each step ends: contexts grow by one token a step."""
    ends = array("q")
    for step in range(executor.n_steps, executor.n_steps + n_steps):
        at_ns += executor.raw_ns(n_seqs, n_seqs, n_seqs, context, context + n_seqs, step)
        ends.append(at_ns)
        context += n_seqs
    return ends


def book(scheduler: Scheduler, executor: SimulatedExecutor, stretch: Stretch) -> list[TokenOutput]:
    """Do to the requests what the steps of the stretch would have done; the outputs of those that it completes."""
    requests, n_steps, end_ns = stretch.requests, len(stretch.end_ns), stretch.end_ns[-1]
    executor.n_steps += n_steps
    executor.busy_until_ns = end_ns
    _pass_blocks(scheduler, requests, n_steps)
    completed: list[ScheduledRequest] = []
    tokens: list[list[int]] = []
    for request in requests:
        request.num_computed_tokens = len(request.token_ids) - 1
        if len(request.token_ids) == len(request.prompt_token_ids) + request.max_tokens:
            # The last token is booked as a step books it, with all that follows from an end.
            request.num_computed_tokens -= 1
            tokens.append([request.token_ids.pop()])
            completed.append(ScheduledRequest(request, 1, True))
    scheduler.stats.generation_tokens += len(requests) * n_steps - len(completed)
    return scheduler.update_from_output(SchedulerOutput(completed), tokens, end_ns / 1e9) if completed else []


def _pass_blocks(scheduler: Scheduler, requests: Sequence[Request], n_steps: int) -> None:
    """Append the tokens, and ask for blocks and complete them in the order in which the steps would have."""
    size, steps = scheduler.config.block_size, []
    for place, request in enumerate(requests):
        known, computed = request.token_ids, request.num_computed_tokens
        start = text_start(request, len(known))
        known += TEXT[start : start + n_steps]
        boundary = computed + -computed % size
        while boundary <= computed + n_steps:
            if boundary < computed + n_steps:
                steps.append((boundary - computed, GROW, place, boundary))
            if boundary > computed:
                steps.append((boundary - computed - 1, REGISTER, place, boundary))
            boundary += size
    for _, what, place, computed in sorted(steps):
        request = requests[place]
        request.num_computed_tokens = computed
        if what == REGISTER:
            scheduler.kv_cache.register_computed(request)
        elif not scheduler.kv_cache.grow(request, 1):
            raise AssertionError("a stretch was foreseen for which the KV pool is too small")
