"""Writes docs/metrics.md from the docstrings of the functions that compute the metrics."""

from __future__ import annotations

from pathlib import Path

from loadgen.analysis import metrics
from loadgen.analysis.summary import DEFINED

HEAD = """# What is measured

Made by `docs/make_metrics.py` from the docstrings of `loadgen/analysis`: do not edit. Times are seconds in files; t0 is
the instant a request was due (`from_intended`) or was handed to its socket (`from_sent`).

| metric | definition | what others call it |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = []
    for name, function in DEFINED.items():
        others = "; ".join(f"{tool}: {alias}" for tool, alias in metrics.ALIASES.get(name, {}).items())
        rows.append(f"| `{name}` | {metrics.definition(function)} | {others} |".replace("\n", " "))
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("metrics.md").write_text(page(), encoding="utf-8")
