"""From options to a finished run folder: the server, the preflight, the points, the summary."""

from __future__ import annotations

import gc
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import click

from engine_adapters.base import Adapter, PreflightError
from engine_adapters.network import allow_descriptors
from engine_adapters.preflight import Endpoint
from loadgen.analysis.knee import next_rate, plan_ladder
from loadgen.analysis.summary import conclude, glance, rungs
from loadgen.bound_spec import Spec, spec_for_server, target_from
from loadgen.collectors.machine import client_machine, loop_name, versions
from loadgen.collectors.records import PointLog, RequestRecord
from loadgen.collectors.run_folder import SCHEMA_VERSION, RunFolder
from loadgen.commands.endpoint import Server, open_client, open_endpoint
from loadgen.commands.problems import users_problems
from loadgen.commands.progress import Display
from loadgen.generator.connections import at_once
from loadgen.generator.point import Progress
from loadgen.redaction import redact, redacted
from loadgen.run_summary import bound_function, summarize_folder
from loadgen.scenario.schedule import PointSchedule, plan_point, schedule_id, schedule_rows
from loadgen.scenario.schema import Scenario
from loadgen.session import FLOOD_USERS, Probe, Session, fit_unit, probe_server, run_ladder

USUALLY_VIA = ("own sockets, HTTP/1.1", "own sockets, HTTP/1.1, TLS")


@dataclass(frozen=True)
class Job:
    """One run to make. `plans` are the points when they are known beforehand; None asks for an automatic ladder."""

    scenario: Scenario
    server: Server
    folder: Path
    plans: Sequence[PointSchedule] | None
    notes: tuple[str, ...] = ()
    scaled_for_cpu: bool = False
    hardware_from_user: bool = False


def carry_out(job: Job) -> dict[str, Any]:
    """Make the run and return its summary, which is also in the folder. Blocks.

    KeyboardInterrupt passes through after the folder is closed: what was measured is kept.
    """
    # Records are many and live to the end: by default the collector would look at all of them again and again.
    gc.set_threshold(100_000, 50, 100)
    with users_problems():
        anyio.run(_carry_out, job, backend_options={"use_uvloop": uvloop_is_there()})
        gc.collect()  # what the run left, before its records are read back
        return summarize_folder(job.folder)


def uvloop_is_there() -> bool:
    """Whether the faster event loop is installed."""
    try:
        import uvloop  # noqa: F401
    except ImportError:
        return False
    return True


async def _carry_out(job: Job) -> None:
    allow_connections(job.scenario, job.plans)
    client = open_client(job.server, job.scenario)
    try:
        adapter, endpoint = await open_endpoint(client, job.server, job.scenario)
        check_context(job, endpoint)
        await _measure(job, adapter, endpoint, client.via)
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()


def check_context(job: Job, endpoint: Endpoint) -> None:
    """Refuse before the start what the server would refuse request by request."""
    if endpoint.max_model_len is None or not job.plans:
        return
    longest = max(r.prompt_tokens + r.output_tokens for plan in job.plans for r in plan.requests)
    if longest > endpoint.max_model_len:
        raise PreflightError(
            f"the longest request has {longest:,} tokens and {endpoint.model} takes {endpoint.max_model_len:,}: "
            "lower the max of workload.prompt.tokens or workload.output.tokens (--set)"
        )


async def _measure(job: Job, adapter: Adapter, endpoint: Endpoint, via: str) -> None:
    salt, run_id = secrets.token_hex(4), f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
    unit, unit_note = await fit_unit(adapter)
    session = Session(job.scenario, adapter, unit, salt, run_id)
    probe = None
    if job.plans is None:
        say(f"looking for the load that {endpoint.model} bears ...")
        probe = await probe_server(session)
    spec = await anyio.to_thread.run_sync(bound_spec, job, endpoint)
    ladder = Ladder(job, spec, probe)
    say(ladder.plan_line())
    notes = [*job.notes, *endpoint.notes, *([unit_note] if unit_note else []), *carried_notes(via)]
    with RunFolder(job.folder, manifest(job, session, endpoint, spec, notes, via)) as folder:
        session.sink = folder.writer
        with Display(ladder.n_expected).running() as display:
            await run_ladder(session, ladder.next_plan, opening(folder, display), ladder.closing(display))
        spec = await anyio.to_thread.run_sync(recalibrated, job, spec)
        folder.save_manifest(roofline=spec, finished=True)


def carried_notes(via: str) -> tuple[str, ...]:
    """What carries the streams, where it is not what one expects."""
    return () if via in USUALLY_VIA else (f"streams are carried by {via}",)


def allow_connections(scenario: Scenario, plans: Sequence[PointSchedule] | None) -> None:
    """Let this process open what the load may need; raises PreflightError when the system allows too few.

    An automatic ladder surely needs the users of its flood.
    """
    load, total_s = scenario.load, scenario.timeouts.total_s
    needs = [at_once(plan, load.max_in_flight, total_s) for plan in plans or ()] or [(FLOOD_USERS, load.max_in_flight)]
    allow_descriptors(max(surely for surely, _ in needs), max(possibly for _, possibly in needs))


def opening(folder: RunFolder, display: Display) -> Callable[[PointSchedule, Progress], None]:
    """What happens before a point: its plan goes to disk."""

    def on_plan(plan: PointSchedule, progress: Progress) -> None:
        folder.add_schedule(schedule_rows(plan))
        folder.save_manifest(points=[*folder.manifest["points"], plan_row(plan)])
        display.start(plan, progress)

    return on_plan


