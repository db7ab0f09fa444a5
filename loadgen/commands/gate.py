"""`bench gate`: interleaved pairs of baseline and candidate, and a verdict that CI can act on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from loadgen.commands.common import ask_options, out_option, reach_options, scenario_options

EXIT_CODES = {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3, "INVALID": 4}


@click.command()
@click.argument("scenario")
@click.option("--baseline", required=True, metavar="URL", help="The server to compare with.")
@click.option("--candidate", metavar="URL", help="The server under test.")
@click.option("--self-check", is_flag=True, help="Baseline against itself: the smallest margins this host supports.")
@click.option(
    "--max-regression", "margins", multiple=True, metavar="'METRIC=N%'", help="Gate METRIC at N%; repeatable."
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="R",
    help="Requests/s [0.3 of the baseline's capacity].",
)
@click.option(
    "--requests",
    "n_requests",
    type=click.IntRange(min=100),
    default=400,
    show_default=True,
    help="Measured requests of each run.",
)
@click.option("--model", metavar="NAME", help="Model to ask both for [the one served].")
@click.option("--markdown", type=click.Path(path_type=Path), metavar="FILE", help="Also write the verdict as Markdown.")
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Also write the verdict as JUnit XML.")
@ask_options
@reach_options
@scenario_options
@out_option
def gate(
    scenario: str,
    baseline: str,
    candidate: str | None,
    self_check: bool,
    margins: tuple[str, ...],
    out: Path | None,
    markdown: Path | None,
    junit: Path | None,
    **options: Any,
) -> None:
    """Is CANDIDATE slower than BASELINE under SCENARIO's load by more than a margin?

    Runs 5 interleaved pairs (8, then 12 when they do not decide) with the same schedule inside a pair. Exit codes:
    0 PASS, 1 FAIL, 3 INCONCLUSIVE, 4 an invalid run.
    """
    from loadgen.commands.common import UsageProblem, new_folder
    from loadgen.commands.gating import GateJob, run_gate, wanted_margins
    from loadgen.commands.problems import users_problems
    from loadgen.commands.writing import check_writable, whole
    from reports.exports import gate_junit, gate_markdown, gate_table

    if (candidate is None) != self_check:
        raise UsageProblem("give --candidate URL, or --self-check to compare the baseline with itself")
    with users_problems():
        check_writable(markdown)
        check_writable(junit)
    job = GateJob.from_options(scenario, baseline, candidate or baseline, wanted_margins(margins), self_check, options)
    decision = run_gate(job, new_folder(out, f"gate-{job.scenario.name}"))
    click.echo(gate_table(decision))
    if markdown is not None:
        whole(markdown, lambda scratch: scratch.write_text(gate_markdown(decision), encoding="utf-8"))
    if junit is not None:
        whole(junit, lambda scratch: scratch.write_text(gate_junit(decision), encoding="utf-8"))
    raise SystemExit(EXIT_CODES[decision["verdict"]])
