"""From options to a simulated run: the fleet, the points in virtual time, the summary."""

from __future__ import annotations

import gc
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio

from engine_adapters.preflight import Endpoint
from engine_adapters.reference.deployment import Assumptions, DeploymentProblem, assumption_rows
from engine_adapters.reference.executors.simulated import Noise
from engine_adapters.reference.fleet import Fleet, FleetConfig
from engine_adapters.reference.simulated_setup import deployment_from, engine_from
from loadgen.bound_spec import BoundProblem, Spec, model_named
from loadgen.collectors.run_folder import RunFolder
from loadgen.commands.common import UsageProblem
from loadgen.commands.endpoint import Server
from loadgen.commands.measuring import Job, Ladder, check_context, manifest, opening, say
from loadgen.commands.problems import users_problems
from loadgen.commands.progress import Display
from loadgen.roofline.hardware import find_hardware
from loadgen.run_summary import summarize_folder
from loadgen.scenario.prompts import TextUnit
from loadgen.scenario.schedule import PointSchedule
from loadgen.scenario.schema import Scenario
from loadgen.session import FLOOD_USERS, Session, probe_server, run_ladder
from loadgen.simulation import SimulatedAdapter, UntimedSink, World, bodies, loop_factory

SAYS = "SIMULATED: no hardware was measured; step times are the roofline's bounds divided by stated efficiencies."
URL = "none (simulated)"
SPECULATES = "bound unknown: speculation is on, and the bound counts one token a pass"


@dataclass(frozen=True)
class Simulation:
    """A scenario, the fleet that it runs against, and where the run goes."""

    scenario: Scenario
    fleet: FleetConfig
    folder: Path
    plans: Sequence[PointSchedule] | None

    @property
    def job(self) -> Job:
        """The run as the commands that measure know it."""
        return Job(
            self.scenario, Server(URL, self.fleet.deployment.model.name, self.scenario.api), self.folder, self.plans
        )


def assumption_lines() -> list[str]:
    """The table of `--assumptions`."""
    rows = assumption_rows()
    width = max(len(name) for name, _, _ in rows)
    return [f"{name:{width}}  {default:<9g} {meaning}" for name, default, meaning in rows]


def fleet_of(scenario: Scenario, options: Mapping[str, Any]) -> FleetConfig:
    """What the options and the scenario's roofline section describe; a UsageProblem where that can't be."""
    told = scenario.roofline
    if told.hardware is None:
        raise UsageProblem("no hardware: name a device of the table (--hardware h200-sxm, roofline.hardware)")
    try:
        deployment = deployment_from(
            model_named(told),
            find_hardware(told.hardware),
            devices=told.devices,
            data_parallel=options["data_parallel"],
            pipeline_parallel=options["pipeline_parallel"],
            precision=told.precision,
            kv_precision=told.kv_precision,
            speculate=options["speculate"],
            assume=options["assume"],
        )
        engine = engine_from(deployment, options["engine_settings"])
    except (DeploymentProblem, BoundProblem) as error:
        raise UsageProblem(str(error)) from None
    return FleetConfig(
        deployment,
        engine,
        options["replicas"],
        options["router"],
        options["prefill_replicas"],
        Noise(options["run_noise"], options["step_noise"], scenario.seed),
        skip=not options["step_by_step"],
    )


def simulate(simulation: Simulation) -> dict[str, Any]:
    """Make the run and return its summary, which is also in the folder. Blocks, for far less than the run's time."""
    with users_problems():
        _drive(simulation)
        gc.collect()  # the run's records and caches, before all records are read again
        return summarize_folder(simulation.folder)


def _drive(simulation: Simulation) -> None:
    world = World(Fleet(simulation.fleet))
    anyio.run(_simulate, simulation, world, backend_options={"loop_factory": loop_factory(world)})