def plan_row(plan: PointSchedule) -> dict[str, Any]:
    """What the manifest says of a point before it runs."""
    return {
        name: getattr(plan, name)
        for name in ("point", "mode", "rate_rps", "concurrency", "warmup_s", "duration_s", "cooldown_s")
    }


class Ladder:
    """Which point comes next: the given plans one by one, or what the points so far ask for."""

    def __init__(self, job: Job, spec: Spec, probe: Probe | None) -> None:
        self._job = job
        self._bound_at = bound_function(target_from(spec), job.scenario)
        self._rows: list[dict[str, Any]] = []
        self._max_points = job.scenario.load.max_points
        rates = plan_ladder(probe.light_residence_s, probe.flood_rps, self._max_points) if probe else []
        self._rates = [readable(rate) for rate in rates]
        self.n_expected = len(job.plans) if job.plans is not None else self._max_points

    def next_plan(self) -> PointSchedule | None:
        """The next point, or None when the ladder is done."""
        point = len(self._rows)
        if self._job.plans is not None:
            return self._job.plans[point] if point < len(self._job.plans) else None
        rate = next_rate(rungs(self._rows), self._rates, self._max_points)
        return None if rate is None else plan_point(self._job.scenario, point=point, rate_rps=readable(rate))

    def closing(self, display: Display) -> Callable[[PointLog, Sequence[RequestRecord]], None]:
        """What happens after a point: it is looked at, so that the next can be chosen, and told in one line."""

        def on_point(log: PointLog, records: Sequence[RequestRecord]) -> None:
            point = glance(log, list(records), self._bound_at)
            conclude(point, None, None)
            self._rows.append(point.row)
            display.done(point_line(point.row))

        return on_point

    def plan_line(self) -> str:
        """How many points, requests, tokens and minutes are coming."""
        plans = self._job.plans
        if plans is None:
            # What the climb leaves of the points goes to overload and refinement, both near the highest rate.
            rates = [*self._rates, *[self._rates[-1]] * (self._max_points - len(self._rates))]
            plans = [plan_point(self._job.scenario, point=0, rate_rps=rate) for rate in rates]
            return f"up to {self._max_points} points, about {totals(plans)}"
        return f"{len(plans)} point{'s' * (len(plans) != 1)}, {totals(plans)}"


def readable(rate_rps: float) -> float:
    """A rate to three digits: what is printed is what is driven."""
    return float(f"{rate_rps:.3g}")


def totals(plans: Sequence[PointSchedule]) -> str:
    """Requests, tokens and minutes of the plans with half of the longest cool-down, since light points need little."""
    ends_s = [plan.warmup_s + plan.duration_s + plan.cooldown_s / 2 for plan in plans]
    time = f"{sum(ends_s) / 60:.1f} minutes"
    wanted = [r for plan, end_s in zip(plans, ends_s, strict=True) for r in plan.requests if r.at_s < end_s]
    if not wanted or plans[0].mode == "closed":
        return f"as many requests as the users complete, {time}"
    tokens = sum(r.prompt_tokens + r.output_tokens for r in wanted)
    return f"{len(wanted):,} requests, {tokens:,} tokens, {time}"


def point_line(row: Mapping[str, Any]) -> str:
    """One point in one line, while the run goes on."""
    load = f"{row['rate_rps']:.3g} req/s" if row["rate_rps"] else f"{row['concurrency_target']} users"
    in_flight = f"{row['concurrency_mean']:.1f}" if row["concurrency_mean"] is not None else "n/a"
    tps = f"{row['output_tps']:,.0f}" if row["output_tps"] is not None else "n/a"
    found = row["metrics"]["ttft"]["from_intended"] or row["metrics"]["ttft"]["from_sent"]
    ttft = f"{found['p95'] * 1e3:,.0f} ms" if found["p95"] is not None else "n/a"
    failed = f", {row['failed']} failed" if row["failed"] else ""
    return f"{load}: {in_flight} in flight, {tps} tok/s, TTFT p95 {ttft}{failed} - {row['validity']['verdict']}"


def bound_spec(job: Job, endpoint: Endpoint) -> Spec:
    """What the roofline knows of this server; measures this machine's ceilings for the bundled engine."""
    if job.server.bundled is not None:
        return job.server.bundled.bound_spec()
    return spec_for_server(job.scenario.roofline, endpoint.model, job.hardware_from_user)


def recalibrated(job: Job, spec: Spec) -> Spec:
    """The spec with the larger of the ceilings before and after the sweep."""
    return job.server.bundled.bound_spec() if job.server.bundled is not None else spec


def manifest(
    job: Job, session: Session, endpoint: Endpoint, spec: Spec, notes: Sequence[str], via: str
) -> dict[str, Any]:
    """Everything about a run that its records do not hold. No header and no key is in it, also none that the server
    repeated or that the scenario's own fields of a request hold."""
    flags = job.server.bundled.flags if job.server.bundled else None
    client = {"machine": client_machine(), "versions": versions(), "loop": loop_name(), "workers": 1, "via": via}
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "openloop", "version": versions().get("openloop", "unknown")},
        "run_id": session.run_id,
        "created_utc": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "finished": False,
        "mode": job.scenario.load.mode,
        "scenario": {
            key: redacted(value) if key in ("request", "template") else value
            for key, value in job.scenario.as_json().items()
        },
        "schedule_id": schedule_id(job.scenario),
        "scaled_for_cpu": job.scaled_for_cpu,
        "notes": redacted(notes),
        "salt": session.salt,
        "text_unit": asdict(session.unit),
        "server": redacted(asdict(endpoint) | {"flags": flags}),
        "roofline": spec,
        "client": client,
        "points": [],
    }


def say(text: str) -> None:
    """One line beside the results, which alone go to standard output."""
    click.echo(redact(text), err=True)
