"""The figures: each takes one run, or two to overlay, and gives a `Plot`, or None when there is nothing to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reports.marks import Run, draw_point, draw_points, note
from reports.readings import (
    LIMITER_WORDS,
    METRIC_WORDS,
    Point,
    Reading,
    Summary,
    breaks_slo,
    by_load,
    devices,
    drawable,
    interactivity,
    point_at,
    short,
    stat,
    throughput,
    verdict,
)
from reports.svg import BOUND, FEASIBLE, INK, MUTED, PALETTE, SHADE, Plot, log2_axis, number_axis, plot, png, style

FAR = 2.5  # a bound further away than this is named at the edge, so that the measured curve stays readable
WIDE = 760.0
NARROW = 500.0  # below this width some words are left out
ROW = 14.0  # height of one line of labels, points
DASHES = {"bandwidth_tps": (5, 3), "compute_tps": (9, 3, 2, 3), "latency_tps": (1.5, 2.5)}


# --- the curve -------------------------------------------------------------------------------------------------------


def _bounds(runs: Sequence[Run], x: np.ndarray) -> list[tuple[str, str, np.ndarray]]:
    """(label, key, tokens/s over `x`) of each bound; equal bounds of two runs are drawn once, unnamed."""
    curves = [run.summary["roofline"]["curve"] for run in runs]
    same = all(curve == curves[0] for curve in curves)
    found = []
    for run, curve in list(zip(runs, curves, strict=True))[: 1 if same else None]:
        for key in _shown_bounds(curve):
            rows = [(row["concurrency"], row[key]) for row in curve if row.get(key)]
            if len(rows) > 1:
                y = _log_interpolated(x, np.array(rows))
                word = LIMITER_WORDS[key.removesuffix("_tps")]
                found.append((f"{'' if same else run.prefix}{word} bound", key, y))
    return found


def _shown_bounds(curve: Sequence[dict[str, float | None]]) -> list[str]:
    """Bandwidth and compute always; latency only where it is the bound, or its label is noise."""
    binds = any(row["latency_tps"] and row["latency_tps"] == row["bound_tps"] for row in curve)
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
    inner = drawn.width - 70
    for row, (at, text) in enumerate(edges):
        inside = np.log(at / frame.low) / np.log(frame.high / frame.low) * inner
        fits = inside + 5.8 * len(text) < inner
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
        ("INVALID", "invalid", (0, -17), "center"),
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
    note(drawn, f"SLO met up to {short(end)} users", (start, frame.top), (7, -15))


def _knee(drawn: Plot, run: Run) -> None:
    knee, model = run.summary["knee"]["measured"], run.summary["knee"]["model"]
    if knee:
        x, y = knee["concurrency"], knee["output_tps"]
        drawn.axes.plot([x], [y], "o", markersize=15, markerfacecolor="none", markeredgecolor=run.colour, zorder=5)
        drawn.axes.vlines(x, 0, y, color=run.colour, linewidth=0.9, linestyle=":", zorder=2)
        if not run.key:
            _foot(drawn, f"knee at {short(x)} users", x, 25, INK)
    if model and model["concurrency"] and not run.key:
        drawn.axes.plot([model["concurrency"]], [0], "^", color=BOUND, markersize=8, zorder=3, clip_on=False)
        _foot(drawn, f"model's knee {short(model['concurrency'])}", model["concurrency"], 6, MUTED)


def _foot(drawn: Plot, text: str, x: float, above: float, colour: str) -> None:
    """Beside x, `above` the axis, on the side that has room."""
    low, high = drawn.axes.get_xlim()
    right = np.log(x / low) > 0.7 * np.log(high / low)
    note(drawn, text, (x, 0), (-7 if right else 7, above), ha="right" if right else "left", color=colour)


def curve_png(summary: Summary, path: Path) -> None:
    """The curve as a picture for a README; raises ValueError when the run has no point to draw."""
    drawn = curve([Run(summary)])
    if drawn is None:
        raise ValueError("no load point has a concurrency and a throughput: there is no curve to draw")
    png(drawn, path)


# --- latency, speed, spread, ratio -----------------------------------------------------------------------------------

SMALL = (360.0, 270.0)


def objective(summary: Summary, metric: str) -> tuple[str, float | None]:
    """The percentile that the SLO asks of a metric and its limit in seconds; ("p95", None) without one."""
    for one in summary["slo"]["objectives"]:
        if one["metric"] == metric:
            return str(one["stat"]), float(one["limit_s"])
    return "p95", None


def _milliseconds(reading: Reading) -> Reading:
    scaled = [None if value is None else value * 1000 for value in (reading.value, reading.low, reading.high)]
    return Reading(scaled[0], reading.reason, reading.short, scaled[1], scaled[2])


@style()
def latency(runs: Sequence[Run], metric: str) -> Plot | None:
    """Output tokens/s against a metric's percentile, with the SLO's limit."""
    name, limit_s = objective(runs[0].summary, metric)
    drawn = plot(*SMALL)

    def pick(point: Point) -> tuple[float, Reading] | None:
        reading = stat(point, metric, name)
        served = throughput(point).value
        return None if served is None or reading.value is None else (served, _milliseconds(reading))

    placed = [item for run in runs for item in _name_end(drawn, run, draw_points(drawn, run, pick))]
    if not placed:
        return None
    drawn.axes.set_xlim(0, max(x for _, x, _ in placed) * 1.1)
    _latency_axis(drawn, [y for _, _, y in placed], None if limit_s is None else limit_s * 1000)
    drawn.axes.set_xlabel("output tokens/s")
    drawn.axes.set_ylabel(f"{METRIC_WORDS[metric]} {name}, ms{_log_word(drawn)}")
    number_axis(drawn.axes.xaxis)
    return drawn


def _name_end(drawn: Plot, run: Run, placed: list[tuple[Point, float, float]]) -> list[tuple[Point, float, float]]:
    if run.key and placed:
        _, x, y = placed[-1]
        note(drawn, run.prefix.strip(), (x, y), (-8, 7), ha="right", fontweight="bold")
    return placed


def _log_word(drawn: Plot) -> str:
    return " (log)" if drawn.axes.get_yscale() == "log" else ""


def _latency_axis(drawn: Plot, values: list[float], limit: float | None = None) -> None:
    """From zero; logarithmic when the largest is 30 times the smallest; the limit at the edge when it is far."""
    largest, smallest = max(values), min(values)
    far = limit is not None and limit > 3 * largest
    top = max(largest, 0 if far or limit is None else limit) * 1.15
    if smallest > 0 and largest > 30 * smallest:
        drawn.axes.set_yscale("log")
        drawn.axes.set_ylim(smallest / 1.5, top * 1.3)
        drawn.axes.minorticks_off()
    else:
        drawn.axes.set_ylim(0, top or 1)
    number_axis(drawn.axes.yaxis)
    if limit is not None:
        edge = drawn.axes.get_ylim()[1] if far else limit
        if not far:
            drawn.axes.axhline(limit, color=MUTED, linewidth=1.3, dashes=(5, 3), zorder=2)
        at = (drawn.axes.get_xlim()[0], edge)
        note(drawn, f"{'↑ ' if far else ''}SLO {short(limit)} ms", at, (5, -13 if far else 4), color=MUTED)


@style()
def speed(runs: Sequence[Run]) -> Plot | None:
    """What one user sees (1/TPOT) against what one device gives."""
    drawn = plot(*SMALL)
    placed: list[tuple[Point, float, float]] = []
    for run in runs:

        def pick(point: Point, per: int = devices(run.summary)) -> tuple[float, Reading] | None:
            user, served = interactivity(point), throughput(point)
            if user.value is None or served.value is None:
                return None
            return user.value, Reading(served.value / per)

        found = draw_points(drawn, run, pick)
        placed += found
        ends = found[-1:] if run.key else found[:1] + found[1:][-1:]
        for point, x, y in ends:
            users = f"{short(point['concurrency_mean'])} users" if point["concurrency_mean"] else ""
            light = point is found[0][0] and not run.key
            shift = (2, 8) if light else (9, -3)
            note(drawn, run.prefix + users, (x, y), shift)
    if not placed:
        return None
    drawn.axes.set_xlim(0, max(x for _, x, _ in placed) * 1.25)
    drawn.axes.set_ylim(0, (max(y for _, _, y in placed) or 1) * 1.15)
    drawn.axes.set_xlabel("one user's speed, tokens/s (1/TPOT p50)")
    drawn.axes.set_ylabel("output tokens/s per device")
    number_axis(drawn.axes.yaxis)
    return drawn


@style()
def spread(run: Run, metric: str) -> Plot | None:
    """p50 (dot), p90, p95 and p99 (ticks) of a metric at each load."""
    drawn = plot(*SMALL)
    values: list[float] = []
    users: list[float] = []
    for point in by_load(run.summary):
        found = {name: stat(point, metric, name).value for name in ("p50", "p90", "p95", "p99")}
        there = {name: value * 1000 for name, value in found.items() if value is not None}
        x = point["concurrency_mean"]
        if not x or "p50" not in there:
            continue
        drawn.axes.vlines(x, min(there.values()), max(there.values()), color=run.colour, linewidth=1.3, zorder=3)
        ticks = [value for name, value in there.items() if name != "p50"]
        drawn.axes.plot([x] * len(ticks), ticks, "_", color=run.colour, markersize=8, zorder=4)
        draw_point(drawn, run, point, x, there["p50"])
        values += there.values()
        users.append(x)
        last = there
    if not values:
        return None
    for name, value in last.items():
        note(drawn, name, (users[-1], value), (9, -3), color=MUTED, annotation_clip=False)
    log2_axis(drawn.axes, min(users) / 1.35, max(users) * 2, most=7)
    _latency_axis(drawn, values)
    drawn.axes.set_xlabel("concurrency: requests in flight, mean")
    drawn.axes.set_ylabel(f"{METRIC_WORDS[metric]}, ms{_log_word(drawn)}")
    return drawn


@style()
def ratio(
    concurrency: Sequence[float], ratios: Sequence[float], width: float = WIDE, height: float = 240
) -> Plot | None:
    """Throughput of B over A at equal concurrency, over the range both were measured in."""
    if not ratios:
        return None
    drawn = plot(width, height)
    log2_axis(drawn.axes, min(concurrency) / 1.35, max(concurrency) * 1.35, most=int(width / 60))
    drawn.axes.plot(concurrency, ratios, "-D", color=INK, markersize=5, zorder=4)
    drawn.axes.axhline(1, color=MUTED, linewidth=1.3, dashes=(5, 3), zorder=2)
    note(drawn, "A and B equal", (drawn.axes.get_xlim()[0], 1), (5, 4), color=MUTED)
    drawn.axes.set_ylim(0, max(1.25, max(ratios) * 1.15))
    drawn.axes.set_xlabel("concurrency: requests in flight, mean")
    drawn.axes.set_ylabel("output tokens/s, B / A")
    return drawn
