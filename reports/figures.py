"""The curve: concurrency against output tokens/s under its bounds, for one run or two overlaid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reports.marks import Run, draw_points, note
from reports.readings import (
    LIMITER_WORDS,
    Point,
    Summary,
    breaks_slo,
    drawable,
    heaviest_stable,
    knee_state,
    point_at,
    short,
    throughput,
    verdict,
)
from reports.svg import (
    BOUND,
    FEASIBLE,
    INK,
    MUTED,
    PALETTE,
    SHADE,
    WIDE,
    Plot,
    log2_axis,
    number_axis,
    plot,
    png,
    style,
)

FAR = 2.5  # a bound further away than this is named at the edge, so that the measured curve stays readable
NARROW = 500.0  # below this width some words are left out
ROW = 14.0  # height of one line of labels, points
LETTER = 5.8  # width of a letter in a label, points
MARGINS = 70.0  # left and right of the axes, points
DASHES = {"bandwidth_tps": (5, 3), "compute_tps": (9, 3, 2, 3), "latency_tps": (1.5, 2.5)}


def _bounds(runs: Sequence[Run], x: np.ndarray) -> list[tuple[str, str, np.ndarray]]:
    """(label, key, tokens/s over `x`) of each bound; equal bounds of two runs are drawn once, unnamed."""
    curves = [run.summary["roofline"]["curve"] for run in runs]
    same = all(curve == curves[0] for curve in curves)
    found = []
    for run in runs[: 1 if same else None]:
        known = _bound_rows(run.summary)
        for key in _shown_bounds(known):
            rows = [(row["concurrency"], row[key]) for row in known if row.get(key)]
            if len(rows) > 1:
                y = _log_interpolated(x, np.array(rows))
                word = LIMITER_WORDS[key.removesuffix("_tps")]
                found.append((f"{'' if same else run.prefix}{word} bound", key, y))
    return found


def _bound_rows(summary: Summary) -> list[dict[str, float | None]]:
    """The roofline's curve, and to its left (fewer than one request in flight) the bounds of the points themselves."""
    curve: list[dict[str, float | None]] = summary["roofline"]["curve"]
    if not curve:
        return []
    lighter = {p["concurrency_mean"]: p["bound"] for p in summary["points"] if p["concurrency_mean"]}
    left = [{**lighter[c], "concurrency": c} for c in sorted(lighter) if c < (curve[0]["concurrency"] or 0)]
    return [*left, *curve]


def _shown_bounds(rows: Sequence[dict[str, float | None]]) -> list[str]:
    """Bandwidth and compute always; latency only where it is the bound, or its label is noise."""
    binds = any(row.get("latency_tps") and row["latency_tps"] == row.get("bound_tps") for row in rows)
    return [key for key in DASHES if key != "latency_tps" or binds]


