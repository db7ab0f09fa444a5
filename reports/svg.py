"""The one figure style, and the way from a matplotlib figure to inline SVG that follows the page's theme."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

# Every colour is a role: in SVG it becomes var(--role), so that dark mode and print need no second drawing. PNG
# keeps the value. A and B are Okabe-Ito blue and orange.
PALETTE = {
    "ink": "#1b1d20",
    "muted": "#5b6067",
    "grid": "#e4e5e8",
    "bound": "#7d8289",
    "shade": "#c9ccd1",
    "feasible": "#e6f1f8",
    "paper": "#fefefe",
    "a": "#0072b2",
    "b": "#e69f00",
}
INK, MUTED, GRID, BOUND, SHADE, FEASIBLE, PAPER = (
    PALETTE[role] for role in ("ink", "muted", "grid", "bound", "shade", "feasible", "paper")
)
WIDE = 760.0
FONT_PT = 11
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name with $ in it is no formula
    "font.size": FONT_PT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": BOUND,
    "axes.labelcolor": MUTED,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.minor.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
    "lines.markersize": 6.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a load point stands in a figure; `key` names it on the whole page, `text` is its aria-label."""

    axes: Axes
    x: float
    y: float
    key: str
    text: str


@dataclass(slots=True)
class Plot:
    """A figure being drawn: one pair of axes, its size in points, and the marks that hover and focus react to."""

    figure: Figure
    axes: Axes
    width: float
    height: float
    marks: list[Mark] = field(default_factory=list)

    def mark(self, x: float, y: float, key: str, text: str) -> None:
        """Remember a load point."""
        self.marks.append(Mark(self.axes, x, y, key, text))


@contextmanager
def style() -> Iterator[None]:
    """The figure style; glyphs that the layout font lacks are the reader's fonts' business."""
    with mpl.rc_context(cast(Any, STYLE)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        yield


def plot(width: float, height: float, top: float = 12, left: float = 58, right: float = 12) -> Plot:
    """Axes with margins in points, so that wide and narrow drawings of a figure look alike."""
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    box = (left / width, 44 / height, 1 - (left + right) / width, 1 - (44 + top) / height)
    return Plot(figure, figure.add_axes(box), width, height)


def grid(n: int, width: float, panel: tuple[float, float] = (165, 112)) -> tuple[Plot, list[Axes]]:
    """`n` small pairs of axes in rows, at least as wide as `panel`; the plot's own axes are the first of them."""
    across = max(int(width // panel[0]), 1)
    down = -(-n // across)
    height = down * panel[1]
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    left, right, top, bottom = 32, 10, 24, 24
    made = []
    for i in range(n):
        x, y = (i % across) * width / across, height - (i // across + 1) * panel[1]
        size = (width / across - left - right, panel[1] - top - bottom)
        box = ((x + left) / width, (y + bottom) / height, size[0] / width, size[1] / height)
        made.append(figure.add_axes(box))
    return Plot(figure, made[0], width, height), made


def axis_number(value: float) -> str:
    """Tick text: thousands separated, SI prefix from 100,000 on."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e5, "k")):
        if abs(value) >= limit:
            return f"{value / {'G': 1e9, 'M': 1e6, 'k': 1e3}[unit]:,.4g}{unit}"
    return f"{value:,.10g}"


def number_axis(axis: Any) -> None:
    """Write an axis's ticks with thousands separators."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: axis_number(value)))


def log2_axis(axes: Axes, low: float, high: float, most: int) -> None:
    """Powers of two on x, thinned to at most `most` ticks."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(low, high)
    powers = [p for p in range(-12, 24) if low <= 2.0**p <= high]
    step = max(1, -(-len(powers) // most))
    axes.set_xticks([2.0**p for p in powers if p % step == 0])
    axes.minorticks_off()
    number_axis(axes.xaxis)


def png(drawn: Plot, path: Path) -> None:
    """The drawing on white paper at twice its size."""
    with style():
        FigureCanvasAgg(drawn.figure)
        drawn.figure.savefig(path, dpi=144, facecolor="white")


def svg(drawn: Plot, name: str, title: str, description: str) -> str:
    """Inline SVG: ids are prefixed with `name`, colours are CSS variables, text is text in the page's own font.

    The drawing is one image to a screen reader (`description`); the load points lie over it as focusable marks.
    """
    with style():
        FigureCanvasSVG(drawn.figure)
        drawn.figure.draw_without_rendering()
        marks = [_mark(drawn, mark, first=number == 0) for number, mark in enumerate(drawn.marks)]
        buffer = io.StringIO()
        with mpl.rc_context({"svg.hashsalt": name}):
            drawn.figure.savefig(buffer, format="svg", metadata={"Date": None})
    drawing = _themed(_inner(buffer.getvalue()), name)
    size = f"{drawn.width:g} {drawn.height:g}"
    return (
        f'<svg class="plot" viewBox="0 0 {size}" role="group" aria-label="{escape(title)}">'
        f'<g role="img" aria-label="{escape(description)}">{drawing}</g><g class="points">{"".join(marks)}</g></svg>'
    )


def _inner(document: str) -> str:
    inside = document[document.index(">", document.index("<svg")) + 1 : document.rindex("</svg>")]
    return re.sub(r"<metadata>.*?</metadata>", "", inside, flags=re.S)


def _themed(drawing: str, name: str) -> str:
    roles = {value: role for role, value in PALETTE.items()}
    drawing = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', drawing)
    drawing = re.sub(r'(?:xlink:)?href="#([^"]+)"', rf'href="#{name}-\1"', drawing)
    drawing = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", drawing)
    drawing = re.sub(r"#[0-9a-f]{6}(?=[;\"])", lambda found: _variable(found[0], roles), drawing)
    drawing = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", drawing)
    drawing = re.sub(r"font-family: [^;\"]*;?", "", drawing)
    return re.sub(r">\s+<", "><", drawing).strip()


def _variable(colour: str, roles: dict[str, str]) -> str:
    return f"var(--{roles[colour]})" if colour in roles else colour


def _mark(drawn: Plot, mark: Mark, first: bool) -> str:
    x, y = mark.axes.transData.transform((mark.x, mark.y))
    at = f'cx="{x:.1f}" cy="{drawn.height - y:.1f}"'
    return (
        f'<g class="pt" data-point="{escape(mark.key)}" data-x="{mark.x:.6g}" data-y="{mark.y:.6g}" role="img"'
        f' tabindex="{0 if first else -1}" aria-label="{escape(mark.text)}">'
        f'<circle class="hit" {at} r="13"/><circle class="halo" {at} r="9"/></g>'
    )


def polylines(x: Sequence[float], y: Sequence[float | None]) -> tuple[list[float], list[float]]:
    """The pairs whose y is there."""
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if b is not None]
    return [a for a, _ in pairs], [b for _, b in pairs]
