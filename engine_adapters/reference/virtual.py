"""One engine in virtual time: the same core, stepped as fast as it goes, with a clock that jumps to each step's end.

What a step does is booked when it ends. Whatever arrives meanwhile waits for the next step, as behind a server.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

from engine_adapters.reference.engine import EngineCore
from engine_adapters.reference.executors.simulated import SimulatedExecutor
from engine_adapters.reference.fast_forward import Stretch, book, foresee
from engine_adapters.reference.request import Request, TokenOutput


class VirtualClock:
    """Nanoseconds that pass only when somebody sleeps."""

    def __init__(self) -> None:
        self.at_ns = 0

    def now_ns(self) -> int:
        """The present instant."""
        return self.at_ns

    def now_s(self) -> float:
        """The present instant in seconds."""
        return self.at_ns / 1e9

    def sleep_until_ns(self, at_ns: int) -> None:
        """Be there at once."""
        self.at_ns = max(self.at_ns, at_ns)


@dataclass(slots=True, eq=False)
class Job:
    """A request with the instants of its tokens: the i-th step that gave it any ended at `token_at_ns[i]`.

    counts: how many tokens each of these steps gave; empty while every one gave one.
    """

    request: Request
    token_at_ns: array[int] = field(default_factory=lambda: array("q"))
    counts: array[int] = field(default_factory=lambda: array("i"))

    def add(self, at_ns: int, n_tokens: int) -> None:
        """Book the tokens of one step."""
        if n_tokens != 1 or self.counts:
            self.counts = self.counts or array("i", [1]) * len(self.token_at_ns)
            self.counts.append(n_tokens)
        self.token_at_ns.append(at_ns)


class Replica:
    """An engine that is told the time: `wake` at `wake_at_ns`, and `submit` or `abort` at any instant before it.

    skip: steps that only decode are computed together, up to the first arrival or the first whose outcome is open;
    every instant and token is the same as step by step.
    """

    def __init__(self, core: EngineCore, executor: SimulatedExecutor, clock: VirtualClock, skip: bool = True) -> None:
        self.core = core
        self.executor = executor
        self.wake_at_ns: int | None = None
        self.n_steps = 0
        self._clock = clock
        self._skip = skip
        self._jobs: dict[str, Job] = {}
        self._inbox: deque[Request | str] = deque()  # a string is the id of a request to abort
        self._outputs: list[TokenOutput] = []  # of the step that ends at wake_at_ns
        self._stretch: Stretch | None = None  # or the steps that are under way
        self._n_ended = 0  # of the requests that the stretch completes

    @property
    def n_unfinished(self) -> int:
        """Requests that have come and not ended."""
        return len(self._jobs)

    def submit(self, job: Job, at_ns: int, received: bool = False) -> None:
        """Queue a request that arrives at `at_ns`; `received` with the KV of its prompt."""
        self._jobs[job.request.request_id] = job
        if received:
            self.executor.received.add(job.request.request_id)
        self._inbox.append(job.request)
        self._interrupt(at_ns)

    def abort(self, request_id: str, at_ns: int) -> None:
        """Give a request up: it is forgotten at once, and its blocks are free from the next step on."""
        if self._jobs.pop(request_id, None) is not None:
            self._inbox.append(request_id)
            self._interrupt(at_ns)

    def wake(self) -> list[Job]:
        """Book what ends now and begin what comes next; the jobs that have ended."""
        at_ns = self.wake_at_ns
        assert at_ns is not None
        self._clock.sleep_until_ns(at_ns)
        if self._stretch is not None:
            ended = self._ended_in(self._stretch, at_ns)
            if at_ns < self._stretch.end_ns[-1]:
                self.wake_at_ns = self._next_end_ns(self._stretch)
                return ended
            self._book_stretch(self._stretch)
        else:
            ended = self._book_step(at_ns)
        self.wake_at_ns = self._stretch = None
        self._begin(at_ns)
        return ended

    def _interrupt(self, at_ns: int) -> None:
        """Something has come in: an idle engine begins, a stretch ends with the step that is under way."""
        if self.wake_at_ns is None:
            self._begin(at_ns)
        elif self._stretch is not None:
            self._stretch.cut(bisect_right(self._stretch.end_ns, at_ns) + 1)
            self.wake_at_ns = self._next_end_ns(self._stretch)

    def _begin(self, at_ns: int) -> None:
        scheduler = self.core.scheduler
        self._clock.sleep_until_ns(at_ns)
        self._empty_inbox()
        if not scheduler.has_work:
            return
        self._stretch = foresee(scheduler, self.executor, at_ns) if self._skip else None
        if self._stretch is not None and self._stretch.end_ns:
            self.wake_at_ns = self._next_end_ns(self._stretch)
            return
        self._stretch = None
        self._outputs = self.core.step()
        if self.core.health.error:
            raise RuntimeError(f"the simulated executor failed: {self.core.health.error}")
        self.n_steps += 1
        self.wake_at_ns = self._clock.at_ns

    def _next_end_ns(self, stretch: Stretch) -> int:
        """When the next request of the stretch is complete, or else the stretch."""
        if self._n_ended < len(stretch.ends):
            return stretch.end_ns[stretch.ends[self._n_ended][0]]
        return stretch.end_ns[-1]

    def _ended_in(self, stretch: Stretch, at_ns: int) -> list[Job]:
        """The jobs whose requests the stretch completes by now."""
        ended = []
        while self._n_ended < len(stretch.ends):
            step, request = stretch.ends[self._n_ended]
            if stretch.end_ns[step] > at_ns:
                break
            self._n_ended += 1
            if (job := self._finished(request.request_id)) is not None:
                job.token_at_ns.extend(stretch.end_ns[: step + 1])
                ended.append(job)
        return ended

    def _book_stretch(self, stretch: Stretch) -> None:
        self.n_steps += len(stretch.end_ns)
        self._n_ended = 0
        book(self.core.scheduler, self.executor, stretch)
        for request in self.core.scheduler.running:
            if (job := self._jobs.get(request.request_id)) is not None:
                job.token_at_ns.extend(stretch.end_ns)

    def _book_step(self, at_ns: int) -> list[Job]:
        ended = []
        for output in self._outputs:
            request_id = output.request.request_id
            job = self._jobs.get(request_id)
            if job is not None and output.token_ids:
                job.add(at_ns, len(output.token_ids))
            if output.finish_reason is not None and (job := self._finished(request_id)) is not None:
                ended.append(job)
        self._outputs = []
        return ended

    def _finished(self, request_id: str) -> Job | None:
        """Forget a request that has ended; its job, unless it was given up."""
        self.executor.received.discard(request_id)
        return self._jobs.pop(request_id, None)

    def _empty_inbox(self) -> None:
        while self._inbox:
            entry = self._inbox.popleft()
            if isinstance(entry, str):
                self.core.abort(entry)
                self.executor.received.discard(entry)
            else:
                self.core.add(entry)
