"""Running the gate: two servers, pairs in random order, a decision after each look."""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from engine_adapters.base import Adapter
from engine_adapters.preflight import Endpoint
from engine_adapters.transport import HttpClient
from loadgen.analysis.gate import (
    DEFAULT_METRICS,
    LOOKS,
    MARGINS,
    GateDecision,
    Margin,
    MetricDecision,
    decide,
    effect,
    parse_margin,
)
from loadgen.collectors.run_folder import RunFolder
from loadgen.commands.common import UsageProblem, all_overrides, base_url
from loadgen.commands.credentials import request_headers
from loadgen.commands.endpoint import Server, named_server, open_client, open_endpoint
from loadgen.commands.measuring import (
    Job,
    allow_connections,
    manifest,
    opening,
    point_line,
    readable,
    say,
    uvloop_is_there,
)
from loadgen.commands.problems import users_problems
from loadgen.commands.progress import Display
from loadgen.generator.point import Progress
from loadgen.quality import Agreement, agreement, fixed_answers
from loadgen.run_summary import summarize_folder
from loadgen.scenario.loader import load_scenario
from loadgen.scenario.schedule import PointSchedule, plan_point
from loadgen.scenario.schema import Scenario
from loadgen.session import SETTLE_S, Session, fit_unit, probe_server

LOAD_SHARE = 0.3  # of the baseline's capacity: nearer to it, small differences of speed become large ones of waiting
HALVINGS = 4
RETRIES = 2  # an INVALID run says nothing about the servers: the pair is run again this often
NO_BOUND = {"reason": "the gate draws no bound"}
SIDES = ("baseline", "candidate")
RATIOS = ("ratio", "ratio_low", "ratio_high")


class InvalidGate(Exception):
    """The pairs can't be measured on this host or at this load; the text says why."""


@dataclass(frozen=True)
class GateJob:
    """A gate to run. Both sides get the same schedule in each pair."""

    scenario: Scenario
    servers: Mapping[str, Server]
    margins: Mapping[str, Margin]
    rate_rps: float | None
    n_requests: int
    self_check: bool

    @classmethod
    def from_options(
        cls,
        name: str,
        baseline: str,
        candidate: str,
        margins: Mapping[str, Margin],
        self_check: bool,
        options: Mapping[str, Any],
    ) -> GateJob:
        """The job that the command line describes."""
        overrides = all_overrides(tuple(options["overrides"]), seed=options["seed"], api=options["api"])
        with users_problems():
            scenario = load_scenario(name, overrides)
        if scenario.load.mode == "closed":
            raise UsageProblem("the gate compares in open loop: the scenario needs load.rates (a list or auto)")
        rate = options["rate"]
        if rate is None and scenario.load.rates not in ("auto", None):
            rate = scenario.load.rates[0]
        if options["unix_socket"] and not self_check:
            raise UsageProblem("--unix-socket names one server: with it only --self-check compares")
        headers = request_headers(options)
        with users_problems():
            servers = {
                side: named_server(base_url(url), scenario, options["model"], headers, options)
                for side, url in zip(SIDES, (baseline, candidate), strict=True)
            }
        usable = {m: margin for m, margin in margins.items() if m != "goodput" or scenario.slo.objectives}
        return cls(scenario, servers, usable, rate, options["n_requests"], self_check)


def wanted_margins(texts: Sequence[str]) -> dict[str, Margin]:
    """The default metrics and margins, with the user's in place of or beside them."""
    margins = {name: MARGINS[name] for name in DEFAULT_METRICS}
    for text in texts:
        try:
            name, margin = parse_margin(text)
        except ValueError as error:
            raise UsageProblem(f"--max-regression {error}") from None
        margins[name] = margin
    return margins


def run_gate(job: GateJob, folder: Path) -> dict[str, Any]:
    """Run the pairs into `folder` (one run folder a side and pair) and return the decision for tables and files."""
    with users_problems():
        return anyio.run(_run_gate, job, folder, backend_options={"use_uvloop": uvloop_is_there()})


@dataclass
class Side:
    """A server with everything that was learnt about it."""

    server: Server
    adapter: Adapter
    endpoint: Endpoint
    session: Session
    via: str


async def _run_gate(job: GateJob, folder: Path) -> dict[str, Any]:
    allow_connections(job.scenario, None if job.rate_rps is None else [gate_plan(job, job.scenario, job.rate_rps)])
    clients = {side: open_client(server, job.scenario) for side, server in job.servers.items()}
    stamp_alike(list(clients.values()))
    try:
        sides = {side: await _open(job, job.servers[side], clients[side]) for side in SIDES}
        quality = await _quality(sides)
        rate = job.rate_rps or await _bearable_rate(sides["baseline"])
        return await Pairs(job, sides, rate, folder, quality).decide()
    finally:
        with anyio.CancelScope(shield=True):
            for client in clients.values():
                await client.close()


