"""Drives the client against the mock server, one load after another, and tells what it can offer."""

from __future__ import annotations

import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import click

from engine_adapters.dialect import Asking, DialectAdapter
from engine_adapters.mock.process import Build, MockError, MockServer, build
from engine_adapters.openai import CHAT
from engine_adapters.transport import HttpClient
from loadgen.analysis.summary import scrub
from loadgen.collectors.machine import client_machine, machine_text, versions
from loadgen.collectors.records import PointLog, RequestRecord
from loadgen.collectors.run_folder import RunFolder
from loadgen.commands.common import InvalidRun, UsageProblem
from loadgen.commands.measuring import say, uvloop_is_there
from loadgen.commands.problems import users_problems
from loadgen.commands.progress import Display
from loadgen.generator.point import Progress
from loadgen.scenario.prompts import TextUnit
from loadgen.scenario.schedule import PointSchedule
from loadgen.self_test.ladder import PARTS, QUICK, Part, affordable, files_wanted, next_load, plan_of, scenario_of
from loadgen.self_test.own_process import core_busy_s, open_files, pinned_apart, rss_bytes
from loadgen.self_test.rung import Rung, Used, rung_of
from loadgen.self_test.telling import HEAD, progress_line, sentences, table_row
from loadgen.session import Session

WORD = TextUnit("word", 1.0, 0.0)  # the mock server counts words
RUN_ID = "doctor"
POLL_S = 0.005
Measured = tuple[PointLog, list[RequestRecord], Used]
Look = tuple[float, float, float | None, float | None]


@dataclass
class Examination:
    """A run of the doctor: what is tried, on which cores (client's, server's), and what came out so far."""

    parts: Sequence[Part]
    server: Build
    cores: tuple[int, int] | None
    display: Display = field(default_factory=lambda: Display(None))
    rss_at_start: int | None = field(default_factory=rss_bytes)
    rungs: list[Rung] = field(default_factory=list)
    finished: bool = False


def examine_client(quick: bool, as_json: bool) -> None:
    """Try all loads and print what the client can offer; Ctrl-C keeps what was tried so far.

    Raises InvalidRun when not one load could be offered.
    """
    parts = QUICK if quick else PARTS
    wanted = max(files_wanted(part, load) for part in parts for load in part.loads)
    say(f"client machine: {machine_text(client_machine())}")
    with users_problems(), open_files(wanted) as max_files, pinned_apart() as cores:
        affordable_parts = [affordable(part, max_files) for part in parts]
        examination = Examination([part for part, _ in affordable_parts], build(), cores)
        for note in (*introduction(examination), *(note for _, note in affordable_parts if note)):
            say(note)
        try:
            with examination.display.running():
                try_all(examination)
            examination.finished = True
        except MockError as error:
            raise UsageProblem(str(error)) from None
        finally:
            tell(examination, as_json)
    if not any(rung.offered for rung in examination.rungs):
        raise InvalidRun("not one load could be offered and timed: is this machine busy with other work?")


def introduction(examination: Examination) -> Iterator[str]:
    """Which core is whose, and which server it is."""
    kind = examination.server.kind
    if examination.cores is None:
        yield f"one core for client and mock server ({kind}): the figures are those of both together"
    else:
        yield f"client on core {examination.cores[0]}, mock server ({kind}) on core {examination.cores[1]}"
    if examination.server.note:
        yield examination.server.note


def try_all(examination: Examination) -> None:
    """Climb each part's ladder."""
    for part in examination.parts:
        tried: list[Rung] = []
        while (load := next_load(part, tried)) is not None:
            tried.append(try_load(examination, part, load))
            examination.rungs.append(tried[-1])
            examination.display.done(progress_line(tried[-1], part))


def try_load(examination: Examination, part: Part, load: int) -> Rung:
    """Drive one load against a fresh mock server and judge it by that server's log."""
    plan = plan_of(part, load, point=len(examination.rungs))
    server = MockServer(
        ttft_ms=part.ttft_ms,
        itl_ms=part.itl_ms,
        phase=part.mode == "closed",
        max_conns=2 * files_wanted(part, load),
        cores=examination.cores and {examination.cores[1]},
        how=examination.server,
    )
    with server as mock, tempfile.TemporaryDirectory(prefix="openloop-doctor-") as scratch:
        drive = partial(_drive, examination, part, plan, mock, Path(scratch) / "run")
        log, records, used = anyio.run(drive, backend_options={"use_uvloop": uvloop_is_there()})
        truth = list(mock.truth().entries())
    rung = rung_of(part, load, log, records, RUN_ID, truth, used)
    del records, truth
    gc.collect()
    return rung


