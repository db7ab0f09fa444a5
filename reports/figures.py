"""The figures: each takes one run, or two to overlay, and gives a `Plot`, or None when there is nothing to draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reports.readings import (
    LIMITER_WORDS,
    METRIC_WORDS,
    VERDICT_WORDS,
    Point,
    Reading,
    Summary,
    by_load,
    devices,
    drawable,
    interactivity,
    meets_slo,
    point_at,
    short,
    stat,
    throughput,
    verdict,
)
from reports.svg import (
    BOUND,
    FEASIBLE,
    INK,
    MUTED,
    PALETTE,
    PAPER,
    SHADE,
    Plot,
    log2_axis,
    number_axis,
    plot,
    png,
    style,
)

FAR = 2.5  # a bound further away than this is named at the edge, so that the measured curve stays readable
WIDE = 760.0
ROW = 14.0  # height of one line of labels, points
DASHES = {"bandwidth_tps": (5, 3), "compute_tps": (9, 3, 2, 3), "latency_tps": (1.5, 2.5)}


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


# --- the measured points ---------------------------------------------------------------------------------------------


def _marker(drawn: Plot, run: Run, point: Point, x: float, y: float) -> None:
    kind = verdict(point)
    hollow = kind == "INVALID"
    ghost = kind == "NONSTATIONARY"
    drawn.axes.plot(
        [x], [y], run.marker, color=run.colour, markerfacecolor=PAPER if hollow or ghost else run.colour,
        markeredgecolor=run.colour if hollow or ghost else PAPER, markeredgewidth=1.4 if hollow or ghost else 0.8,
        alpha=0.75 if ghost else 1, zorder=5, clip_on=False,
    )  # fmt: skip
    drawn.mark(x, y, run.point_key(point), point_words(run, point))


def _series(
    drawn: Plot, run: Run, pick: Callable[[Point], tuple[float, Reading] | None]
) -> list[tuple[Point, float, float]]:
    """Draw all points that `pick` can place, joined where they count; gives (point, x, y) in order of load."""
    placed = [(point, found[0], found[1]) for point in by_load(run.summary) if (found := pick(point))]
    line = [(x, float(y.value or 0)) for point, x, y in placed if verdict(point) in ("VALID", "WARN")]
    drawn.axes.plot([x for x, _ in line], [y for _, y in line], run.line, color=run.colour, zorder=4)
    for point, x, y in placed:
        if y.low is not None and y.high is not None:
            drawn.axes.vlines(x, y.low, y.high, color=run.colour, linewidth=1.3, zorder=4)
        _marker(drawn, run, point, x, float(y.value or 0))
    return [(point, x, float(y.value or 0)) for point, x, y in placed]


def _note(drawn: Plot, text: str, at: tuple[float, float], shift: tuple[float, float], **extra: Any) -> None:
    drawn.axes.annotate(text, at, xytext=shift, textcoords="offset points", zorder=6, **{"color": INK, **extra})


# --- the curve -------------------------------------------------------------------------------------------------------


def _bounds(runs: Sequence[Run], x: np.ndarray) -> list[tuple[str, str, np.ndarray]]:
    """(label, key, tokens/s over `x`) of each bound; equal bounds of two runs are drawn once, unnamed."""
    curves = [run.summary["roofline"]["curve"] for run in runs]
    same = all(curve == curves[0] for curve in curves)
    found = []
    for run, curve in list(zip(runs, curves, strict=True))[: 1 if same else None]:
        for key in DASHES:
            rows = [(row["concurrency"], row[key]) for row in curve if row.get(key)]
            if len(rows) > 1:
                y = _log_interpolated(x, np.array(rows))
                word = LIMITER_WORDS[key.removesuffix("_tps")]
                found.append((f"{'' if same else run.prefix}{word} bound", key, y))
    return found


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
    return _Frame(low, high, top, max(users))


def curve(runs: Sequence[Run], width: float = WIDE, height: float = 370) -> Plot | None:
    """Concurrency (log2) against output tokens/s (from zero), with bounds, KV wall, SLO range and knee."""
    frame = _frame(runs)
    if frame is None:
        return None
    x = np.geomspace(frame.low, frame.high, 400)
    bounds = _bounds(runs, x)
    beyond = [one for one in bounds if _leaves(one[2], frame.top)]
    drawn = plot(width, height, top=10 + ROW * len(beyond))
    log2_axis(drawn.axes, frame.low, frame.high, most=int(width / 60))
    drawn.axes.set_ylim(0, frame.top)
    number_axis(drawn.axes.yaxis)
    drawn.axes.set_xlabel("concurrency: requests in flight, mean" + (" (log2)" if width > 500 else ""))
    drawn.axes.set_ylabel("output tokens/s")
    _draw_bounds(drawn, x, bounds, frame)
    for row, one in enumerate(sorted(beyond, key=lambda one: -_exit(one[2], frame.top))):
        _edge_label(drawn, x, one, frame, row)
    _wall(drawn, runs, frame)
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
            _note(drawn, label, (x[last], y[last]), (-2, 4), ha="right", va="bottom", color=MUTED)


def _edge_label(drawn: Plot, x: np.ndarray, one: tuple[str, str, np.ndarray], frame: _Frame, row: int) -> None:
    """Name a bound that leaves through the top, with its value at the right end, above the axes."""
    label, _, y = one
    at = x[_exit(y, frame.top)]
    there = np.flatnonzero(~np.isnan(y))
    end = int(max(there[x[there] <= frame.heaviest * 1.01], default=there[0]))
    text = f"↑ {label}, {short(float(y[end]))} at {short(float(x[end]))}"
    inside = np.log(at / frame.low) / np.log(frame.high / frame.low) * (drawn.width - 70)
    fits = inside + 5.4 * len(text) < drawn.width - 70
    where = (at if fits else frame.high, frame.top)
    shift = (-3 if fits else 0, 4 + row * ROW)
    _note(drawn, text, where, shift, ha="left" if fits else "right", va="bottom", color=MUTED)


def _wall(drawn: Plot, runs: Sequence[Run], frame: _Frame) -> None:
    walls = {run.summary["roofline"]["kv_wall_concurrency"]: run for run in runs}
    for wall, run in walls.items():
        if wall and wall < frame.high:
            drawn.axes.axvspan(wall, frame.high, color=SHADE, alpha=0.35, linewidth=0, zorder=1)
            drawn.axes.axvline(wall, color=BOUND, linewidth=1.2, zorder=2)
            name = run.prefix if len(walls) > 1 else ""
            _note(
                drawn, f"{name}KV cache full at {short(wall)}", (wall, 0), (4, 6),
                rotation=90, ha="left", va="bottom", color=MUTED,
            )  # fmt: skip


def _measured(drawn: Plot, run: Run, frame: _Frame) -> None:
    placed = _series(
        drawn, run, lambda point: (point["concurrency_mean"], throughput(point)) if drawable(point) else None
    )
    if not run.key:
        _feasible(drawn, run.summary, frame)
    _knee(drawn, run)
    for kind, text, shift, align in (
        ("NONSTATIONARY", "overloaded: the queue grows", (14, 11), "right"),
        ("INVALID", "invalid", (0, -17), "center"),
    ):
        found = [(x, y) for point, x, y in placed if verdict(point) == kind]
        for x, y in found if kind == "NONSTATIONARY" else ():
            _note(
                drawn, "", (x, y), (30, 0), annotation_clip=False,
                arrowprops={"arrowstyle": "<|-", "color": run.colour, "shrinkB": 5, "shrinkA": 0},
            )  # fmt: skip
        if found:
            _note(drawn, run.prefix + text, found[-1], shift, ha=align, color=MUTED)
    counted = [(x, y) for point, x, y in placed if verdict(point) in ("VALID", "WARN")]
    if counted:
        x, y = counted[len(counted) // 2]
        above = run.key == "a"
        _note(drawn, run.prefix + (run.name or "measured"), (x, y), (-9 if above else 9, 5 if above else -16),
              ha="right" if above else "left", fontweight="bold" if run.key else "normal")  # fmt: skip


def _feasible(drawn: Plot, summary: Summary, frame: _Frame) -> None:
    """Tint the range of concurrency, ending at the best point, in which every counted point meets the SLO."""
    best = summary["slo"]["best_point"]
    if best is None or not drawable(point_at(summary, best)):
        return
    end = point_at(summary, best)["concurrency_mean"]
    counted = [p for p in summary["points"] if drawable(p) and verdict(p) != "INVALID" and p["concurrency_mean"] <= end]
    short_of_samples = [p for p in counted if not meets_slo(summary, p) and _undecided(summary, p)]
    misses = [p["concurrency_mean"] for p in counted if not meets_slo(summary, p) and p not in short_of_samples]
    start = max(misses, default=frame.low)
    drawn.axes.axvspan(start, end, color=FEASIBLE, linewidth=0, zorder=0.5)
    drawn.axes.axvline(end, color=PALETTE["a"], linewidth=1, zorder=1)
    _note(drawn, f"within the SLO up to {short(end)} users", (end, 0), (-5, 6), ha="right", va="bottom")


def _undecided(summary: Summary, point: Point) -> bool:
    """No figure breaks its limit, some have too few samples."""
    found = [(stat(point, one["metric"], one["stat"]).value, one["limit_s"]) for one in summary["slo"]["objectives"]]
    return all(value is None or value < limit for value, limit in found)


def _knee(drawn: Plot, run: Run) -> None:
    knee, model = run.summary["knee"]["measured"], run.summary["knee"]["model"]
    if knee:
        x, y = knee["concurrency"], knee["output_tps"]
        drawn.axes.plot([x], [y], "o", markersize=15, markerfacecolor="none", markeredgecolor=run.colour, zorder=5)
        drawn.axes.vlines(x, 0, y, color=run.colour, linewidth=0.9, linestyle=":", zorder=2)
        if not run.key:
            _note(drawn, f"knee at {short(x)} users", (x, y), (5, -24), ha="left")
    if model and not run.key and model["concurrency"]:
        _note(
            drawn, f"▾ model's knee {short(model['concurrency'])}", (model["concurrency"], 0), (-4.5, 22), color=MUTED
        )


def curve_png(summary: Summary, path: Path) -> None:
    """The curve as a picture for a README; raises ValueError when the run has no point to draw."""
    with style():
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


def latency(runs: Sequence[Run], metric: str) -> Plot | None:
    """Output tokens/s against a metric's percentile, with the SLO's limit."""
    name, limit_s = objective(runs[0].summary, metric)
    drawn = plot(*SMALL)

    def pick(point: Point) -> tuple[float, Reading] | None:
        reading = stat(point, metric, name)
        if point["output_tps"] is None or reading.value is None:
            return None
        return point["output_tps"], _milliseconds(reading)

    placed = [item for run in runs for item in _name_end(drawn, run, _series(drawn, run, pick))]
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
        _note(drawn, run.prefix.strip(), (x, y), (-8, 7), ha="right", fontweight="bold")
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
        _note(drawn, f"{'↑ ' if far else ''}SLO {short(limit)} ms", at, (5, -13 if far else 4), color=MUTED)


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

        found = _series(drawn, run, pick)
        placed += found
        for point, x, y in (found[:1] + found[-1:]) if len(found) > 1 else found:
            users = f"{short(point['concurrency_mean'])} users" if point["concurrency_mean"] else ""
            right = point is found[0][0]
            _note(
                drawn,
                run.prefix + users,
                (x, y),
                (4 if right else 9, 9 if right else -3),
                ha="center" if right else "left",
            )
    if not placed:
        return None
    drawn.axes.set_xlim(0, max(x for _, x, _ in placed) * 1.15)
    drawn.axes.set_ylim(0, (max(y for _, _, y in placed) or 1) * 1.15)
    drawn.axes.set_xlabel("one user's speed, tokens/s (1/TPOT p50)")
    drawn.axes.set_ylabel("output tokens/s per device")
    number_axis(drawn.axes.yaxis)
    return drawn


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
        _marker(drawn, run, point, x, there["p50"])
        values += there.values()
        users.append(x)
        last = there
    if not values:
        return None
    for name, value in last.items():
        _note(drawn, name, (users[-1], value), (9, -3), color=MUTED, annotation_clip=False)
    log2_axis(drawn.axes, min(users) / 1.35, max(users) * 2, most=7)
    _latency_axis(drawn, values)
    drawn.axes.set_xlabel("concurrency: requests in flight, mean")
    drawn.axes.set_ylabel(f"{METRIC_WORDS[metric]}, ms{_log_word(drawn)}")
    return drawn


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
    _note(drawn, "A and B equal", (drawn.axes.get_xlim()[0], 1), (5, 4), color=MUTED)
    drawn.axes.set_ylim(0, max(1.25, max(ratios) * 1.15))
    drawn.axes.set_xlabel("concurrency: requests in flight, mean")
    drawn.axes.set_ylabel("output tokens/s, B / A")
    return drawn