def stamp_alike(clients: Sequence[HttpClient]) -> None:
    """Two sources of instants are never compared: where one side can't have the kernel's stamps, none has."""
    if len({client.kernel_stamped for client in clients}) > 1:
        say("one side can't have the kernel's receive stamps: both sides are stamped when read")
        for client in clients:
            client.stamp_when_read()


def gate_plan(job: GateJob, scenario: Scenario, rate_rps: float) -> PointSchedule:
    """The one load point of each run."""
    return plan_point(scenario, point=0, rate_rps=rate_rps, n_requests=job.n_requests)


async def _open(job: GateJob, server: Server, client: HttpClient) -> Side:
    adapter, endpoint = await open_endpoint(client, server, job.scenario)
    unit, _ = await fit_unit(adapter)
    return Side(server, adapter, endpoint, Session(job.scenario, adapter, unit, "gate", "gate"), client.via)


async def _quality(sides: Mapping[str, Side]) -> Agreement:
    baseline, again = [await fixed_answers(sides["baseline"].adapter) for _ in range(2)]
    return agreement(baseline, again, await fixed_answers(sides["candidate"].adapter))


async def _bearable_rate(side: Side) -> float:
    probe = await probe_server(side.session)
    return readable(LOAD_SHARE * probe.flood_rps)


class Pairs:
    """The pairs so far and what they decide."""

    def __init__(
        self, job: GateJob, sides: Mapping[str, Side], rate_rps: float, folder: Path, quality: Agreement
    ) -> None:
        self._job, self._sides, self._rate_rps, self._folder, self._quality = job, sides, rate_rps, folder, quality
        self._order = random.Random(job.scenario.seed)
        self._effects: dict[str, list[float]] = {metric: [] for metric in job.margins}
        self._overloaded = 0
        self._n_pairs = 0
        self._conditions: dict[str, str] = {}
        self._salt = secrets.token_hex(3)  # a second gate against the same servers must not meet its own prompts

    async def decide(self) -> dict[str, Any]:
        """Run pairs until a look decides, and describe the outcome."""
        try:
            await self._settle_rate()
            self._say_plan()
            while True:
                await self._run_pair()
                if self._n_pairs in LOOKS:
                    if self._overloaded > self._n_pairs / 2:
                        return self._overload_verdict()
                    decision = decide(self._effects, self._job.margins)
                    if decision.verdict != "EXTEND":
                        return self._describe(decision)
        except InvalidGate as problem:
            return self._report("INVALID", [], [str(problem)])

    async def _settle_rate(self) -> None:
        """Halve a rate that was found, not asked for, until this host's client keeps its schedule at it."""
        for attempt in range(HALVINGS if self._job.rate_rps is None else 0):
            rows = await self._measure_pair(f"rate{attempt}")
            if not any(row["validity"]["verdict"] == "INVALID" for row in rows.values()):
                return
            self._rate_rps = readable(self._rate_rps / 2)
            say(f"  not measurable at that rate on this host ({_why(rows)[:120]} ...): {self._rate_rps:g} requests/s")

    def _say_plan(self) -> None:
        seconds = self._job.n_requests / self._rate_rps + self._job.scenario.load.warmup_s
        say(
            f"{LOOKS[0]} to {LOOKS[-1]} pairs of {self._job.n_requests} requests at {self._rate_rps:g} requests/s: "
            f"{2 * LOOKS[0] * seconds / 60:.1f} to {2 * LOOKS[-1] * seconds / 60:.1f} minutes"
        )

    async def _run_pair(self) -> None:
        for attempt in range(RETRIES + 1):
            rows = await self._measure_pair(f"pair{self._n_pairs + 1:02d}" + (f"-again{attempt}" if attempt else ""))
            verdicts = {side: row["validity"]["verdict"] for side, row in rows.items()}
            if "INVALID" not in verdicts.values():
                break
            say(f"  pair {self._n_pairs + 1} had an INVALID run: once more")
        else:
            raise InvalidGate(f"pair {self._n_pairs + 1} was INVALID {RETRIES + 1} times: {_why(rows)}")
        if verdicts["baseline"] == "NONSTATIONARY":
            raise InvalidGate(
                f"the baseline itself is overloaded at {self._rate_rps:g} requests/s: choose a lower --rate"
            )
        self._n_pairs += 1
        self._overloaded += verdicts["candidate"] == "NONSTATIONARY"
        for metric, effects in self._effects.items():
            change = effect(metric, figure(rows["baseline"], metric), figure(rows["candidate"], metric))
            if change is not None:
                effects.append(change)

    async def _measure_pair(self, number: str) -> dict[str, dict[str, Any]]:
        seed = self._job.scenario.seed + self._n_pairs
        scenario = self._job.scenario.model_copy(update={"seed": seed})
        order = self._order.sample(SIDES, 2)
        return {side: await self._measure_side(scenario, side, number) for side in order}

    async def _measure_side(self, scenario: Scenario, side: str, number: str) -> dict[str, Any]:
        opened = self._sides[side]
        session = Session(
            scenario, opened.adapter, opened.session.unit, f"{self._salt}-{number}", f"gate-{number}-{side}"
        )
        job = Job(scenario, opened.server, self._folder / f"{number}-{side}", None)
        plan = gate_plan(self._job, scenario, self._rate_rps)
        with RunFolder(job.folder, manifest(job, session, opened.endpoint, NO_BOUND, [], opened.via)) as folder:
            session.sink = folder.writer
            with Display(None).running() as display:
                progress = Progress()
                opening(folder, display)(plan, progress)
                await session.measure(plan, progress)
            folder.save_manifest(finished=True)
        await anyio.sleep(SETTLE_S)
        summary = summarize_folder(job.folder)
        self._conditions = summary["conditions"]
        row: dict[str, Any] = summary["points"][0]
        say(f"  {number} {side:9} {point_line(row)}")
        return row

    def _describe(self, decision: GateDecision) -> dict[str, Any]:
        metrics = [metric_row(m, self._job.margins[m.metric]) for m in decision.metrics]
        notes, verdict = [f"quality: {self._quality.text}"], str(decision.verdict)
        if verdict == "PASS" and not self._quality.acceptable:
            verdict = "INCONCLUSIVE"
            notes.append("the candidate answers differently from the baseline: no PASS, however fast it is")
        if self._job.self_check:
            notes.append("self-check: the baseline against itself; " + smallest_margins(decision))
        return self._report(verdict, metrics, notes)

    def _overload_verdict(self) -> dict[str, Any]:
        note = (
            f"in {self._overloaded} of {self._n_pairs} pairs the candidate's queue grew without limit at "
            f"{self._rate_rps:g} requests/s, a load that the baseline bears"
        )
        row = {"metric": "sustained load", "margin": "none", "ratio": None, "ratio_low": None, "ratio_high": None}
        return self._report("FAIL", [row | {"verdict": "FAIL", "text": note}], [f"quality: {self._quality.text}"])

    def _report(self, verdict: str, metrics: list[dict[str, Any]], notes: list[str]) -> dict[str, Any]:
        both = {f"{side} url": self._sides[side].server.url for side in SIDES}
        differing = self._sides["baseline"].endpoint.model != self._sides["candidate"].endpoint.model
        if differing:
            both |= {f"{side} model": self._sides[side].endpoint.model for side in SIDES}
            notes.append("the two servers serve different models")
        load = {"load": f"{self._rate_rps:g} requests/s, {self._job.n_requests} measured requests a run"}
        shared = {key: text for key, text in self._conditions.items() if key not in ("url", "load")}
        return {
            "verdict": verdict,
            "pairs": self._n_pairs,
            "conditions": {**both, **shared, **load},
            "metrics": metrics,
            "notes": notes,
        }


