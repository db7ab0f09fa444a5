"""One load point while it runs: the request's life from dispatch to record, shared by open and closed loop."""

from __future__ import annotations

import gc
import sys
from array import array
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import anyio

from engine_adapters.base import Adapter, StreamOutcome
from loadgen.collectors.client_health import ClientHealth
from loadgen.collectors.records import Phase, PointLog, RequestRecord
from loadgen.generator import connections
from loadgen.generator.clock import Clock
from loadgen.generator.in_flight import InFlight
from loadgen.generator.limit import TokenBucket
from loadgen.generator.retries import OnRejection, come_back_ns
from loadgen.scenario.schedule import PlannedRequest, PointSchedule

BIN_S = 0.1


class Sink(Protocol):
    """Where finished records go; the run folder's writer is one. Never blocks the sender."""

    @property
    def backlog_max(self) -> int:
        """Most records that waited for the disk at once."""
        ...

    @property
    def backlog_limit(self) -> int:
        """Backlog past which the point is INVALID."""
        ...

    @property
    def lag_max_s(self) -> float:
        """Longest that a record waited for the disk."""
        ...

    def record(self, record: RequestRecord) -> None:
        """Take one record."""
        ...

    def end_point(self, log: PointLog) -> None:
        """Take the generator's counts of a point, after its last record."""
        ...


class MemorySink:
    """Keeps the records of a point and passes them on to another sink, when there is one."""

    def __init__(self, onward: Sink | None = None) -> None:
        self.records: list[RequestRecord] = []
        self.logs: list[PointLog] = []
        self._onward = onward

    @property
    def backlog_max(self) -> int:
        """The other sink's, else 0."""
        return self._onward.backlog_max if self._onward else 0

    @property
    def backlog_limit(self) -> int:
        """The other sink's, else 0."""
        return self._onward.backlog_limit if self._onward else 0

    @property
    def lag_max_s(self) -> float:
        """The other sink's, else 0."""
        return self._onward.lag_max_s if self._onward else 0.0

    def record(self, record: RequestRecord) -> None:
        """Take one record."""
        self.records.append(record)
        if self._onward:
            self._onward.record(record)

    def end_point(self, log: PointLog) -> None:
        """Take one log."""
        self.logs.append(log)
        if self._onward:
            self._onward.end_point(log)


@dataclass
class Progress:
    """What a live display shows; written by the generator, read by whoever looks."""

    total_s: float = 0.0
    started_ns: int = 0
    sent: int = 0
    done: int = 0
    failed: int = 0
    in_flight: int = 0
    recent_ttft_s: deque[float] = field(default_factory=lambda: deque(maxlen=200))


