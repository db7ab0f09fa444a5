"""`bench report`: a run folder's page, written anew from its records."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Where the page goes [FOLDER/report.html]."
)
@click.option("--force", is_flag=True, help="Replace the page of --out if it exists.")
def report(folder: Path, out: Path | None, force: bool) -> None:
    """Derive summary.json and report.html of the run in FOLDER from its records, also after a crash.

    With --out only the page is written, for a folder that can't be written any more.
    """
    from loadgen.commands.problems import users_problems
    from loadgen.commands.running import check_valid
    from loadgen.commands.writing import REPORT, check_new, write_page
    from loadgen.run_summary import summarize_folder

    with users_problems():
        check_new(out, force)
        summary = summarize_folder(folder, save=out is None)
        click.echo(write_page(out or folder / REPORT, summary))
    check_valid(summary)