async def _drive(examination: Examination, part: Part, plan: PointSchedule, mock: MockServer, folder: Path) -> Measured:
    """One load point as `bench run` makes it, records on disk included."""
    client, progress = HttpClient(mock.url), Progress()
    adapter = DialectAdapter(client, CHAT, Asking("mock"))
    window = WindowUse(plan, progress, looks(examination, mock))
    examination.display.start(plan, progress)
    try:
        with RunFolder(folder, {"points": []}) as run_folder:
            session = Session(scenario_of(part), adapter, WORD, "doctor", RUN_ID, run_folder.writer)
            async with anyio.create_task_group() as watchers:
                watchers.start_soon(window.watch)
                log, records = await session.measure(plan, progress)
                watchers.cancel_scope.cancel()
            memory_bytes = rss_bytes()
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()
    return log, records, window.used(memory_bytes, examination.rss_at_start)


def looks(examination: Examination, mock: MockServer) -> Callable[[], Look]:
    """How to read the clocks of a window: (now, the client's CPU, the server's CPU, the client's core), in seconds."""
    core = examination.cores and examination.cores[0]
    return lambda: (
        time.monotonic(),
        time.process_time(),
        mock.cpu_s(),
        None if core is None else core_busy_s(core),
    )


class WindowUse:
    """What the measured window alone took: a cool-down would thin it out."""

    def __init__(self, plan: PointSchedule, progress: Progress, look: Callable[[], Look]) -> None:
        self._plan = plan
        self._progress = progress
        self._look = look
        self._seen: list[Look] = []

    async def watch(self) -> None:
        """Look at the start and at the end of the window."""
        while not self._progress.started_ns:
            await anyio.sleep(POLL_S)
        begin_s = self._progress.started_ns / 1e9 + self._plan.warmup_s
        for at_s in (begin_s, begin_s + self._plan.duration_s):
            await anyio.sleep(max(at_s - time.monotonic(), 0.0))
            self._seen.append(self._look())

    def used(self, memory_bytes: int | None, memory_at_start: int | None) -> Used:
        """What lies between the two looks; a point that ended before its window did counts up to now."""
        now = self._look()
        first, last = (*self._seen, now, now)[:2]
        above_start = None if memory_bytes is None or memory_at_start is None else memory_bytes - memory_at_start
        return Used(
            window_s=max(last[0] - first[0], 1e-9),
            client_cpu_s=last[1] - first[1],
            server_cpu_s=less(last[2], first[2]),
            core_busy_s=less(last[3], first[3]),
            memory_bytes=above_start,
        )


def less(later: float | None, earlier: float | None) -> float | None:
    """The difference, where both are known."""
    return None if later is None or earlier is None else later - earlier


def tell(examination: Examination, as_json: bool) -> None:
    """Print the table and the sentences, or all of it as JSON; nothing when no load was tried to its end."""
    told = sentences(examination.parts, examination.rungs)
    if as_json:
        click.echo(json.dumps(scrub(as_data(examination, told)), indent=2, allow_nan=False))
        return
    by_name = {part.name: part for part in examination.parts}
    rows = [table_row(rung, by_name[rung.part]) for rung in examination.rungs]
    click.echo("\n".join([HEAD, *rows, "", *told]) if rows else "", nl=bool(rows))


def as_data(examination: Examination, told: Sequence[str]) -> dict[str, object]:
    """What --json prints."""
    cores = examination.cores
    return {
        "schema_version": 1,
        "finished": examination.finished,
        "client": {
            "machine": client_machine(),
            "versions": versions(),
            "loop": "uvloop" if uvloop_is_there() else "asyncio",
            "core": cores and cores[0],
        },
        "server": {"kind": examination.server.kind, "note": examination.server.note, "core": cores and cores[1]},
        "rungs": [rung.as_dict() for rung in examination.rungs],
        "sentences": list(told),
    }
