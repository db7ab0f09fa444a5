"""`bench compare`: two runs in one page."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("run_a", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=Path("compare.html"), show_default=True, metavar="FILE")
@click.option("--force", is_flag=True, help="Replace the page if it exists.")
@click.option("--names", metavar="A,B", help="What to call the two [engine and model].")
def compare(run_a: Path, run_b: Path, out: Path, force: bool, names: str | None) -> None:
    """Lay the runs in folders RUN_A and RUN_B over each other: curves, ratios, and every difference in conditions."""
    from loadgen.commands.common import UsageProblem
    from loadgen.commands.problems import users_problems
    from loadgen.commands.writing import check_new, whole
    from loadgen.run_summary import summarize_folder
    from reports.compare_page import compare_text, write_compare

    with users_problems():
        check_new(out, force)
        a, b = (summarize_folder(folder, save=False) for folder in (run_a, run_b))
    called = tuple(names.split(",")) if names else default_names(a, b, run_a, run_b)
    if len(called) != 2 or not all(name.strip() for name in called):
        raise UsageProblem(f"--names {names}: give two names, as in --names 'vLLM,SGLang'")
    whole(out, lambda scratch: write_compare(a, b, scratch, (called[0].strip(), called[1].strip())))
    click.echo(compare_text(a, b, (called[0].strip(), called[1].strip())))
    click.echo(f"page  {out}")


def default_names(a: dict[str, object], b: dict[str, object], run_a: Path, run_b: Path) -> tuple[str, str]:
    """The models where they differ, else the engines, else the folders."""
    for key in ("model", "engine"):
        first, second = a["conditions"][key], b["conditions"][key]  # type: ignore[index]
        if first != second:
            return first, second
    return run_a.name, run_b.name
