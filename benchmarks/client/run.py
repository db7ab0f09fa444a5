"""`python benchmarks/client/run.py`: our client beside the peers, on one machine in one go; see README.md here."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from errors import arrivals, errors
from install import InstallFailed, programs
from measure import ClientFailed, Cost, measured
from ours import FLOOR, OURS, build_floor, own_figures
from peers import PEERS, Client
from table import markdown
from tokenizer import write_tokenizer
from workloads import Task, Workload, workloads

from engine_adapters.mock.process import MockServer
from engine_adapters.mock.truth import Truth
from loadgen.collectors.machine import client_machine, versions
from loadgen.collectors.run_folder import write_json

TIMEOUT_S = 240.0
OPEN_LOOP_S = 6.0
QUICK_OPEN_LOOP_S, QUICK_SHARE = 3.0, 0.25
GOALS = {
    "beside": (Workload("beside", 128, itl_ms=10.0, rate_rps=200.0, seconds=15.0), 3_000),
    "memory": (Workload("memory", 128, users=256, itl_ms=10.0), 20_000),
    "streams": (Workload("streams", 128, users=5_000, ttft_ms=0.0, itl_ms=100.0), 10_000),
}


@dataclass(frozen=True)
class Machine:
    """Where things run: the server and all measuring on one core, the whole client on another."""

    about: dict[str, Any]
    server_core: int
    client_core: int
    cache: Path
    tokenizer: Path

    def env(self, client: Client) -> dict[str, str]:
        """The user's environment with a home of its own, so that nothing is left in the user's."""
        home = self.cache / "home"
        home.mkdir(parents=True, exist_ok=True)
        return os.environ | {"HOME": str(home), "TOKENIZERS_PARALLELISM": "false"} | dict(client.env)


def main() -> int:
    """Install, measure, write the table; what was measured is kept whatever happens to the rest."""
    options = parsed()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return refuse("the server and the client need a core each, and this process may use one only")
    machine = Machine(
        client_machine(), cores[0], cores[-1], options.cache, write_tokenizer(options.cache / "tokenizer")
    )
    clients, missing = available(wanted(options), machine.cache, dict(options.venv))
    os.sched_setaffinity(0, cores[:1])
    found = results(options, machine, missing)
    try:
        for run in launches(options, machine, clients):
            found["runs"].append(run)
            save(options.out, found)
    except KeyboardInterrupt:
        say("interrupted: the results so far are kept")
    print(save(options.out, found))
    return 0


def parsed() -> argparse.Namespace:
    """The command line."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openloop-bench"
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--peers", type=names(PEERS), default=list(PEERS), help=f"of {','.join(PEERS)} [all]; an empty one for none")
    add("--skip", type=names((*PEERS, OURS.name, "floor", "goals")), default=[], help="peers, openloop, floor or goals")
    add("--workloads", type=names("abc"), default=list("abc"), help="of a,b,c [all]")
    add("--repeats", type=int, default=3, help="launches of each kind; medians are shown [3]")
    add("--quick", action="store_true", help="a quarter of the requests: to try things, not to publish")
    add("--out", type=Path, default=Path(__file__).parents[1] / "results", help="folder of the results")
    add("--cache", type=Path, default=cache, help="virtual environments and scratch files [%(default)s]")
    add("--venv", type=pair, action="append", default=[], metavar="PEER=DIR", help="use this environment; repeatable")
    return parser.parse_args()


def names(known: Any) -> Callable[[str], list[str]]:
    """A parser of comma separated names out of `known`."""

    def parse(text: str) -> list[str]:
        given = [name for name in text.split(",") if name]
        if unknown := [name for name in given if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(known)}")
        return given

    return parse


def pair(text: str) -> tuple[str, Path]:
    """NAME=DIR."""
    name, _, folder = text.partition("=")
    if name not in PEERS or not (Path(folder) / "bin").is_dir():
        raise argparse.ArgumentTypeError(f"{text}: give one of {', '.join(PEERS)}, =, and a virtual environment")
    return name, Path(folder).absolute()


def wanted(options: argparse.Namespace) -> list[Client]:
    """The clients to measure, ours and the floor first."""
    own = [client for client in (OURS, FLOOR) if {client.name, client.name.removeprefix("C ")}.isdisjoint(options.skip)]
    return own + [PEERS[name] for name in options.peers if name not in options.skip]


def available(
    clients: list[Client], cache: Path, given: Mapping[str, Path]
) -> tuple[list[tuple[Client, Path]], dict[str, str]]:
    """(clients with the folder of their commands, why the others are missing by name)."""
    found: list[tuple[Client, Path]] = []
    missing: dict[str, str] = {}
    for client in clients:
        say(f"preparing {client.title}")
        try:
            found.append((client, commands_of(client, cache, given)))
        except InstallFailed as error:
            missing[client.title] = homeless(str(error))
            say(f"left out: {error}")
    return found, missing


def commands_of(client: Client, cache: Path, given: Mapping[str, Path]) -> Path:
    """Where the client's commands are, installed or built if need be."""
    if client is OURS:
        return Path(sys.executable).parent
    if client is FLOOR:
        if problem := build_floor(cache / "floor"):
            raise InstallFailed(problem)
        return cache / "floor"
    return given[client.name] / "bin" if client.name in given else programs(client, cache)


