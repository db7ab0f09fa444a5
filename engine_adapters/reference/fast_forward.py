"""Many decode steps at once: what the scheduler would do step by step while nothing but decoding can happen.

A stretch is foreseen when every running request decodes, nobody can be admitted, and the KV pool holds what the steps
need. Requests may end in it. The scheduler hears of all that only when the stretch is booked, in the order of steps.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine_adapters.reference.executors.simulated import TEXT, SimulatedExecutor, text_start
from engine_adapters.reference.request import Request
from engine_adapters.reference.scheduler import ScheduledRequest, Scheduler, SchedulerOutput

LONGEST = 32  # steps; an arrival throws away what was foreseen behind it
GROW, UPDATE = 0, 1  # the two halves of a step: blocks for everybody, then the results of everybody
REGISTER, END = 0, 1

# When, which half, whose turn in it, what, and how many of the request's tokens are computed by then.
Change = tuple[int, int, int, int, int]


@dataclass(slots=True)
class Stretch:
    """Steps that only decode; the i-th ends at `end_ns[i]`. `ends`: (step, request), sorted, of those that it ends."""

    requests: list[Request]
    end_ns: array[int]
    ends: list[tuple[int, Request]]

    def cut(self, n_steps: int) -> None:
        """Keep the first steps only."""
        del self.end_ns[n_steps:]
        while self.ends and self.ends[-1][0] >= len(self.end_ns):
            self.ends.pop()


def foresee(scheduler: Scheduler, executor: SimulatedExecutor, begin_ns: int) -> Stretch | None:
    """The steps from `begin_ns` on that only decode; None when the next step may be any other. Changes nothing."""
    requests, config = scheduler.running, scheduler.config
    if not 0 < len(requests) <= config.max_num_batched_tokens or config.num_speculative_tokens:
        return None
    if scheduler.waiting and len(requests) < config.max_num_seqs:
        return None
    context, lefts = 0, []
    for request in requests:
        computed, n_known = request.num_computed_tokens, len(request.token_ids)
        if n_known - computed != 1:
            return None
        context += computed
        lefts.append(len(request.prompt_token_ids) + request.max_tokens - n_known)
    # Who waits may come in when somebody ends: then the stretch ends there.
    n_steps = min(LONGEST, min(lefts) if scheduler.waiting else max(lefts))
    n_steps = _that_fit(scheduler, n_steps)
    ends = [(left - 1, place) for place, left in enumerate(lefts) if left <= n_steps]
    stretch = Stretch(requests.copy(), array("q"), [(step, requests[place]) for step, place in sorted(ends)])
    stretch.end_ns.extend(_instants(executor, begin_ns, stretch, context, n_steps))
    return stretch


def _that_fit(scheduler: Scheduler, n_steps: int) -> int:
    """Fewer steps where the KV pool can't hold as many; halved until it can, though 1 may need a preemption."""
    size, n_free = scheduler.config.block_size, scheduler.pool.num_free_blocks
    if n_free >= len(scheduler.running) * (n_steps // size + 1):  # more than any of them can want
        return n_steps
    while n_steps > 0 and _blocks_wanted(scheduler.running, n_steps, size) > n_free:
        n_steps //= 2
    return n_steps


def _blocks_wanted(requests: Sequence[Request], n_steps: int, block_size: int) -> int:
    return sum(max(0, -(-(r.num_computed_tokens + n_steps) // block_size) - len(r.block_ids)) for r in requests)


def _instants(executor: SimulatedExecutor, at_ns: int, stretch: Stretch, context: int, n_steps: int) -> Iterator[int]:
    """When each step ends: contexts grow by a token a step, and those that have ended are left out."""
    n_seqs, ends = len(stretch.requests), iter([*stretch.ends, (n_steps, None)])
    next_end, ending = next(ends)
    for step in range(n_steps):
        at_ns += executor.raw_ns(n_seqs, n_seqs, n_seqs, context, context + n_seqs, executor.n_steps + step)
        yield at_ns
        context += n_seqs
        while step == next_end and ending is not None:
            n_seqs, context = n_seqs - 1, context - (ending.num_computed_tokens + step + 1)
            next_end, ending = next(ends)


def book(scheduler: Scheduler, executor: SimulatedExecutor, stretch: Stretch) -> None:
    """Do to the scheduler and its requests what the steps of the stretch would have done, in their order."""
    n_steps = len(stretch.end_ns)
    executor.n_steps += n_steps
    executor.busy_until_ns = stretch.end_ns[-1]
    last_steps = {id(request): step for step, request in stretch.ends}
    changes: list[Change] = []
    for place, request in enumerate(stretch.requests):
        last = last_steps.get(id(request), n_steps)
        _add_tokens(scheduler, request, min(last, n_steps))
        changes += _changes(request, place, min(last + 1, n_steps), last < n_steps, scheduler.config.block_size)
    for step, half, place, what, computed in sorted(changes):
        request = stretch.requests[place]
        request.num_computed_tokens = computed
        if half == GROW:
            if not scheduler.kv_cache.grow(request, 1):
                raise AssertionError("a stretch was foreseen for which the KV pool is too small")
        elif what == REGISTER:
            scheduler.kv_cache.register_computed(request)
        else:
            _end(scheduler, request, stretch.end_ns[step])
    for request in scheduler.running:
        request.num_computed_tokens = len(request.token_ids) - 1


def _add_tokens(scheduler: Scheduler, request: Request, n_tokens: int) -> None:
    """The next tokens of an answer, but for one that ends it."""
    known = request.token_ids
    start = text_start(request, len(known))
    known += TEXT[start : start + n_tokens]
    scheduler.stats.generation_tokens += n_tokens


def _changes(request: Request, place: int, n_steps: int, ends: bool, size: int) -> Iterator[Change]:
    """When a request's steps ask for a block, complete one, or end it."""
    computed = request.num_computed_tokens
    for boundary in range(computed + -computed % size, computed + n_steps + 1, size):
        if boundary < computed + n_steps:
            yield boundary - computed, GROW, place, 0, boundary
        if boundary > computed and not (ends and boundary == computed + n_steps):
            yield boundary - computed - 1, UPDATE, place, REGISTER, boundary
    if ends:
        yield n_steps - 1, UPDATE, place, END, computed + n_steps - 1


def _end(scheduler: Scheduler, request: Request, at_ns: int) -> None:
    """Book the last token as a step books it, with all that follows from an end."""
    start = text_start(request, len(request.token_ids))
    scheduler.update_from_output(SchedulerOutput([ScheduledRequest(request, 1, True)]), [[TEXT[start]]], at_ns / 1e9)