@dataclass
class PointRun:
    """The state of a running point."""

    schedule: PointSchedule
    bodies: list[bytes]
    adapter: Adapter
    clock: Clock
    sink: Sink
    run_id: str
    arrivals: str | dict[str, Any] = "poisson"
    max_in_flight: int | None = None
    warm: bool = True  # connections are open before the first request is due
    on_429: OnRejection = "fail"
    patience_s: float = 600.0  # longest that a rejected request is tried again, from when it was taken up
    bucket: TokenBucket | None = None
    progress: Progress = field(default_factory=Progress)
    t0_ns: int = 0
    t0_wall_s: float = 0.0
    in_flight: InFlight = field(default_factory=lambda: InFlight(0))
    measured_open: int = 0  # measured requests that have not ended yet, sent or not
    due_measured: int = 0
    on_measured_done: Callable[[], None] = lambda: None

    def begin(self, lead_ns: int) -> None:
        """Fix t0 a little ahead, so that the first send is not late by construction."""
        self.t0_ns = self.clock.now_ns() + lead_ns
        self.t0_wall_s = self.clock.wall_s() + lead_ns / 1e9
        self.in_flight = InFlight(self.clock.now_ns())
        self.progress.started_ns = self.t0_ns

    @property
    def window_start_ns(self) -> int:
        """Start of the measured window by intended time."""
        return self.t0_ns + round(self.schedule.warmup_s * 1e9)

    @property
    def window_end_ns(self) -> int:
        """End of the measured window by intended time."""
        return self.window_start_ns + round(self.schedule.duration_s * 1e9)

    @property
    def cooldown_end_ns(self) -> int:
        """When waiting for measured requests ends; what is in flight then is censored."""
        return self.window_end_ns + round(self.schedule.cooldown_s * 1e9)

    def wall_s(self, at_ns: int) -> float:
        """UTC epoch seconds of a monotonic instant: one anchor for each point."""
        return self.t0_wall_s + (at_ns - self.t0_ns) / 1e9

    async def carry_out(self, planned: PlannedRequest, phase: Phase, intended_ns: int) -> None:
        """Send one request, wait for its end and record it, whatever the end is."""
        record = self._new_record(planned, phase, intended_ns)
        tries = [StreamOutcome()]
        finished = False
        try:
            await self._pass_limit(record)
            record.dispatched_at_ns = self.clock.now_ns()
            self.in_flight.enter(record.dispatched_at_ns)
            self.progress.sent += 1
            await self._try(planned, record.dispatched_at_ns, tries)
            finished = True
        finally:
            if record.dispatched_at_ns is not None:
                self.in_flight.leave(tries[-1].stream_end_at_ns or self.clock.now_ns())
            self._close(record, tries, finished)

    async def _pass_limit(self, record: RequestRecord) -> None:
        """Wait for a turn at the client's own limit, where there is one; the request is not in flight meanwhile."""
        if self.bucket is None:
            return
        asked_ns = self.clock.now_ns()
        turn_ns = self.bucket.turn_ns(asked_ns)
        record.limit_delay_ns = turn_ns - asked_ns
        if turn_ns > asked_ns:
            await self.clock.sleep_coarse_until_ns(turn_ns)

    async def _try(self, planned: PlannedRequest, dispatched_ns: int, tries: list[StreamOutcome]) -> None:
        """Send until the request is accepted or given up; the last of `tries` is the one that is under way."""
        body, request_id = self.bodies[planned.index], f"{self.run_id}-{self.schedule.point}-{planned.index}"
        give_up_ns = dispatched_ns + round(self.patience_s * 1e9)
        while True:
            await self.adapter.stream(body, request_id, tries[-1])
            again_ns = come_back_ns(self.on_429, tries[-1], give_up_ns)
            if again_ns is None:
                return
            tries.append(StreamOutcome())
            await self.clock.sleep_coarse_until_ns(again_ns)

    def shed(self, planned: PlannedRequest, phase: Phase, intended_ns: int) -> None:
        """Record a request that the in-flight limit held back."""
        record = self._new_record(planned, phase, intended_ns)
        record.status = "shed"
        self.sink.record(record)
        self._count_down(phase)

    def _new_record(self, planned: PlannedRequest, phase: Phase, intended_ns: int) -> RequestRecord:
        return RequestRecord(
            point=self.schedule.point,
            index=planned.index,
            phase=phase,
            status="unfinished",
            intended_at_ns=intended_ns,
            intended_wall_s=self.wall_s(intended_ns),
            prompt_tokens_asked=planned.prompt_tokens,
            output_tokens_asked=planned.output_tokens,
            repeat=planned.repeat,
            prompt_group=planned.prefix_group,
        )

    def _close(self, record: RequestRecord, tries: Sequence[StreamOutcome], finished: bool) -> None:
        outcome = tries[-1]
        fill(record, outcome)
        fill_rejections(record, tries)
        if finished:
            record.status = "ok" if outcome.ok else "failed"
        elif record.stream_end_at_ns is None:
            record.stream_end_at_ns = self.clock.now_ns()
        self._show(record)
        self.sink.record(record)
        self._count_down(record.phase)

    def _count_down(self, phase: Phase) -> None:
        if phase == "measured":
            self.measured_open -= 1
            if self.measured_open == 0:
                self.on_measured_done()

    def _show(self, record: RequestRecord) -> None:
        progress = self.progress
        progress.done += 1
        progress.failed += record.status == "failed"
        progress.in_flight = self.in_flight.value
        if record.first_token_at_ns is not None:
            progress.recent_ttft_s.append((record.first_token_at_ns - record.intended_at_ns) / 1e9)

    def _due_measured(self, end_ns: int) -> int:
        """Measured sends that the schedule asked for by `end_ns`; in closed loop all that were taken up."""
        if self.schedule.mode != "open":
            return self.due_measured
        return sum(r.phase == "measured" and self.t0_ns + r.at_s * 1e9 <= end_ns for r in self.schedule.requests)

    def log(self, health: ClientHealth, interrupted: bool) -> PointLog:
        """What the generator counted, once everything has ended."""
        closed_ns = self.clock.now_ns()
        # An interrupted point, and a closed loop whose requests are used up, have measured no longer than this.
        end_ns = max(min(self.window_end_ns, closed_ns), self.window_start_ns)
        schedule = self.schedule
        return PointLog(
            point=schedule.point,
            mode="open" if schedule.mode == "open" else "closed",
            rate_rps=schedule.rate_rps,
            concurrency=schedule.concurrency,
            t0_ns=self.t0_ns,
            t0_wall_s=self.t0_wall_s,
            window_start_ns=self.window_start_ns,
            window_end_ns=end_ns,
            closed_at_ns=closed_ns,
            due_measured=self._due_measured(end_ns),
            in_flight_mean=self.in_flight.mean(self.window_start_ns, end_ns),
            in_flight_max=self.in_flight.peak,
            bin_s=BIN_S,
            in_flight_bins=self.in_flight.bins(self.t0_ns, closed_ns, round(BIN_S * 1e9)),
            loop_lag_p99_s=health.loop_lag_p99_s(),
            client_cpu_share=health.cpu_share(),
            loop_stall_max_s=health.loop_stall_max_s(),
            gc_pause_max_s=health.gc_pause_max_s,
            gc_pauses=health.gc_pauses,
            writer_backlog_max=self.sink.backlog_max,
            writer_backlog_limit=self.sink.backlog_limit,
            writer_lag_max_s=self.sink.lag_max_s,
            interrupted=interrupted,
            arrivals=self.arrivals,
        )


