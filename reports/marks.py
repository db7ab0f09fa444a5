"""A run and its looks, and how its load points are drawn: one marker, one line, one aria-label in every figure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reports.readings import VERDICT_WORDS, Point, Reading, Summary, by_load, short, verdict
from reports.svg import INK, PALETTE, PAPER, Plot


@dataclass(frozen=True, slots=True)
class Run:
    """A summary and its looks; `key` ("" alone, "a", "b") tells its points from the other run's."""

    summary: Summary
    key: str = ""
    name: str = ""
    colour: str = INK
    marker: str = "o"
    line: str = "-"

    @property
    def prefix(self) -> str:
        """ "A " in a comparison."""
        return f"{self.key.upper()} " if self.key else ""

    def point_key(self, point: Point) -> str:
        """Names a load point on the page."""
        return f"{self.key}{point['index']}"


def pair(summary_a: Summary, summary_b: Summary, names: tuple[str, str]) -> tuple[Run, Run]:
    """A and B of a comparison: other colour, other marker, other line."""
    return (
        Run(summary_a, "a", names[0], PALETTE["a"], "o", "-"),
        Run(summary_b, "b", names[1], PALETTE["b"], "s", "--"),
    )


def point_words(run: Run, point: Point) -> str:
    """What a screen reader says at a point."""
    users, tps = point["concurrency_mean"], point["output_tps"]
    where = f"{short(users)} users in flight" if users else "concurrency n/a"
    served = f"{short(tps)} output tokens per second" if tps is not None else "throughput n/a"
    return f"{run.prefix}{where}, {served}, {VERDICT_WORDS[verdict(point)]}"


def draw_point(drawn: Plot, run: Run, point: Point, x: float, y: float) -> None:
    kind = verdict(point)
    hollow = kind == "INVALID"
    ghost = kind == "NONSTATIONARY"
    drawn.axes.plot(
        [x], [y], run.marker, color=run.colour, markerfacecolor=PAPER if hollow or ghost else run.colour,
        markeredgecolor=run.colour if hollow or ghost else PAPER, markeredgewidth=1.4 if hollow or ghost else 0.8,
        alpha=0.75 if ghost else 1, zorder=5, clip_on=False,
    )  # fmt: skip
    drawn.mark(x, y, run.point_key(point), point_words(run, point))


def draw_points(
    drawn: Plot, run: Run, pick: Callable[[Point], tuple[float, Reading] | None]
) -> list[tuple[Point, float, float]]:
    """Draw all points that `pick` can place, joined where they count; gives (point, x, y) in order of load."""
    placed = [(point, found[0], found[1]) for point in by_load(run.summary) if (found := pick(point))]
    line = [(x, float(y.value or 0)) for point, x, y in placed if verdict(point) in ("VALID", "WARN")]
    drawn.axes.plot([x for x, _ in line], [y for _, y in line], run.line, color=run.colour, zorder=4)
    for point, x, y in placed:
        if y.low is not None and y.high is not None:
            drawn.axes.vlines(x, y.low, y.high, color=run.colour, linewidth=1.3, zorder=4)
        draw_point(drawn, run, point, x, float(y.value or 0))
    return [(point, x, float(y.value or 0)) for point, x, y in placed]


def note(drawn: Plot, text: str, at: tuple[float, float], shift: tuple[float, float], **extra: Any) -> None:
    drawn.axes.annotate(text, at, xytext=shift, textcoords="offset points", zorder=6, **{"color": INK, **extra})
