"""Runs the model: EngineCore is one step after another, EngineThread keeps stepping beside the asyncio loop."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from engine_adapters.reference import tokenizer
from engine_adapters.reference.admission import AdmissionControl
from engine_adapters.reference.config import EngineConfig
from engine_adapters.reference.executors.base import Executor, StepCost
from engine_adapters.reference.request import FinishReason, Request, TokenOutput
from engine_adapters.reference.scheduler import Drafter, Scheduler, SchedulerOutput, no_draft

KEY_TOKENS = 64


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


@dataclass(slots=True)
class Health:
    """How the executor is doing. `error` is what the last step raised; None once a step went well again."""

    error: str | None = None
    n_failed_steps: int = 0


class EngineCore:
    """A scheduler and an executor. Everything the engine does is `step`.

    `draft` guesses what follows a request's tokens, for speculation. `clock` (seconds) is what requests are stamped by
    and steps are timed by; a simulation gives its own. `observe` is told what each step brought and whom it ended, and
    of aborts, with the instant. Raises ValueError when the executor can't hold `num_blocks`.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        draft: Drafter = no_draft,
        clock: Callable[[], float] = time.perf_counter,
        eos_token_ids: frozenset[int] = tokenizer.BYTES.eos_token_ids,
    ) -> None:
        if config.num_blocks > executor.capacity():
            raise ValueError(f"num_blocks is {config.num_blocks}, but the executor holds {executor.capacity()}")
        self.config = config
        self.executor = executor
        self.clock = clock
        self.scheduler = Scheduler(config, eos_token_ids, draft)
        self.totals = StepTotals()
        self.health = Health()
        self.observe: Observer = unobserved

    def add(self, request: Request) -> None:
        """Queue a request; raises ValueError for one that could never fit."""
        self.scheduler.add(request, self.clock())

    def abort(self, request_id: str, reason: FinishReason = "abort") -> None:
        """End a request now, between two steps; no effect on one that has ended."""
        now_s = self.clock()
        request = self.scheduler.abort(request_id, reason, now_s)
        if request is not None:
            self.observe([TokenOutput(request, [], reason)], now_s)

    def step(self) -> list[TokenOutput]:
        """Choose what to compute, compute it, book the results; the new tokens and the requests that ended."""
        started_at_s = self.clock()
        output = self.scheduler.schedule(started_at_s)
        try:
            token_ids, cost = self.executor.execute(output), self.executor.step_cost(output)
        except Exception as error:
            return self._end_with_error(output, error)
        ended_at_s = self.clock()
        self.health.error = None
        self.totals.add(output, cost, ended_at_s - started_at_s)
        results = self.scheduler.update_from_output(output, token_ids, ended_at_s)
        self.observe(results, ended_at_s)
        return results

    def _end_with_error(self, output: SchedulerOutput, error: Exception) -> list[TokenOutput]:
        """The executor failed: end the requests of this step, whose KV cannot be trusted, and no others."""
        if self.health.error is None:  # one traceback for a row of failures
            traceback.print_exception(error)
        self.health.error = describe(error)
        self.health.n_failed_steps += 1
        for item in output.scheduled:
            item.request.error = self.health.error
            self.abort(item.request.request_id, "error")
        return [TokenOutput(item.request, [], "error") for item in output.scheduled]


def describe(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}"


class EngineDead(Exception):
    """The engine's own loop raised, so it computes nothing more. The text is the exception."""