def fill(record: RequestRecord, outcome: StreamOutcome) -> None:
    """Copy an outcome's instants and counts into the record."""
    for name in (
        "sent_at_ns",
        "resolved_at_ns",
        "tcp_connected_at_ns",
        "connected_at_ns",
        "reconnected",
        "headers_at_ns",
        "first_token_at_ns",
        "first_answer_at_ns",
        "last_token_at_ns",
        "stream_end_at_ns",
        "prompt_tokens",
        "cached_tokens",
        "output_tokens",
        "output_tokens_source",
        "reads_total",
        "reads_kernel_stamped",
        "read_lag_max_ns",
        "n_token_events",
        "finish_reason",
        "http_status",
        "error_class",
        "error",
    ):
        setattr(record, name, getattr(outcome, name))
    at_ns = outcome.read_at_ns
    record.gap_ns = array("q", [0] * bool(at_ns) + [b - a for a, b in pairwise(at_ns)])
    record.gap_events, record.gap_bytes = outcome.read_events, outcome.read_bytes
    if len(outcome.read_tokens) == len(at_ns):  # else the request was cut between a read and its count
        record.gap_tokens = outcome.read_tokens


def fill_rejections(record: RequestRecord, tries: Sequence[StreamOutcome]) -> None:
    """What became of the attempts before the last one, and of a last one that was rejected too."""
    record.n_attempts = len(tries)
    record.n_rejections = sum(outcome.error_class == "rejected" for outcome in tries)
    if record.n_rejections:
        record.first_rejected_at_ns = tries[0].stream_end_at_ns
        record.advised_wait_s = tries[0].advised_wait_s


async def watch_point(run: PointRun, drive: Callable[[PointRun], Awaitable[None]], lead_ns: int) -> PointLog:
    """Run `drive` with a quiet runtime and a loop probe; log the point even when it is interrupted."""
    interrupted = True
    await run.adapter.warm(connections.at_start(run.schedule) if run.warm else 0)
    with quiet_runtime():
        async with watched(run.clock) as health:
            run.begin(lead_ns)
            try:
                await drive(run)
                interrupted = False
            finally:
                log = run.log(health, interrupted)
                run.sink.end_point(log)
    return log


@asynccontextmanager
async def watched(clock: Clock) -> AsyncIterator[ClientHealth]:
    """Probe the event loop, and listen to the garbage collector, for the length of the block."""
    health = ClientHealth(clock)
    gc.callbacks.append(health.on_gc)
    async with anyio.create_task_group() as probes:
        probes.start_soon(health.probe)
        try:
            yield health
        finally:
            gc.callbacks.remove(health.on_gc)
            probes.cancel_scope.cancel()


@contextmanager
def quiet_runtime() -> Iterator[None]:
    """No garbage collection while sends are due, and threads that hand the interpreter over quickly."""
    interval_s = sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    gc.disable()
    sys.setswitchinterval(0.0005)
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)
        gc.enable()
        gc.unfreeze()
