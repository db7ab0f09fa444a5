"""Virtual time for the generator: the same sends, waits and records, against a server that is only computed.

Nothing waits. When every task of the event loop does, time jumps to what happens next: a deadline of a task, or an
event of the simulated server.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from time import sleep, time
from typing import Any, Protocol
from zlib import crc32

from engine_adapters.base import Request, StreamOutcome
from loadgen.collectors.records import PointLog, RequestRecord
from loadgen.collectors.run_folder import Writer
from loadgen.scenario.schedule import PlannedRequest, PointSchedule

FIRST_NS = 1_000_000_000  # not 0, which would read as "never"
MAX_BACKLOG = 2000
NEVER_NS = 1 << 62
OF_REAL_TIME = ("client_cpu_share", "loop_lag_p99_s", "loop_stall_max_s", "gc_pause_max_s", "gc_pauses")


class VirtualAnswer(Protocol):
    """A complete answer: when its tokens came, how many each time (empty: one), and prompt tokens out of a cache."""

    @property
    def number(self) -> int: ...
    @property
    def token_at_ns(self) -> array[int]: ...
    @property
    def counts(self) -> array[int]: ...
    @property
    def cached_tokens(self) -> int: ...


class VirtualServer(Protocol):
    """A server that is told the time; `advance` up to an instant comes before a `submit` or `abort` at it."""

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and answer together."""
        ...

    def next_at_ns(self) -> int | None:
        """When something happens next by itself."""
        ...

    def submit(self, number: int, at_ns: int, prompt_token_ids: list[int], max_tokens: int) -> None:
        """A request arrives."""
        ...

    def abort(self, number: int, at_ns: int) -> None:
        """A client goes away."""
        ...

    def advance(self, until_ns: int) -> Sequence[VirtualAnswer]:
        """Let everything happen up to an instant, or up to the first answers, which all end at one instant."""
        ...


