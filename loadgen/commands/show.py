"""`bench show`: a run folder's table on the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--format", "form", type=click.Choice(["table", "csv", "markdown", "json"]), default="table", show_default=True
)
def show(folder: Path, form: str) -> None:
    """Print the load points of the run in FOLDER with their conditions; writes nothing."""
    from loadgen.commands.problems import users_problems
    from loadgen.run_summary import summarize_folder
    from reports.exports import points_csv, points_markdown
    from reports.tables import points_table

    with users_problems():
        summary = summarize_folder(folder, save=False)
    if form == "json":
        click.echo(json.dumps(summary, indent=1, allow_nan=False))
        return
    draw = {"table": points_table, "csv": points_csv, "markdown": points_markdown}[form]
    click.echo(draw(summary))