def _log_interpolated(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Straight in log-log, so that a bound that grows with the users stays the line it is; NaN outside."""
    known_x, known_y = np.log(rows).T
    return np.asarray(np.exp(np.interp(np.log(x), known_x, known_y, left=np.nan, right=np.nan)))


@dataclass(frozen=True, slots=True)
class _Frame:
    """The extent of the curve: x from `low` to `high`, y from 0 to `top`; `heaviest` is the last measured x."""

    low: float
    high: float
    top: float
    heaviest: float


def _frame(runs: Sequence[Run]) -> _Frame | None:
    points = [point for run in runs for point in run.summary["points"] if drawable(point)]
    if not points:
        return None
    users = [point["concurrency_mean"] for point in points]
    most = max(max(throughput(point).value or 0, throughput(point).high or 0) for point in points)
    high = max(users) * 1.6
    walls = [run.summary["roofline"]["kv_wall_concurrency"] or math.inf for run in runs]
    if min(walls) <= 2.5 * max(users):
        high = max(high, min(walls) * 1.25)
    low = min(users) / 1.35
    at_most = [float(np.nanmax(y)) for _, _, y in _bounds(runs, np.array([max(users)])) if not np.isnan(y).all()]
    near = min(at_most, default=math.inf)
    top = (most or 1) * 1.3 if near > FAR * most else max(near * 1.12, most * 1.15)
    flat = [float(np.nanmax(y)) for _, _, y in _bounds(runs, np.geomspace(low, high, 50)) if not np.isnan(y).all()]
    top = max([top, *(y * 1.12 for y in flat if y <= top)])  # room for a label above a line just below the top
    return _Frame(low, high, top, max(users))


@style()
def curve(runs: Sequence[Run], width: float = WIDE, height: float = 370) -> Plot | None:
    """Concurrency (log2) against output tokens/s (from zero), with bounds, KV wall, SLO range and knee."""
    frame = _frame(runs)
    if frame is None:
        return None
    x = np.geomspace(frame.low, frame.high, 400)
    bounds = _bounds(runs, x)
    edges = _edges(runs, x, bounds, frame)
    drawn = plot(width, height, top=10 + ROW * len(edges))
    log2_axis(drawn.axes, frame.low, frame.high, most=int(width / 60))
    drawn.axes.set_ylim(0, frame.top)
    number_axis(drawn.axes.yaxis)
    drawn.axes.set_xlabel("concurrency: requests in flight, mean" + (" (log2)" if width > NARROW else ""))
    drawn.axes.set_ylabel("output tokens/s")
    _draw_bounds(drawn, x, bounds, frame)
    _label_edges(drawn, edges, frame)
    _walls(drawn, runs, frame)
    for run in runs:
        _measured(drawn, run, frame)
    return drawn


def _leaves(y: np.ndarray, top: float) -> bool:
    """The bound is above the top at the right end of what is known of it."""
    there = y[~np.isnan(y)]
    return bool(len(there)) and bool(there[-1] > top)


def _exit(y: np.ndarray, top: float) -> int:
    """Where the bound leaves the figure for good; the right end if it was never inside."""
    inside = np.flatnonzero(y <= top)
    return int(inside[-1]) if len(inside) else len(y) - 1


def _draw_bounds(drawn: Plot, x: np.ndarray, bounds: list[tuple[str, str, np.ndarray]], frame: _Frame) -> None:
    for label, key, y in bounds:
        drawn.axes.plot(x, np.minimum(y, frame.top * 1.5), color=BOUND, linewidth=1.3, dashes=DASHES[key], zorder=2)
        if not _leaves(y, frame.top) and not np.isnan(y).all():
            last = int(np.flatnonzero(~np.isnan(y))[-1])
            note(drawn, label, (x[last], y[last]), (-2, 4), ha="right", va="bottom", color=MUTED)


def _edges(
    runs: Sequence[Run], x: np.ndarray, bounds: list[tuple[str, str, np.ndarray]], frame: _Frame
) -> list[tuple[float, str]]:
    """(x, text) of what is named above the axes: bounds that leave through the top, with their value, and KV walls."""
    found = []
    for label, _, y in bounds:
        if _leaves(y, frame.top):
            there = np.flatnonzero(~np.isnan(y))
            end = int(max(there[x[there] <= frame.heaviest * 1.01], default=there[0]))
            text = f"↑ {label}, {short(float(y[end]))} at {short(float(x[end]))} users"
            found.append((float(x[_exit(y, frame.top)]), text))
    walls = {run.summary["roofline"]["kv_wall_concurrency"]: run for run in runs}
    for wall, run in walls.items():
        if wall:
            text = f"{run.prefix if len(walls) > 1 else ''}KV cache full at {short(wall)} users →"
            found.append((min(wall, frame.high), text))
    return sorted(found, reverse=True)


def _label_edges(drawn: Plot, edges: list[tuple[float, str]], frame: _Frame) -> None:
    """One row each, the rightmost lowest, so that no text stands between a label and its line."""
    inner = drawn.width - MARGINS
    for row, (at, text) in enumerate(edges):
        inside = np.log(at / frame.low) / np.log(frame.high / frame.low) * inner
        fits = inside + LETTER * len(text) < inner
        where = (at if fits else frame.high, frame.top)
        shift = (-3 if fits else 0, 4 + row * ROW)
        note(drawn, text, where, shift, ha="left" if fits else "right", va="bottom", color=MUTED)


def _walls(drawn: Plot, runs: Sequence[Run], frame: _Frame) -> None:
    for wall in {run.summary["roofline"]["kv_wall_concurrency"] for run in runs}:
        if wall and wall < frame.high:
            drawn.axes.axvspan(wall, frame.high, color=SHADE, alpha=0.35, linewidth=0, zorder=1)
            drawn.axes.axvline(wall, color=BOUND, linewidth=1.2, zorder=2)


def _measured(drawn: Plot, run: Run, frame: _Frame) -> None:
    placed = draw_points(
        drawn, run, lambda point: (point["concurrency_mean"], throughput(point)) if drawable(point) else None
    )
    if not run.key:
        _feasible(drawn, run.summary, frame)
    _knee(drawn, run)
    _verdict_notes(drawn, run, placed)
    counted = [(x, y) for point, x, y in placed if verdict(point) in ("VALID", "WARN")]
    if run.key and counted:
        above = run.key == "a"
        shift, side = ((-9, 5), "right") if above else ((9, -16), "left")
        note(drawn, run.prefix + run.name, counted[len(counted) // 2], shift, ha=side, fontweight="bold")


def _verdict_notes(drawn: Plot, run: Run, placed: list[tuple[Point, float, float]]) -> None:
    roomy = drawn.width > NARROW
    for kind, text, shift, align in (
        ("NONSTATIONARY", "overloaded: the queue grows" if roomy else "overloaded", (14, 11), "right"),
        ("INVALID", "invalid", (-6, 7), "right"),  # above a rising curve, where there is room
    ):
        found = [(x, y) for point, x, y in placed if verdict(point) == kind]
        if kind == "NONSTATIONARY":
            for at in found:
                arrow = {"arrowstyle": "<|-", "color": run.colour, "shrinkB": 5, "shrinkA": 0}
                note(drawn, "", at, (30, 0), annotation_clip=False, arrowprops=arrow)
        if found and not run.key:  # in a comparison the caption says it
            note(drawn, text, found[-1], shift, ha=align, color=MUTED)


def _feasible(drawn: Plot, summary: Summary, frame: _Frame) -> None:
    """Tint concurrency up to the best point, from the last lighter point that breaks the SLO on, or the left edge."""
    best = summary["slo"]["best_point"]
    if best is None or not drawable(point_at(summary, best)):
        return
    end = point_at(summary, best)["concurrency_mean"]
    lighter = [point for point in summary["points"] if drawable(point) and point["concurrency_mean"] <= end]
    broken = [p["concurrency_mean"] for p in lighter if verdict(p) != "INVALID" and breaks_slo(summary, p)]
    start = max(broken, default=frame.low)
    drawn.axes.axvspan(start, end, color=FEASIBLE, linewidth=0, zorder=0.5)
    drawn.axes.axvline(end, color=PALETTE["a"], linewidth=1, zorder=1)
    ground = {"facecolor": FEASIBLE, "edgecolor": "none", "pad": 1}  # hides a bound that passes there
    note(drawn, f"SLO met up to {short(end)} users", (start, frame.top), (7, -15), bbox=ground)


def _knee(drawn: Plot, run: Run) -> None:
    """The measured knee, ringed; where only overload reaches it, the heaviest load without a growing queue instead."""
    knee, model, state = run.summary["knee"]["measured"], run.summary["knee"]["model"], knee_state(run.summary)
    last, broken = heaviest_stable(run.summary), " " if drawn.width > NARROW else "\n"
    if state == "passed":
        x, y = knee["concurrency"], knee["output_tps"]
        drawn.axes.plot([x], [y], "o", markersize=15, markerfacecolor="none", markeredgecolor=run.colour, zorder=5)
        _drop(drawn, run, x, y, f"knee at{broken}{short(x)} users")
    elif state == "overloaded" and last is not None:
        x = last["concurrency_mean"]
        _drop(drawn, run, x, last["output_tps"], f"past {short(x)} users only{broken}overload gives more")
    if model and model["concurrency"] and not run.key:
        drawn.axes.plot([model["concurrency"]], [0], "^", color=BOUND, markersize=8, zorder=3, clip_on=False)
        _foot(drawn, f"model's knee {short(model['concurrency'])}", model["concurrency"], 6, MUTED)


def _drop(drawn: Plot, run: Run, x: float, y: float, text: str) -> None:
    """A line from a point down to the axis, with its text at the foot; in a comparison the caption says it."""
    drawn.axes.vlines(x, 0, y, color=run.colour, linewidth=0.9, linestyle=":", zorder=2)
    if not run.key:
        _foot(drawn, text, x, 25, INK)


def _foot(drawn: Plot, text: str, x: float, above: float, colour: str) -> None:
    """Beside x, `above` the axis; to the right, under the curve, where there is room."""
    low, high = drawn.axes.get_xlim()
    room = np.log(high / x) / np.log(high / low) * (drawn.width - MARGINS)
    fits = 7 + LETTER * max(map(len, text.split("\n"))) < room
    note(drawn, text, (x, 0), (7 if fits else -7, above), ha="left" if fits else "right", color=colour)


def curve_png(summary: Summary, path: Path) -> None:
    """The curve as a picture for a README; raises ValueError when the run has no point to draw."""
    drawn = curve([Run(summary)])
    if drawn is None:
        raise ValueError("no load point has a concurrency and a throughput: there is no curve to draw")
    png(drawn, path)