@dataclass
class World:
    """The time of a simulation, and who waits in it. Implements `loadgen.generator.clock.Clock`."""

    server: VirtualServer
    at_ns: int = FIRST_NS
    began_wall_s: float = field(default_factory=time)
    _sleepers: list[tuple[int, int, asyncio.Future[None]]] = field(default_factory=list)
    _waiting: dict[int, asyncio.Future[VirtualAnswer]] = field(default_factory=dict)
    _order: count[int] = field(default_factory=count)

    def now_ns(self) -> int:
        """Nanoseconds of virtual time."""
        return self.at_ns

    def wall_s(self) -> float:
        """UTC epoch seconds, as if the simulation had taken its time."""
        return self.began_wall_s + (self.at_ns - FIRST_NS) / 1e9

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        """Return at that very instant."""
        if deadline_ns <= self.at_ns:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (deadline_ns, next(self._order), future))
        await future

    sleep_coarse_until_ns = sleep_until_ns

    async def answer(self, prompt_token_ids: list[int], max_tokens: int) -> VirtualAnswer:
        """Send a request now and wait for the end of its answer; a cancelled one is aborted on the server."""
        number = next(self._order)
        future: asyncio.Future[VirtualAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self.server.submit(number, self.at_ns, prompt_token_ids, max_tokens)
        try:
            return await future
        except asyncio.CancelledError:
            if self._waiting.pop(number, None) is not None:
                self.server.abort(number, self.at_ns)
            raise

    def jump(self, timeout_s: float | None) -> None:
        """Go to the next instant at which a task has something to do, at most `timeout_s` ahead."""
        limit_ns = NEVER_NS if timeout_s is None else self.at_ns + max(1, math.ceil(timeout_s * 1e9))
        if self._sleepers:
            limit_ns = min(limit_ns, self._sleepers[0][0])
        answers = self.server.advance(limit_ns)
        if not answers and limit_ns == NEVER_NS:
            raise RuntimeError("every task of the simulation waits, and nothing is going to happen")
        self.at_ns = answers[0].token_at_ns[-1] if answers else limit_ns
        for answer in answers:
            _wake(self._waiting.pop(answer.number), answer)
        while self._sleepers and self._sleepers[0][0] <= self.at_ns:
            _wake(heapq.heappop(self._sleepers)[2], None)


def _wake(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


class _Jumps(selectors.DefaultSelector):
    """Where an event loop would wait for its sockets, time jumps instead; there are no sockets."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Jump, unless tasks are ready."""
        if timeout is None or timeout > 0:
            self._world.jump(timeout)
        return []


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose timers run in virtual time."""

    def __init__(self, world: World) -> None:
        super().__init__(_Jumps(world))
        self._world = world

    def time(self) -> float:
        """Seconds of virtual time."""
        return self._world.at_ns / 1e9


def loop_factory(world: World) -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the event loop in which `world` passes."""
    return lambda: _Loop(world)


class SimulatedAdapter:
    """An Adapter without a network: a body says how long the prompt and the answer are, see `bodies`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def encode(self, request: Request) -> bytes:
        """A prompt of one token a word."""
        return _body(len(request.prompt.split()), request.max_tokens, 0, 0, crc32(request.prompt.encode()))

    async def stream(self, body: bytes, request_id: str, outcome: StreamOutcome) -> None:
        """Wait for the answer and fill `outcome` with its instants, which are exact."""
        world = self._world
        n_prompt, n_output, n_prefix, group, content = map(int, body.split())
        outcome.sent_at_ns = world.at_ns
        if n_prompt + n_output > world.server.max_model_len:
            outcome.http_status, outcome.stream_end_at_ns = 400, world.at_ns
            outcome.fail("http_status", f"{n_prompt + n_output} tokens exceed max_model_len")
            return
        answer = await world.answer(prompt_tokens(n_prompt, n_prefix, group, content), n_output)
        _fill(outcome, answer, n_prompt, n_output)

    async def warm(self, n_connections: int) -> None:
        """There are no connections."""

    async def close(self) -> None:
        """There is nothing to close."""


def _fill(outcome: StreamOutcome, answer: VirtualAnswer, n_prompt: int, n_output: int) -> None:
    at_ns = answer.token_at_ns
    outcome.http_status, outcome.finish_reason = 200, "length"
    outcome.headers_at_ns = outcome.first_token_at_ns = outcome.first_answer_at_ns = at_ns[0]
    outcome.last_token_at_ns = outcome.stream_end_at_ns = at_ns[-1]
    outcome.read_at_ns = at_ns
    outcome.read_events, outcome.read_bytes = _equal(1, len(at_ns)), _equal(0, len(at_ns))
    outcome.read_tokens = answer.counts
    outcome.n_token_events = len(at_ns)
    outcome.prompt_tokens, outcome.cached_tokens, outcome.completion_tokens = n_prompt, answer.cached_tokens, n_output


@lru_cache(maxsize=4096)
def _equal(value: int, n: int) -> array[int]:
    """`n` equal values, one array for all answers of that length: nobody changes them."""
    return array("i", [value]) * n


def bodies(plan: PointSchedule) -> list[bytes]:
    """What stands for each request of the plan: its lengths, and what tells equal prompts from different ones."""
    return [_body_of(planned, plan.point) for planned in plan.requests]


def _body_of(planned: PlannedRequest, point: int) -> bytes:
    content = crc32(planned.text.encode()) if planned.text is not None else (point << 24) + planned.index
    group = planned.prefix_group or 0
    return _body(planned.prompt_tokens, planned.output_tokens, planned.prefix_tokens, group, content)


def _body(n_prompt: int, n_output: int, n_prefix: int, group: int, content: int) -> bytes:
    return b"%d %d %d %d %d" % (n_prompt, n_output, n_prefix, group, content)


def prompt_tokens(n_prompt: int, n_prefix: int, group: int, content: int) -> list[int]:
    """A prompt's token ids: equal where prompts share a prefix, different from the first token behind it on."""
    own = n_prompt - n_prefix
    return [-1 - group] * n_prefix + [content] * min(own, 1) + [0] * (own - 1)


class UntimedSink:
    """Passes records on to a run folder and waits for its disk; what the generator's own machine did is no part of a
    simulated run."""

    backlog_max, backlog_limit, lag_max_s = 0, 0, 0.0

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def record(self, record: RequestRecord) -> None:
        """Take one record."""
        self._writer.record(record)
        while self._writer.backlog > MAX_BACKLOG:
            sleep(0.001)

    def end_point(self, log: PointLog) -> None:
        """Take a point's log without the figures that belong to real time."""
        probes: dict[str, Any] = dict.fromkeys(OF_REAL_TIME)
        self._writer.end_point(replace(log, writer_lag_max_s=0.0, **probes))