def figure(row: Mapping[str, Any], metric: str) -> float | None:
    """The value of a gated metric in a point of a summary; latencies from `intended`."""
    if metric == "goodput":
        return row["goodput_rps"]  # type: ignore[no-any-return]
    if metric == "output_tps":
        return row["output_tps"]  # type: ignore[no-any-return]
    if metric == "error_rate":
        counts = row["counts"]
        return (counts["due"] - counts["ok"]) / counts["due"] if counts["due"] else None
    name, stat = metric.rsplit("_", 1)
    found = row["metrics"][name]
    found = found if "p50" in found else found["from_intended"]
    return found[stat]  # type: ignore[no-any-return]


def metric_row(decision: MetricDecision, margin: Margin) -> dict[str, Any]:
    """A metric's decision as the tables take it; ratios are candidate / baseline."""
    change, interval = decision.change, decision.interval
    signed = -margin.limit if margin.higher_is_better else margin.limit
    verdict = "INCONCLUSIVE" if decision.verdict == "EXTEND" else decision.verdict  # others decided before it could
    row: dict[str, Any] = {"metric": decision.metric, "verdict": verdict}
    if margin.difference:
        text = f"{change:+.2%} of requests (points, not a ratio)" if change is not None else ""
        return row | {"margin": f"+{margin.limit:.0%} points", **dict.fromkeys(RATIOS), "text": text}
    row |= {"margin": signed, "ratio": None if change is None else 1 + change, "text": ""}
    low, high = interval or (None, None)
    row |= {"ratio_low": None if low is None else 1 + low, "ratio_high": None if high is None else 1 + high}
    if decision.verdict == "FAIL":
        row["text"] = f"{change:+.1%} where {signed:+.0%} is allowed"
    elif change is None:
        row["text"] = "too few samples in the runs for this metric"
    return row


def smallest_margins(decision: GateDecision) -> str:
    """What this host can tell apart: half the interval of each metric."""
    halves = [
        f"{m.metric} {(m.interval[1] - m.interval[0]) / 2:.1%}" for m in decision.metrics if m.interval is not None
    ]
    return "smallest margins that this host supports: " + ", ".join(halves)


def _why(rows: Mapping[str, Mapping[str, Any]]) -> str:
    return "; ".join(
        f"{side}: {check['text']}"
        for side, row in rows.items()
        for check in row["validity"]["checks"]
        if check["verdict"] == "invalid"
    )