def results(options: argparse.Namespace, machine: Machine, missing: Mapping[str, str]) -> dict[str, Any]:
    """The file of results before the first one: date, machine, versions, conditions."""
    loads = workloads(QUICK_OPEN_LOOP_S if options.quick else OPEN_LOOP_S).values()
    return {
        "date_utc": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        "machine": machine.about,
        "cores": {"server": machine.server_core, "client": machine.client_core},
        "versions": versions(),
        "repeats": options.repeats,
        "quick": options.quick,
        "conditions": {load.name: load.conditions for load in loads if load.name[0] in options.workloads},
        "match": {client.title: client.match for client in wanted(options)},
        "notes": {client.title: client.note for client in wanted(options) if client.note},
        "missing": dict(missing),
        "runs": [],
    }


def save(folder: Path, found: Mapping[str, Any]) -> str:
    """Write the results as JSON and as the table; the table."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"client-{found['date_utc'].replace(' ', '-').replace(':', '')}"
    write_json(folder / f"{stem}.json", found)
    text = markdown(found)
    (folder / f"{stem}.md").write_text(text, encoding="utf-8")
    return text


# --- one launch after the other ------------------------------------------------------------------------------------


def launches(
    options: argparse.Namespace, machine: Machine, clients: list[tuple[Client, Path]]
) -> Iterator[dict[str, Any]]:
    """All launches in order; every repeat goes round all clients, so that a drift of the machine meets each alike."""
    given_up: set[tuple[str, str]] = set()
    for repeat in range(options.repeats):
        for client, folder in clients:
            for load, n_requests in steps(client, options):
                if (client.name, load.name) in given_up:
                    continue
                run = launch(machine, client, folder, load, n_requests)
                if "failed" in run:
                    given_up.add((client.name, load.name))
                yield run | {"repeat": repeat}
    for client, folder in clients if "goals" not in options.skip else []:
        if client is OURS:
            for load, n_requests in GOALS.values():
                yield launch(machine, client, folder, load, n_requests) | {"repeat": 0}


def steps(client: Client, options: argparse.Namespace) -> Iterator[tuple[Workload, int]]:
    """The launches of one repeat: in closed loop with few and with many requests."""
    for load in workloads(QUICK_OPEN_LOOP_S if options.quick else OPEN_LOOP_S).values():
        if load.name[0] not in options.workloads or (load.rate_rps and not client.open_loop):
            continue
        if load.users:
            few, many = client.requests[load.name]
            yield load, few
            yield load, few + round((many - few) * (QUICK_SHARE if options.quick else 1))
        else:
            yield load, load.n_arrivals


def launch(machine: Machine, client: Client, folder: Path, load: Workload, n_requests: int) -> dict[str, Any]:
    """One run of one client against a server of its own; what it cost and how exact it was."""
    run: dict[str, Any] = {"client": client.title, "load": load.name, "n_requests": n_requests}
    say(f"{client.title}: {load.name}, {n_requests:,} requests", end=" ")
    scratch = Path(tempfile.mkdtemp(prefix="run-", dir=machine.cache))
    try:
        server = MockServer(
            ttft_ms=load.ttft_ms, itl_ms=load.itl_ms, phase=load.itl_ms > 0, cores={machine.server_core}
        )
        with server:
            task = Task(load, n_requests, server.url, scratch, folder, machine.tokenizer)
            cost = cost_of(machine, client, task)
            truth = server.truth()
        run |= figures(client, task, cost, truth)
        say(f"{cost.cpu_s:.1f} s of CPU in {cost.wall_s:.1f} s")
    except ClientFailed as error:
        run["failed"] = homeless(str(error))
        say(f"failed: {error}")
    except Exception as error:  # a peer whose output is not what this version should write
        run["failed"] = homeless(f"its results could not be read: {type(error).__name__}: {error}")
        say(run["failed"])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return run


def cost_of(machine: Machine, client: Client, task: Task) -> Cost:
    """Run the client. Memory is sampled where no instants are judged: the sampling disturbs a little."""
    return measured(
        client.command(task),
        client_core=machine.client_core,
        server_core=machine.server_core,
        env=machine.env(client),
        folder=task.folder,
        timeout_s=TIMEOUT_S,
        memory=task.load.name in ("a", "memory"),
        exit_codes=client.exit_codes,
    )


def figures(client: Client, task: Task, cost: Cost, truth: Truth) -> dict[str, Any]:
    """All that the tables need of one launch."""
    came = arrivals(truth, task.load)
    if not came.n:
        raise ClientFailed("no request of the workload reached the server")
    start_bytes, above_bytes = cost.memory_bytes(came.first_ns)
    found: dict[str, Any] = {
        "cpu_s": cost.cpu_s,
        "wall_s": cost.wall_s,
        "start_bytes": start_bytes,
        "peak_above_bytes": above_bytes,
        "arrivals": asdict(came),
    }
    if task.load.itl_ms:
        found["errors"] = errors(client.answers(task), truth, task.load, client.match).row()
    return found | ({"own": own_figures(task)} if client is OURS else {})


def homeless(text: str) -> str:
    """A message for a file that others will read: the user's home in it is only `~`."""
    return text.replace(str(Path.home()), "~")


def say(text: str, end: str = "\n") -> None:
    """Progress, beside the table on standard output."""
    print(text, end=end, file=sys.stderr, flush=True)


def refuse(why: str) -> int:
    """Exit code 2 with the reason."""
    say(f"Error: {why}")
    return 2


if __name__ == "__main__":
    sys.exit(main())