class TokenStream:
    """The tokens of one request on their way to its handler; only the asyncio loop's thread touches it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, request: Request) -> None:
        self.request = request
        self.n_tokens_left = request.num_tokens_asked  # work that has not been done yet
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

    Only the thread touches the core's scheduler. What the loop wants done reaches it through an inbox that it empties
    before each step; a step's tokens reach the loop in one call. Every request that was let in ends once, as one
    finish reason in the scheduler's statistics; every other is counted by the admission control.

    `slowdown` > 1 stretches each pass of the thread by that factor: it sleeps, with the GIL free, before it hands
    over the step's tokens, so that TTFT and ITL both grow. The server's work on those tokens still overlaps the next
    step, as it does without a slowdown; it is not slowed itself.
    """

    def __init__(self, core: EngineCore, loop: asyncio.AbstractEventLoop, slowdown: float = 1.0) -> None:
        self.core = core
        self.admission = AdmissionControl(core.config, core.clock)
        self._loop = loop
        self._slowdown = slowdown
        self._sleep_debt_s = 0.0
        self._streams: dict[str, TokenStream] = {}  # the loop's view of what has not ended
        self._inbox: deque[Callable[[], object]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._dead: str | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def error(self) -> str | None:
        """What is wrong with the engine now; None when it is well."""
        return self._dead or self.core.health.error

    @property
    def n_unfinished(self) -> int:
        """Requests that were let in and have not ended."""
        return len(self._streams)

    def start(self) -> None:
        """Begin to step."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the current step and end; whatever is unfinished ends as aborted."""
        self._stopping = True
        self._wake.set()
        self._thread.join()
        self._empty_inbox()
        self._end_all("abort")

    def abort_all(self) -> int:
        """End whatever has not ended, and tell its handlers; how many there were."""
        unfinished = list(self._streams.items())
        for request_id, stream in unfinished:
            stream.push([], "abort")
            self.abort(request_id)
        return len(unfinished)

    def submit(self, request: Request) -> TokenStream:
        """Queue a request; its tokens come through the stream. Raises and queues nothing when it can't be served.

        Refused: not now. EngineDead: never again. ValueError: it could not fit, or its id is in use.
        """
        if self._dead is not None:
            raise EngineDead(self._dead)
        self.core.scheduler.check_fits(request)
        if request.request_id in self._streams:
            raise ValueError(f"request id {request.request_id} is in use")
        self.admission.enter(_same_again(request), request.num_tokens_asked)
        stream = self._streams[request.request_id] = TokenStream(self._loop, request)
        self._post(partial(self.core.add, request))
        return stream

    def abort(self, request_id: str, reason: FinishReason = "abort") -> None:
        """Stop computing a request and free its blocks; no effect on one that has ended."""
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            self.admission.leave(stream.request.num_tokens_asked)
            self._post(partial(self.core.abort, request_id, reason))

    def reset_prefix_cache(self) -> None:
        """Nothing that was computed before is found again."""
        self._post(self.core.scheduler.pool.forget_all)

    def _post(self, action: Callable[[], object]) -> None:
        """Have something done to the core by its thread, between two steps."""
        self._inbox.append(action)
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
            self._die(describe(error))

    def _empty_inbox(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def _sleep(self, duration_s: float) -> None:
        """Sleep exactly `duration_s` on average: what the system sleeps too long is taken off the next times."""
        self._sleep_debt_s += duration_s
        if self._sleep_debt_s > 0.0:
            started_at_s = time.perf_counter()
            time.sleep(self._sleep_debt_s)
            self._sleep_debt_s -= time.perf_counter() - started_at_s

    def _deliver(self, outputs: Sequence[TokenOutput]) -> None:
        n_tokens_done = 0
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                continue
            n_tokens_done += _work_off(stream, output)
            stream.push(output.token_ids, output.finish_reason)
            if output.finish_reason is not None:
                del self._streams[output.request_id]
                self.admission.leave(output.request.num_tokens_asked)
        self.admission.work_off(n_tokens_done)

    def _die(self, error: str) -> None:
        """The loop itself raised, so the scheduler can't be trusted: end every request with an error, refuse new ones.

        In the engine's thread, so the loop may submit meanwhile: what it still posts is never looked at.
        """
        self._dead = error
        self._end_all("error")
        self._loop.call_soon_threadsafe(self._end_streams)

    def _end_all(self, reason: FinishReason) -> None:
        for request_id in list(self.core.scheduler.requests):
            self.core.abort(request_id, reason)

    def _end_streams(self) -> None:
        for stream in self._streams.values():
            stream.request.error = self._dead
            stream.push([], "error")
            self.admission.leave(stream.request.num_tokens_asked)
        self._streams.clear()


def _work_off(stream: TokenStream, output: TokenOutput) -> int:
    """Count what a step did for a request; an answer that ends early leaves no work behind."""
    is_first = stream.n_tokens_left == output.request.num_tokens_asked
    n_tokens = len(output.token_ids) + (len(output.request.prompt_token_ids) if is_first else 0)
    if output.finish_reason is not None:
        n_tokens = stream.n_tokens_left
    stream.n_tokens_left -= n_tokens
    return n_tokens


def _same_again(request: Request) -> Hashable:
    """What a request and its retry have in common, and others hardly."""
    prompt = request.prompt_token_ids
    return request.max_tokens, len(prompt), tuple(prompt[:KEY_TOKENS]), tuple(prompt[-KEY_TOKENS:])
