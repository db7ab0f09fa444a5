"""Many decode steps at once: what the scheduler would do step by step while nothing but decoding can happen.

A stretch is foreseen when every running request decodes, nobody can be admitted, and the KV pool holds what the steps
need. It ends with the first request that is complete, so that each step of it has the same requests.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from engine_adapters.reference.executors.simulated import SimulatedExecutor, answer_tokens
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
    requests = scheduler.running
    n_seqs, config = len(requests), scheduler.config
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
    while (
        n_steps > 1 and _blocks_wanted(requests, n_steps, config.block_size) > scheduler.kv_cache.pool.num_free_blocks
    ):
        n_steps //= 2
    return Stretch(list(requests), _ends(executor, begin_ns, n_seqs, context, n_steps)) if n_steps > 1 else None


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
    n_steps, end_ns = len(stretch.end_ns), stretch.end_ns[-1]
    executor.n_steps += n_steps
    executor.busy_until_ns = end_ns
    steps_of_blocks = _block_steps(stretch.requests, n_steps, scheduler.config.block_size)
    last: list[ScheduledRequest] = []
    tokens: list[list[int]] = []
    for request in stretch.requests:
        n_known = len(request.token_ids)
        answer = answer_tokens(request, n_known, n_steps)
        if n_known + n_steps == len(request.prompt_token_ids) + request.max_tokens:
            last.append(ScheduledRequest(request, 1, True))
            tokens.append([answer.pop()])
        request.token_ids += answer
        scheduler.stats.generation_tokens += len(answer)
    _pass_blocks(scheduler, stretch.requests, steps_of_blocks)
    for request in stretch.requests:
        request.num_computed_tokens = len(request.token_ids) - 1
    return scheduler.update_from_output(SchedulerOutput(last), tokens, end_ns / 1e9) if last else []


def _block_steps(requests: Sequence[Request], n_steps: int, size: int) -> list[tuple[int, int, int, int]]:
    """When the steps would ask for a block or complete one, in their order: (step, what, place, tokens computed)."""
    found = []
    for place, request in enumerate(requests):
        computed = request.num_computed_tokens
        for boundary in range(computed + -computed % size, computed + n_steps + 1, size):
            if boundary < computed + n_steps:
                found.append((boundary - computed, GROW, place, boundary))
            if boundary > computed:
                found.append((boundary - computed - 1, REGISTER, place, boundary))
    return sorted(found)


def _pass_blocks(scheduler: Scheduler, requests: Sequence[Request], steps: Sequence[tuple[int, int, int, int]]) -> None:
    for _, what, place, computed in steps:
        request = requests[place]
        request.num_computed_tokens = computed
        if what == REGISTER:
            scheduler.kv_cache.register_computed(request)
        elif not scheduler.kv_cache.grow(request, 1):
            raise AssertionError("a stretch was foreseen for which the KV pool is too small")
