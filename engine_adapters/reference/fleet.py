"""Many replicas in virtual time: a router, pools for prefill and decode, and one queue of what happens next."""

from __future__ import annotations

import heapq
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal

from engine_adapters.reference.config import EngineConfig
from engine_adapters.reference.deployment import Deployment
from engine_adapters.reference.engine import EngineCore
from engine_adapters.reference.executors.simulated import Noise, SimulatedExecutor, drafter
from engine_adapters.reference.request import Request
from engine_adapters.reference.virtual import Job, Replica, VirtualClock

RouterName = Literal["round_robin", "least_loaded", "prefix_aware"]
# A prefix-aware router leaves the replica that knows a prefix when it is this much busier than the mean.
BUSY_FACTOR, BUSY_SLACK = 1.5, 4
MAX_PREFIXES = 100_000
QUIET = Noise()

Router = Callable[[Request, Sequence[Replica]], int]


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer: instants of its token events, tokens of each (empty: one each), prompt tokens from a cache."""

    number: int
    token_at_ns: array[int]
    counts: array[int]
    cached_tokens: int


def round_robin() -> Router:
    """One after the other."""
    turns = count()
    return lambda request, replicas: next(turns) % len(replicas)


def least_loaded() -> Router:
    """The replica with the fewest unfinished requests; of several, the next one in turn."""
    turns = count()

    def choose(request: Request, replicas: Sequence[Replica]) -> int:
        loads, start = [replica.n_unfinished for replica in replicas], next(turns) % len(replicas)
        least = min(loads)
        return loads.index(least, start) if least in loads[start:] else loads.index(least)

    return choose


def prefix_aware(block_size: int) -> Router:
    """The replica that last got the prompt's first block, unless it is much busier than the mean; else the least
    loaded."""
    fallback, homes = least_loaded(), OrderedDict[tuple[int, ...], int]()

    def choose(request: Request, replicas: Sequence[Replica]) -> int:
        prefix = tuple(request.prompt_token_ids[:block_size])
        home = homes.pop(prefix, None)
        if home is not None:
            mean = sum(replica.n_unfinished for replica in replicas) / len(replicas)
            if replicas[home].n_unfinished > BUSY_FACTOR * mean + BUSY_SLACK:
                home = None
        homes[prefix] = fallback(request, replicas) if home is None else home
        if len(homes) > MAX_PREFIXES:
            homes.popitem(last=False)
        return homes[prefix]

    return choose


ROUTERS: dict[RouterName, Callable[[int], Router]] = {
    "round_robin": lambda block_size: round_robin(),
    "least_loaded": lambda block_size: least_loaded(),
    "prefix_aware": prefix_aware,
}


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """What a fleet is made of. With `prefill_replicas` above 0 prompts are computed there, and the KV is sent on."""

    deployment: Deployment
    engine: EngineConfig
    replicas: int = 1
    router: RouterName = "least_loaded"
    prefill_replicas: int = 0
    noise: Noise = QUIET
    skip: bool = True


@dataclass(frozen=True, slots=True)
class _Pool:
    replicas: list[Replica]
    route: Router


class Fleet:
    """Takes requests in order of time and says when their tokens come. Call `advance` up to an instant before `submit`.

    With a prefill pool, a request is computed there up to its first token, which is dropped; its KV then travels as
    long as the link takes, and a decode replica computes the last prompt token again and all that follows.
    """

    def __init__(self, config: FleetConfig) -> None:
        self.config = config
        self._events: list[tuple[int, int, Replica | Request]] = []  # a request is one whose KV arrives
        self._order = count()
        self._decode = self._pool("decode", config.replicas)
        self._prefill = self._pool("prefill", config.prefill_replicas)
        self._where: dict[str, Replica | None] = {}  # of each unfinished request; None while its KV travels
        self._prompts: dict[str, Request] = {}  # requests whose prompt is computed in the prefill pool
        self._cached: dict[str, int] = {}

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and answer together."""
        return self.config.engine.max_model_len

    @property
    def replicas(self) -> list[Replica]:
        """All engines, those of the prefill pool last."""
        return self._decode.replicas + self._prefill.replicas

    @property
    def n_steps(self) -> int:
        """Engine steps so far, over all replicas."""
        return sum(replica.n_steps for replica in self.replicas)

    @property
    def n_preemptions(self) -> int:
        """Preemptions so far, over all replicas."""
        return sum(replica.core.scheduler.stats.num_preemptions for replica in self.replicas)

    def next_at_ns(self) -> int | None:
        """When something happens next by itself; None while all replicas are idle."""
        return self._events[0][0] if self._events else None

    def submit(self, number: int, at_ns: int, prompt_token_ids: list[int], max_tokens: int) -> None:
        """A request that arrives at `at_ns`; `number`, which no other unfinished one has, comes back in its answer."""
        request = Request(str(number), prompt_token_ids, max_tokens, ignore_eos=True)
        if not self._prefill.replicas:
            self._place(self._decode, request, at_ns)
            return
        self._prompts[request.request_id] = request
        self._place(self._prefill, Request(request.request_id, prompt_token_ids, 1, ignore_eos=True), at_ns)

    def abort(self, number: int, at_ns: int) -> None:
        """Give up a request, wherever it is; no effect on one that has ended."""
        replica = self._where.pop(str(number), None)
        self._prompts.pop(str(number), None)
        if replica is not None:
            replica.abort(str(number), at_ns)
            self._watch(replica)

    def advance(self, until_ns: int) -> list[Answer]:
        """Let happen all that does up to `until_ns`, that instant included, or up to the first answers.

        The answers all end at one instant; `next_at_ns` tells whether there is more to come.
        """
        while self._events and self._events[0][0] <= until_ns:
            at_ns, _, event = heapq.heappop(self._events)
            if isinstance(event, Request):
                self._receive(event, at_ns)
            elif event.wake_at_ns == at_ns and (answers := self._wake(event, at_ns)):
                return answers
        return []

    def _wake(self, replica: Replica, at_ns: int) -> list[Answer]:
        ended = replica.wake()
        self._watch(replica)
        return [answer for job in ended if (answer := self._end(job, at_ns)) is not None]

    def _end(self, job: Job, at_ns: int) -> Answer | None:
        """The answer of a job that has ended; None when it was a prompt, whose KV now travels."""
        first = job.request
        request = self._prompts.pop(first.request_id, None)
        if request is None:
            del self._where[first.request_id]
            cached = self._cached.pop(first.request_id, first.num_cached_tokens)
            return Answer(int(first.request_id), job.token_at_ns, job.counts, cached)
        self._where[first.request_id] = None
        self._cached[first.request_id] = first.num_cached_tokens
        travels_ns = round(self.config.deployment.transfer_s(len(first.prompt_token_ids)) * 1e9)
        heapq.heappush(self._events, (at_ns + travels_ns, next(self._order), request))
        return None

    def _receive(self, request: Request, at_ns: int) -> None:
        """A prompt's KV has come: decode it, unless it was given up on the way."""
        if request.request_id in self._where:
            self._place(self._decode, request, at_ns)

    def _place(self, pool: _Pool, request: Request, at_ns: int) -> None:
        replica = pool.replicas[pool.route(request, pool.replicas)]
        self._where[request.request_id] = replica
        replica.submit(Job(request), at_ns, received=pool is self._decode and bool(self._prefill.replicas))
        self._watch(replica)

    def _watch(self, replica: Replica) -> None:
        """Remember when a replica wants to be woken; entries for instants that it no longer means are passed over."""
        if replica.wake_at_ns is not None:
            heapq.heappush(self._events, (replica.wake_at_ns, next(self._order), replica))

    def _pool(self, name: str, n_replicas: int) -> _Pool:
        engine = self.config.engine
        replicas = [self._replica(f"{name} {i}", name == "decode") for i in range(n_replicas)]
        return _Pool(replicas, ROUTERS[self.config.router](engine.block_size))

    def _replica(self, name: str, decodes: bool) -> Replica:
        config, engine, clock = self.config, self.config.engine, VirtualClock()
        speculation = config.deployment.speculation
        if decodes and config.prefill_replicas:
            # What comes computed takes no tokens of a step's budget, but the scheduler counts it.
            engine = replace(engine, max_num_batched_tokens=engine.capacity_tokens + engine.max_num_seqs)
        executor = SimulatedExecutor(config.deployment, engine.block_size, clock, config.noise, name=name)
        core = EngineCore(engine, executor, drafter(speculation), clock.now_s)
        return Replica(core, executor, clock, config.skip)
