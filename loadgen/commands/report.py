"""`bench report`: a run folder's page, written anew from its records."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def report(folder: Path) -> None:
    """Derive summary.json and report.html of the run in FOLDER from its records, also after a crash."""
    from loadgen.commands.measuring import users_problems
    from loadgen.commands.running import check_valid
    from loadgen.commands.writing import write_outputs
    from loadgen.run_summary import summarize_folder

    with users_problems():
        summary = summarize_folder(folder)
    click.echo(write_outputs(folder, summary))
    check_valid(summary)
