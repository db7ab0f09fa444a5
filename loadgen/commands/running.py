"""What `run` and `sweep` do alike: read the scenario, find the server, print the outcome, choose the exit code."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from engine_adapters.reference.config import MODELS
from loadgen.bound_spec import check_roofline
from loadgen.collectors.run_folder import FolderError
from loadgen.commands.common import InvalidRun, UsageProblem, all_overrides, base_url
from loadgen.commands.credentials import request_headers
from loadgen.commands.endpoint import Server, named_server
from loadgen.commands.measuring import Job, carry_out
from loadgen.commands.problems import users_problems
from loadgen.commands.writing import REPORT, write_page
from loadgen.run_summary import summarize_folder
from loadgen.scenario.loader import load_scenario
from loadgen.scenario.scale import scale_for_cpu
from loadgen.scenario.schedule import PointSchedule
from loadgen.scenario.schema import Scenario
from reports.tables import points_table

HARDWARE_OPTIONS = ("hardware", "devices", "precision", "model_config")
SERVER_OPTIONS = {
    **{
        name: f"--{name.replace('_', '-')}" for name in (*HARDWARE_OPTIONS, "insecure", "ca_file", "trust_env", "http2")
    },
    "cert_file": "--cert",
    "key_file": "--key",
}


@dataclass(frozen=True)
class Wanted:
    """The scenario as it will run, with what has to be said about it."""

    scenario: Scenario
    notes: tuple[str, ...]
    scaled: bool
    hardware_from_user: bool

    def job(self, server: Server, folder: Path, plans: Sequence[PointSchedule] | None) -> Job:
        """The run to make of it."""
        return Job(self.scenario, server, folder, plans, self.notes, self.scaled, self.hardware_from_user)


def resolve(name: str, url: str | None, options: Mapping[str, Any], load: Mapping[str, Any] | None = None) -> Wanted:
    """The scenario with all overrides; without a URL scaled to what the bundled engine serves on a CPU."""
    extra = all_overrides(
        tuple(options["overrides"]),
        seed=options["seed"],
        api=options["api"],
        **{f"roofline.{key}": options[key] for key in HARDWARE_OPTIONS if options.get(key) is not None},
        **{f"load.{key}": value for key, value in (load or {}).items()},
    )
    with users_problems():
        scenario = load_scenario(name, extra)
        given = options.get("hardware") is not None or any(
            o.startswith("roofline.hardware") for o in options["overrides"]
        )
        check_roofline(scenario.roofline)
        if url is not None:
            return Wanted(scenario, (), False, given)
        timed = any(override.startswith(("load.duration", "load.warmup", "load.cooldown")) for override in extra)
        scaled, sentence = scale_for_cpu(scenario, keep_times=timed)
        changed = scaled != scenario
        return Wanted(scaled, (sentence,) if changed else (), changed, given)


@contextmanager
def prepared(wanted: Wanted, url: str | None, model: str | None, options: Mapping[str, Any]) -> Iterator[Server]:
    """The server of the run: the user's, or the bundled engine for the length of the block."""
    headers = request_headers(options)
    told = [option for name, option in SERVER_OPTIONS.items() if options.get(name)]
    if url is None and told:
        raise UsageProblem(f"{', '.join(told)}: this describes your server, so give its --url too")
    if url is not None:
        with users_problems():
            server = named_server(base_url(url), wanted.scenario, model, headers, options)
        yield server
        return
    from engine_adapters.reference.process import EngineStartError
    from loadgen.commands.bundled import bundled_engine

    model = model or "tiny"
    if model not in MODELS:
        raise UsageProblem(f"--model {model}: without --url the bundled engine serves {' or '.join(MODELS)}")
    click.echo(f"no --url: starting the bundled engine ({model}, CPU)", err=True)
    for note in wanted.notes:
        click.echo(note, err=True)
    try:
        with bundled_engine(model) as bundled:
            yield Server(bundled.url, bundled.model, wanted.scenario.api, headers, bundled)
    except EngineStartError as error:
        raise UsageProblem(str(error)) from None


def finish(job: Job, url: str | None) -> None:
    """Make the run, write and print its outcome; exit 4 when no point of it can be believed."""
    summary = made(job.folder, lambda: carry_out(job))
    if url is None:
        click.echo(f"your own server:  {program()} sweep {job.scenario.name} --url http://HOST:8000")
    check_valid(summary)


def made(folder: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The summary of the run that `make` makes in `folder`, with its page written and its table printed."""
    try:
        summary = make()
    except KeyboardInterrupt:
        keep_what_was_measured(folder)
        raise
    report = write_page(folder / REPORT, summary)
    click.echo(points_table(summary))
    click.echo(f"report  {report}")
    return summary


def program() -> str:
    """How this command is called from here."""
    return "bench" if shutil.which("bench") else os.path.relpath(sys.argv[0])


def keep_what_was_measured(path: Path) -> None:
    """After Ctrl-C: the folder is complete as far as it goes, and says so."""
    try:
        summary = summarize_folder(path)
    except FolderError:
        return  # interrupted before the first point: there is no folder
    if summary["points"]:
        report = write_page(path / REPORT, summary)
        n = len(summary["points"])
        click.echo(f"{n} point{'s are' if n > 1 else ' is'} kept, report  {report}", err=True)


def check_valid(summary: Mapping[str, Any]) -> None:
    """Exit code 4 when all points are INVALID or nothing was answered."""
    points = summary["points"]
    if not any(point["counts"]["ok"] for point in points):
        raise InvalidRun("no request was answered: there is nothing to draw")
    if all(point["validity"]["verdict"] == "INVALID" for point in points):
        raise InvalidRun("every point is INVALID: see the certificate in the report for what to change")
