"""The smaller figures: latency against throughput, user against device, the spread of a metric, the ratio of two runs.

Each takes one run, or two to overlay, and gives a `Plot`, or None when there is nothing to draw.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.ticker import MaxNLocator

from reports.marks import Run, draw_point, draw_points, note
from reports.readings import (
    ASKED,
    METRIC_WORDS,
    VERDICT_WORDS,
    Point,
    Reading,
    Summary,
    by_load,
    devices,
    interactivity,
    short,
    stat,
    throughput,
    time_line,
    verdict,
)
from reports.svg import INK, MUTED, SHADE, WIDE, Plot, grid, log2_axis, number_axis, plot, style

SMALL = (360.0, 270.0)
SMALL_PT = 10  # text of the panels of a time line


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
    highest = float(drawn.axes.dataLim.y1)  # interval bars included
    _latency_axis(drawn, [highest, *(y for _, _, y in placed)], None if limit_s is None else limit_s * 1000)
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
        placed += _name_end(drawn, run, found)
        for point, x, y in [] if run.key else found[:1] + found[1:][-1:]:
            users = f"{short(point['concurrency_mean'])} users" if point["concurrency_mean"] else ""
            note(drawn, users, (x, y), (2, 8) if point is found[0][0] else (9, -3))
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
def time_lines(run: Run, width: float = WIDE) -> Plot | None:
    """Requests in flight over time, a panel for each load point with the measured window shaded."""
    lines = [(point, line) for point in by_load(run.summary) if (line := time_line(point)) is not None]
    if not lines:
        return None
    drawn, panels = grid(len(lines), width)
    for axes, (point, line) in zip(panels, lines, strict=True):
        _time_line(Plot(drawn.figure, axes, drawn.width, drawn.height, drawn.marks), run, point, line)
    return drawn


def _time_line(drawn: Plot, run: Run, point: Point, line: tuple[list[float], list[float], tuple[float, float]]) -> None:
    axes, (seconds, in_flight, window) = drawn.axes, line
    axes.axvspan(*window, color=SHADE, alpha=0.3, linewidth=0, zorder=0.5)
    axes.plot(seconds, in_flight, color=run.colour, linewidth=1.1, zorder=3, clip_on=False)
    axes.set_xlim(0, max(seconds[-1], window[1]))
    axes.set_ylim(0, (max(in_flight) or 1) * 1.1)
    axes.tick_params(labelsize=SMALL_PT)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(3))
        number_axis(axis)
    if point["concurrency_mean"]:
        draw_point(drawn, run, point, sum(window) / 2, point["concurrency_mean"])
    word, asked = VERDICT_WORDS[verdict(point)], ASKED[run.summary["mode"]]
    text = f"{asked.cell(point)} {asked.unit}{'' if word == 'valid' else f', {word}'}"
    axes.set_title(text, loc="left", fontsize=SMALL_PT)
    axes.set_xlabel("s", loc="right", labelpad=-SMALL_PT, fontsize=SMALL_PT)


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
