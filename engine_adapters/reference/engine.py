"""Runs the model: EngineCore is one step after another, EngineThread keeps stepping beside the asyncio loop."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine_adapters.reference import tokenizer
from engine_adapters.reference.config import EngineConfig
from engine_adapters.reference.executors.base import Executor, StepCost
from engine_adapters.reference.request import FinishReason, Request, TokenOutput
from engine_adapters.reference.scheduler import Drafter, Scheduler, SchedulerOutput, no_draft


@dataclass(slots=True)
class StepTotals:
    """Sums over all steps so far: what a live bandwidth or compute fraction is derived from."""

    n_steps: int = 0
    n_tokens: int = 0
    busy_s: float = 0.0
    n_bytes: float = 0.0
    flops: float = 0.0

    def add(self, output: SchedulerOutput, cost: StepCost, took_s: float) -> None:
        """Count one step."""
        self.n_steps += 1
        self.n_tokens += output.total_num_scheduled_tokens
        self.busy_s += took_s
        self.n_bytes += cost.n_bytes
        self.flops += cost.flops


Observer = Callable[[Sequence[TokenOutput], float], None]


def unobserved(outputs: Sequence[TokenOutput], at_s: float) -> None:
    """Nobody counts."""


class EngineCore:
    """A scheduler and an executor. Everything the engine does is `step`.

    `draft` guesses what follows a request's tokens, for speculation. `clock` (seconds) is what requests are stamped by
    and steps are timed by; a simulation gives its own. Raises ValueError when the executor can't hold `num_blocks`.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        draft: Drafter = no_draft,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if config.num_blocks > executor.capacity():
            raise ValueError(f"num_blocks is {config.num_blocks}, but the executor holds {executor.capacity()}")
        self.config = config
        self.executor = executor
        self.clock = clock
        self.scheduler = Scheduler(config, tokenizer.EOS_ID, draft)
        self.totals = StepTotals()
        self.observe: Observer = unobserved  # told of each step's outputs, and of each abort as an output without tokens

    def add(self, request: Request) -> None:
        """Queue a request; raises ValueError for one that could never fit."""
        self.scheduler.add(request, self.clock())

    def abort(self, request_id: str, reason: FinishReason = "abort") -> None:
        """End a request now, between two steps; no effect on one that has ended."""
        request = self.scheduler.requests.get(request_id)
        if request is not None:
            self.scheduler.abort(request_id, reason, self.clock())
            self.observe([TokenOutput(request, [], reason)], self.clock())

    def step(self) -> list[TokenOutput]:
        """Choose what to compute, compute it, book the results; the new tokens and the requests that ended."""
        started_at_s = self.clock()
        output = self.scheduler.schedule(started_at_s)
        token_ids = self.executor.execute(output)
        ended_at_s = self.clock()
        self.totals.add(output, self.executor.step_cost(output), ended_at_s - started_at_s)
        outputs = self.scheduler.update_from_output(output, token_ids, ended_at_s)
        self.observe(outputs, ended_at_s)
        return outputs


class QueueFull(Exception):
    """The waiting queue is full; `retry_after_s` is when to try again."""

    retry_after_s = 1


class EngineDead(Exception):
    """A step raised: the engine computes nothing more. The text is the exception."""


