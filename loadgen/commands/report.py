"""`bench report`: a run folder's page, written anew from its records."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Where the page goes [FOLDER/report.html]."
)
def report(folder: Path, out: Path | None) -> None:
    """Derive summary.json and report.html of the run in FOLDER from its records, also after a crash.

    With --out only the page is written, for a folder that can't be written any more.
    """
    from loadgen.commands.problems import users_problems
    from loadgen.commands.running import check_valid
    from loadgen.commands.writing import REPORT, check_writable, write_page
    from loadgen.run_summary import summarize_folder

    with users_problems():
        check_writable(out)
        summary = summarize_folder(folder, save=out is None)
        click.echo(write_page(out or folder / REPORT, summary))
    check_valid(summary)