async def _simulate(simulation: Simulation, world: World) -> None:
    fleet, job = simulation.fleet, simulation.job
    endpoint = endpoint_of(fleet, job.scenario)
    check_context(job, endpoint)
    run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
    unit = TextUnit("word", 1.0, 0.0)
    session = Session(job.scenario, SimulatedAdapter(world), unit, "", run_id, None, world, bodies)
    probe = None
    if job.plans is None:
        say(f"looking for the load that {fleet.replicas} x {fleet.deployment.model.name} bears ...")
        probe = await probe_server(session, FLOOD_USERS * fleet.replicas)
    spec = spec_of(fleet)
    ladder = Ladder(job, spec, probe)
    say(ladder.plan_line())
    described = manifest(job, session, endpoint, spec, [SAYS, *assumed(fleet)], "virtual time")
    with RunFolder(job.folder, described | {"simulated": {"conditions": conditions(fleet)}}) as folder:
        session.sink = UntimedSink(folder.writer)
        with Display(ladder.n_expected, world.now_ns).running() as display:
            await run_ladder(session, ladder.next_plan, opening(folder, display), ladder.closing(display))
        folder.save_manifest(finished=True)


def endpoint_of(fleet: FleetConfig, scenario: Scenario) -> Endpoint:
    """The simulated server as a preflight would have found it."""
    return Endpoint(
        url=URL,
        model=fleet.deployment.model.name,
        api=scenario.api,
        engine="openloop-reference, simulated",
        max_model_len=fleet.engine.max_model_len,
        send_ignore_eos=True,
        reports_usage=True,
        notes=(),
    )


def spec_of(fleet: FleetConfig) -> Spec:
    """What the bound is told: the fleet's replicas, and the KV pools as they are."""
    d = fleet.deployment
    if d.speculation.n_tokens:
        return {"reason": SPECULATES}
    replicas = fleet.replicas + fleet.prefill_replicas
    return {
        "shape": asdict(d.model),
        "hardware": asdict(d.hardware),
        "devices": d.devices,
        "replicas": replicas,
        "precision": d.precision,
        "kv_precision": d.kv_precision,
        "kv_pool_bytes": replicas * fleet.engine.capacity_tokens * d.kv_token_bytes,
        "reason": None,
    }


def conditions(fleet: FleetConfig) -> dict[str, str]:
    """What the run holds for, where it is not a measurement's."""
    d, engine, speculation = fleet.deployment, fleet.engine, fleet.deployment.speculation
    flags = ", ".join(f"{f.name}={getattr(engine, f.name)}" for f in fields(engine) if f.name in SHOWN)
    drafted = f"{speculation.n_tokens} tokens a step, acceptance {speculation.acceptance:g} (assumed)"
    return {
        "precision": d.precision,
        "kv_dtype": d.kv_precision,
        "engine_flags": flags,
        "speculation": drafted if speculation.n_tokens else "off",
        "hardware": f"{d.hardware.name} (simulated)",
        "split": split_text(fleet),
        "power_and_clocks": "none (simulated)",
        "client_machine": "none (virtual time)",
        "connections": "none (virtual time)",
        "receive_stamps": "virtual time, exact",
    }


SHOWN = ("max_num_seqs", "max_num_batched_tokens", "block_size", "num_blocks", "enable_prefix_caching", "admission")


def split_text(fleet: FleetConfig) -> str:
    """Replicas and how each is split."""
    each = fleet.deployment.split
    if fleet.prefill_replicas:
        return f"{fleet.prefill_replicas} prefill + {fleet.replicas} decode replicas of {each}, {fleet.router}"
    return f"{fleet.replicas} replicas of {each}, {fleet.router}" if fleet.replicas > 1 else each


def assumed(fleet: FleetConfig) -> list[str]:
    """Every assumption that plays a part, with its value; those that were changed say so."""
    defaults, used = Assumptions(), fleet.deployment.assumed
    told = [
        f"{f.name} {getattr(used, f.name):g}"
        + (" (given)" if getattr(used, f.name) != getattr(defaults, f.name) else "")
        for f in fields(used)
    ]
    noise = fleet.noise
    varies = [f"Service noise: {noise.run_cv:.1%} from run to run, {noise.step_cv:.1%} from step to step (CV)."]
    return [f"Assumed: {', '.join(told)}.", *(varies if noise.run_cv or noise.step_cv else [])]