class TokenStream:
    """The tokens of one request on their way to its handler; only the asyncio loop's thread touches it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._items: deque[tuple[list[int], FinishReason | None]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def push(self, token_ids: list[int], finish_reason: FinishReason | None) -> None:
        """Hand over tokens, the end, or both."""
        self._items.append((token_ids, finish_reason))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> tuple[list[int], FinishReason | None]:
        """The tokens of the next step (several under speculation, none at some ends) and, at the end, its reason."""
        while not self._items:
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._items.popleft()


class EngineThread:
    """Steps an EngineCore in its own thread, so that the event loop goes on reading and writing during a step.

    Only the thread touches the core's scheduler. Requests and aborts reach it through an inbox that it empties
    before each step; a step's tokens reach the loop in one call.

    `slowdown` > 1 stretches each pass of the thread by that factor: it sleeps, with the GIL free, before it hands
    over the step's tokens, so that TTFT and ITL both grow. The server's work on those tokens still overlaps the next
    step, as it does without a slowdown; it is not slowed itself.
    """

    def __init__(self, core: EngineCore, loop: asyncio.AbstractEventLoop, slowdown: float = 1.0) -> None:
        self.core = core
        self.error: str | None = None
        self._loop = loop
        self._slowdown = slowdown
        self._sleep_debt_s = 0.0
        self._streams: dict[str, TokenStream] = {}  # the loop's view of what has not ended
        self._inbox: deque[Request | tuple[str, FinishReason]] = deque()  # a pair ends the request of that id
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to step."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the current step and end; whatever is unfinished ends as aborted."""
        self._stopping = True
        self._wake.set()
        self._thread.join()
        for request_id in list(self.core.scheduler.requests):
            self.core.abort(request_id)

    def submit(self, request: Request) -> TokenStream:
        """Queue a request; its tokens come through the stream. Raises QueueFull or EngineDead and queues nothing."""
        if self.error is not None:
            raise EngineDead(self.error)
        config = self.core.config
        if len(self._streams) >= config.max_num_seqs + config.max_waiting:
            raise QueueFull
        stream = self._streams[request.request_id] = TokenStream(self._loop)
        self._post(request)
        return stream

    def abort(self, request_id: str, reason: FinishReason = "abort") -> None:
        """Stop computing a request and free its blocks; no effect on one that has ended."""
        if self._streams.pop(request_id, None) is not None:
            self._post((request_id, reason))

    @property
    def n_unfinished(self) -> int:
        """Requests that have not ended, as the event loop sees it."""
        return len(self._streams)

    def abort_all(self) -> int:
        """End whatever has not ended, and tell its handlers; how many there were."""
        unfinished = list(self._streams.items())
        for request_id, stream in unfinished:
            self.abort(request_id)
            stream.push([], "abort")
        return len(unfinished)

    def _post(self, message: Request | tuple[str, FinishReason]) -> None:
        self._inbox.append(message)
        self._wake.set()

    def _run(self) -> None:
        try:
            while not self._stopping:
                started_at_s = time.perf_counter()
                self._empty_inbox()
                if not self.core.scheduler.has_work:
                    self._wake.wait()
                    self._wake.clear()
                    continue
                outputs = self.core.step()
                self._sleep((self._slowdown - 1.0) * (time.perf_counter() - started_at_s))
                self._loop.call_soon_threadsafe(self._deliver, outputs)
        except Exception as error:
            traceback.print_exc()
            self._fail(f"{type(error).__name__}: {error}")

    def _empty_inbox(self) -> None:
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, Request):
                self.core.add(message)
            else:
                self.core.abort(*message)

    def _sleep(self, duration_s: float) -> None:
        """Sleep exactly `duration_s` on average: what the system sleeps too long is taken off the next times."""
        self._sleep_debt_s += duration_s
        if self._sleep_debt_s > 0.0:
            started_at_s = time.perf_counter()
            time.sleep(self._sleep_debt_s)
            self._sleep_debt_s -= time.perf_counter() - started_at_s

    def _deliver(self, outputs: Sequence[TokenOutput]) -> None:
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                continue
            stream.push(output.token_ids, output.finish_reason)
            if output.finish_reason is not None:
                del self._streams[output.request_id]

    def _fail(self, error: str) -> None:
        """A step raised: end every request with an error and refuse new ones."""
        self.error = error
        for request_id in list(self.core.scheduler.requests):
            self.core.abort(request_id, "error")
        self._loop.call_soon_threadsafe(self._fail_streams)

    def _fail_streams(self) -> None:
        for stream in self._streams.values():
            stream.push([], "error")
        self._streams.clear()
