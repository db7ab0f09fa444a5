"""A measuring session: one server, one scenario, and the load points that are driven against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean

import anyio

from engine_adapters.base import Adapter, Request, StreamOutcome
from loadgen.analysis.metrics import completion_rate
from loadgen.collectors.records import PointLog, RequestRecord
from loadgen.generator.clock import Clock, MonotonicClock
from loadgen.generator.closed_loop import run_closed_loop
from loadgen.generator.limit import TokenBucket
from loadgen.generator.open_loop import run_open_loop
from loadgen.generator.point import MemorySink, PointRun, Progress, Sink
from loadgen.scenario.prompts import TextUnit, fit_text_unit, render_prompt, unit_probes
from loadgen.scenario.schedule import PointSchedule, plan_point
from loadgen.scenario.schema import Scenario

UNIT_SHARES = (1.0, 0.25)  # of the word list; the second for a short context
PROBE_POINT = 999  # content of the probe's prompts is drawn as for a point that no ladder reaches
LIGHT_REQUESTS = 6
FLOOD_USERS = 64
SETTLE_S = 0.5  # between points, so that the server has dropped what was cancelled


@dataclass
class Session:
    """What all points of a run share. `salt` keeps a repeated run out of a live server's prefix cache."""

    scenario: Scenario
    adapter: Adapter
    unit: TextUnit
    salt: str
    run_id: str
    sink: Sink | None = None
    clock: Clock = field(default_factory=MonotonicClock)
    render: Callable[[PointSchedule], list[bytes]] | None = None  # bodies of a plan, where they are not rendered text

    async def measure(
        self, plan: PointSchedule, progress: Progress | None = None
    ) -> tuple[PointLog, list[RequestRecord]]:
        """Drive one load point; its records also go to the session's sink as they come."""
        sink = MemorySink(self.sink)
        scenario, limit = self.scenario, self.scenario.limit
        run = PointRun(
            schedule=plan,
            bodies=self.bodies(plan),
            adapter=self.adapter,
            clock=self.clock,
            sink=sink,
            run_id=self.run_id,
            arrivals=scenario.as_json()["load"]["arrivals"],
            max_in_flight=scenario.load.max_in_flight,
            warm=scenario.connections == "warm",
            on_429=scenario.on_429,
            patience_s=scenario.timeouts.total_s,
            bucket=TokenBucket(limit.rate_rps, limit.burst) if limit else None,
            progress=progress or Progress(),
        )
        drive = run_open_loop if plan.mode == "open" else run_closed_loop
        return await drive(run), sink.records

    def bodies(self, plan: PointSchedule) -> list[bytes]:
        """Every request of the plan, rendered and encoded before the point starts."""
        if self.render is not None:
            return self.render(plan)
        ignore_eos = self.scenario.workload.ignore_eos
        return [
            self.adapter.encode(
                Request(
                    render_prompt(planned, self.unit, self.scenario.seed, plan.point, self.salt),
                    planned.output_tokens,
                    ignore_eos,
                )
            )
            for planned in plan.requests
        ]


@dataclass(frozen=True)
class Probe:
    """What a few seconds before the ladder told: residence of a lone request, and completions/s of a flood."""

    light_residence_s: float
    flood_rps: float


class ProbeError(Exception):
    """The server answered no request of the probe; the text has the first errors."""


async def probe_server(session: Session, flood_users: int = FLOOD_USERS) -> Probe:
    """Find where a ladder should begin and about where it ends.

    Lone requests give the residence without load. Then a closed loop of `flood_users` runs for four such residences
    (at least 4 s, at most 60 s); its rate is (n - 1)/(last completion - first completion), because completions/duration
    counts the time it takes to fill the server and can halve the answer.
    """
    light = await _lone_requests(session)
    residence_s = mean(light)
    flood_s = min(max(4.0, 4 * residence_s), 60.0)
    plan = plan_point(
        session.scenario,
        point=PROBE_POINT,
        concurrency=flood_users,
        duration_s=flood_s,
        warmup_s=0.0,
        cooldown_s=flood_s,
    )
    flood = replace(session, run_id=f"{session.run_id}-probe", sink=None)
    _, records = await flood.measure(plan)
    await anyio.sleep(SETTLE_S)
    rate = completion_rate([r.stream_end_at_ns / 1e9 for r in records if r.status == "ok" and r.stream_end_at_ns])
    return Probe(residence_s, rate or 1 / residence_s)


async def _lone_requests(session: Session) -> list[float]:
    plan = plan_point(session.scenario, point=PROBE_POINT - 1, concurrency=1, n_requests=LIGHT_REQUESTS)
    bodies = session.bodies(plan)
    stays: list[float] = []
    errors: list[str] = []
    for i, body in enumerate(bodies):
        outcome = StreamOutcome()
        await session.adapter.stream(body, f"{session.run_id}-light-{i}", outcome)
        if outcome.ok and outcome.sent_at_ns and outcome.stream_end_at_ns:
            stays.append((outcome.stream_end_at_ns - outcome.sent_at_ns) / 1e9)
        else:
            errors.append(outcome.error or "no answer")
    if not stays:
        raise ProbeError(f"none of {len(bodies)} requests before the ladder was answered: {errors[0]}")
    return stays[1:] or stays  # the first one may have paid for the server's start-up


async def fit_unit(adapter: Adapter) -> tuple[TextUnit, str | None]:
    """How much text makes a token on this server, by its own usage; with a note where it does not tell."""
    problem = ""
    for share in UNIT_SHARES:
        try:
            return fit_text_unit(
                [sample for text in unit_probes(share) if (sample := await _sample(adapter, text))]
            ), None
        except ValueError as error:
            problem = str(error)
    return TextUnit("word", 1.0, 0.0), f"prompt lengths are estimates of one token a word: {problem}"


async def _sample(adapter: Adapter, text: str) -> tuple[int, int, int] | None:
    """(words, characters, prompt tokens by usage) of one probe; None when the server refuses it or counts nothing."""
    outcome = StreamOutcome()
    await adapter.stream(adapter.encode(Request(text, 1)), f"unit-{len(text)}", outcome)
    return (len(text.split()), len(text), outcome.prompt_tokens) if outcome.prompt_tokens else None


async def run_ladder(
    session: Session,
    next_plan: Callable[[], PointSchedule | None],
    on_plan: Callable[[PointSchedule, Progress], None],
    on_point: Callable[[PointLog, Sequence[RequestRecord]], None],
) -> None:
    """Measure the plans that `next_plan` names until it names none; it may look at what `on_point` was given."""
    while (plan := next_plan()) is not None:
        progress = Progress()
        on_plan(plan, progress)
        log, records = await session.measure(plan, progress)
        on_point(log, records)
        await anyio.sleep(SETTLE_S)
