"""Writes the client's tables of README.md from results: `python benchmarks/client/readme.py RESULTS.json ...`.

Nobody types a figure: the block between the marks is made anew, and a test holds it to the files that it names.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from table import Row, events_of, goals_table, grid, number, of, slopes_us, spread, two, values

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- client tables: made by benchmarks/client/readme.py from ", "<!-- end of client tables -->"
HEAD = ["client", "a: us/event", "b: us/event", "TTFT error at 200/s, ms", "at 500/s, ms", "achieved at 500/s"]


def main() -> int:
    """Replace the block in README.md."""
    names = [Path(name).name for name in sys.argv[1:]]
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, after = text[: text.index(BEGIN)], text[text.index(END) + len(END) :]
    readme.write_text(before + block(names) + after, encoding="utf-8")
    return 0


def block(names: Sequence[str]) -> str:
    """The block for these files of benchmarks/results, marks included."""
    results = [json.loads((ROOT / "benchmarks" / "results" / name).read_text(encoding="utf-8")) for name in names]
    return "\n\n".join([f"{BEGIN}{' '.join(names)} -->", *map(section, results), END])


def section(found: Mapping[str, Any]) -> str:
    """One file: its conditions in a line, the clients, and our goals."""
    runs = [run for run in found["runs"] if "failed" not in run]
    clients = list(dict.fromkeys(run["client"] for run in runs))
    rounds = max(run["repeat"] for run in runs) + 1
    where = f"{found['machine']['cpu']}, {found['machine']['cores']} cores, {found['machine']['system']}"
    title = f"{found['date_utc']} UTC, {where}; medians of {rounds} round{'s' * (rounds > 1)}, errors p50 / p99:"
    tables = [title, grid(HEAD, [row(client, of(runs, client)) for client in clients])]
    return "\n\n".join(tables if rounds == 1 else [*tables, goals_table(runs)])


def row(client: str, runs: Sequence[Mapping[str, Any]]) -> Row:
    """One client."""
    costs = [spread([us / events_of(load) for us in slopes_us(runs, load)], ".3g") for load in ("a", "b")]
    errors = [two(runs, load, "ttft") for load in ("c200", "c500")]
    return [client, *costs, *errors, number(values(runs, "c500", "arrivals", "rate_rps"), ".0f")]


if __name__ == "__main__":
    sys.exit(main())
