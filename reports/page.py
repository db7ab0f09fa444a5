"""The page people pass on: one self-contained HTML file from one summary."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from reports import figures, multiples
from reports.exports import points_csv, points_markdown
from reports.marks import Run, point_words
from reports.readings import (
    METRIC_WORDS,
    VARIABLES,
    VERDICT_WORDS,
    Point,
    Reading,
    Summary,
    all_errors,
    badge,
    by_load,
    columns,
    date_text,
    distribution,
    identity,
    interactivity,
    knee_state,
    na,
    nothing_measured,
    notices,
    number,
    stat,
    throughput,
    time_line,
    value_reading,
    verdict,
    why,
)
from reports.svg import WIDE, Plot, svg
from reports.tables import answer_sentences

NARROW = (360.0, 330.0)
TABLE = (
    "concurrency_mean", "achieved_rps", "output_tps", "ttft_p50_ms", "ttft_p95_ms", "itl_p95_ms",
    "tpot_p50_ms", "e2e_p95_ms", "goodput_rps", "attainment_share", "fluidity_share", "failed", "bound_share",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """Text of a table cell; `title` is the reason on hover and `absent` marks a number that isn't there."""

    text: str
    title: str = ""
    absent: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing, wide and (where the small screen needs its own) narrow, with what it says and what it leaves out."""

    name: str
    title: str
    says: str
    missing: tuple[str, ...]
    wide: Markup | None
    narrow: Markup | None = None


def environment() -> Environment:
    """The templates, everything escaped, an unknown name an error."""
    found = Environment(
        loader=PackageLoader("reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["words"] = lambda key: str(key).replace("_", " ")
    return found


def four_variables(summary: Summary) -> tuple[tuple[str, str], ...]:
    """The conditions that stand under every figure and table."""
    return tuple((key.replace("_", " "), str(summary["conditions"].get(key, "unknown"))) for key in VARIABLES)


def asked(summary: Summary, point: Point) -> str:
    """How a load point is called: what was asked of it, with its unit."""
    column = columns(summary, ())[0]
    return f"{column.cell(point)} {column.unit}"


def reading_cell(reading: Reading, text: str) -> Cell:
    """A value, its interval on hover; or n/a with the reason."""
    if reading.value is None:
        return Cell(text, reading.reason, absent=True)
    return Cell(text, "")


# --- figures ---------------------------------------------------------------------------------------------------------


def undrawn(summary: Summary, *readers: Callable[[Point], Reading]) -> tuple[str, ...]:
    """Why points are not in a figure, equal reasons counted."""
    reasons: Counter[str] = Counter()
    for point in summary["points"]:
        absent = [reading for reader in readers if (reading := reader(point)).value is None]
        if absent:
            reasons[why(absent[0])] += 1
    return tuple(f"{n} of {len(summary['points'])} points n/a: {reason}" for reason, n in reasons.items())


def inline(drawn: Plot | None, name: str, title: str, says: str) -> Markup | None:
    """The SVG as markup that needs no escaping: matplotlib and `svg` escape every text in it."""
    return None if drawn is None else Markup(svg(drawn, name, title, says))


def in_flight(point: Point) -> Reading:
    """Mean requests in flight; a point without any has no place on a logarithmic axis."""
    return value_reading(point["concurrency_mean"] or None, "no requests in flight counted")


def curve_figure(runs: Sequence[Run], says: str) -> Figure:
    """The curve, for a desk and for a phone."""
    title = "Concurrency against output throughput"
    missing = [f"{run.prefix}{text}" for run in runs for text in undrawn(run.summary, in_flight, throughput)]
    for run in runs:
        if run.summary["roofline"]["reason"]:
            reason = str(run.summary["roofline"]["reason"])
            missing.append(run.prefix + reason[:1].upper() + reason[1:])
    return Figure(
        "curve", title, says, tuple(missing),
        inline(figures.curve(runs), "curve", title, says),
        inline(figures.curve(runs, *NARROW), "curve-narrow", title, says),
    )  # fmt: skip


def latency_figure(runs: Sequence[Run], metric: str) -> Figure:
    """Output throughput against the percentile of a metric."""
    word, (name, limit_s) = METRIC_WORDS[metric], multiples.objective(runs[0].summary, metric)
    title = f"Throughput against {name} {word}"
    says = f"{word} {name} at each throughput; lower and further right is better."
    says += f" SLO: {name} < {limit_s * 1000:g} ms." if limit_s is not None else " No SLO on it."
    missing = tuple(
        f"{run.prefix}{text}"
        for run in runs
        for text in undrawn(run.summary, throughput, lambda point: stat(point, metric, name))
    )
    drawn = multiples.latency(runs, metric)
    return Figure(f"latency-{metric}", title, says, missing, inline(drawn, f"lat-{metric}", title, says))


def speed_figure(runs: Sequence[Run]) -> Figure:
    """What a user gets against what a device gives."""
    title = "User speed against device throughput"
    says = "Each point trades a user's tokens/s (1/TPOT, median) for the device's; further up and right is better."
    missing = tuple(
        f"{run.prefix}{text}" for run in runs for text in undrawn(run.summary, throughput, interactivity)
    )  # fmt: skip
    return Figure("speed", title, says, missing, inline(multiples.speed(runs), "speed", title, says))


def spread_figure(run: Run, metric: str) -> Figure:
    """The percentiles of a metric at each load."""
    word = METRIC_WORDS[metric]
    title = f"Spread of {word}"
    says = f"{word} at each load: dot p50, ticks p90, p95, p99 as far as the samples carry."
    missing = undrawn(run.summary, in_flight, lambda point: stat(point, metric, "p50"))
    drawn = multiples.spread(run, metric)
    return Figure(f"spread-{metric}", title, says, missing, inline(drawn, f"spr-{metric}", title, says))


def time_lines_figure(run: Run) -> Figure:
    """In flight over time at each load."""
    title = "Requests in flight over time"
    says = "One panel a load point, each with its own scale; seconds since its start, the measured window shaded. "
    says += "The dot is the mean in the window. A line that climbs through the window is a queue that grows."
    lost = sum(time_line(point) is None for point in run.summary["points"])
    missing = (f"{lost} of {len(run.summary['points'])} points n/a: the counter was not kept",) if lost else ()
    drawings = [
        inline(multiples.time_lines(run, width), f"time{i}", title, says) for i, width in enumerate((WIDE, NARROW[0]))
    ]
    return Figure("time-lines", title, says, missing, *drawings)


HOLLOW_SAYS = (
    "Hollow points with an arrow are overloaded: their throughput counts, but in flight only tells how long one "
    "waited. Hollow points without one are invalid and count for nothing."
)
KNEE_SAYS = {
    "none": " No knee is marked, for no load point counts.",
    "overloaded": " No knee is marked, for only overloaded points reach 90% of the highest throughput.",
    "not passed": " No knee is marked, for throughput was highest at the heaviest load that counts.",
    "passed": " The ring marks the knee: the least concurrency with 90% of the highest throughput.",
}


def run_figures(summary: Summary) -> dict[str, list[Figure]]:
    """All figures of one run, by section."""
    run = Run(summary)
    return {
        "curve": [curve_figure([run], HOLLOW_SAYS + KNEE_SAYS[knee_state(summary)])],
        "trade": [
            latency_figure([run], "ttft"),
            latency_figure([run], "itl"),
            speed_figure([run]),
        ],
        "spread": [spread_figure(run, metric) for metric in ("ttft", "itl", "e2e")],
        "time": [time_lines_figure(run)],
    }


# --- tables ----------------------------------------------------------------------------------------------------------


def points_rows(run: Run) -> list[dict[str, Any]]:
    """The rows of the table of load points."""
    shown = columns(run.summary, TABLE)
    return [
        {
            "key": run.point_key(point),
            "cells": [reading_cell(column.read(point), column.cell(point)) for column in shown],
            "verdict": VERDICT_WORDS[verdict(point)],
        }
        for point in by_load(run.summary)
    ]


def all_numbers(run: Run) -> list[dict[str, Any]]:
    """What hover and focus show of each point: every figure."""
    return [
        {
            "key": run.point_key(point),
            "title": f"{run.prefix}{asked(run.summary, point)}, {VERDICT_WORDS[verdict(point)]}",
            "words": point_words(run, point),
            "rows": [
                (f"{c.head}, {c.unit}", reading_cell(c.read(point), c.cell(point))) for c in columns(run.summary)
            ],
        }
        for point in by_load(run.summary)
    ]  # fmt: skip


def percentile_rows(summary: Summary) -> list[dict[str, Any]]:
    """Every percentile with its 95% interval, by metric and load."""
    rows = []
    for metric in ("ttft", "ttfo", "itl", "event_gap", "tpot", "e2e"):
        for point in by_load(summary):
            found = distribution(point, metric)
            readings = [stat(point, metric, name) for name in ("mean", "p50", "p90", "p95", "p99")]
            cells = [reading_cell(reading, _with_interval(reading)) for reading in readings]
            n = f"{found['n']:,}" if found else "n/a"
            rows.append({"metric": METRIC_WORDS[metric], "load": asked(summary, point), "n": n, "cells": cells})
    return rows


def _with_interval(reading: Reading) -> str:
    if reading.value is None:
        return na(reading)
    text = number(reading.value * 1000)
    if reading.low is None or reading.high is None:
        return text
    return f"{text} ({number(reading.low * 1000)} to {number(reading.high * 1000)})"


def certificate(summary: Summary) -> dict[str, Any]:
    """The checks by point: a matrix of verdicts, the evidence of all, and that of those that did not pass."""
    points = by_load(summary)
    names = list(dict.fromkeys(one["name"] for point in points for one in point["validity"]["checks"]))
    by_point = [{one["name"]: one for one in point["validity"]["checks"]} for point in points]
    rows = [(name, [_check_word(checks[name]) if name in checks else "n/a" for checks in by_point]) for name in names]
    evidence = [
        {**one, "load": asked(summary, point), "verdict": _check_word(one)}
        for point in points
        for one in point["validity"]["checks"]
    ]
    open_ones = [one for one in evidence if one["verdict"] not in ("pass", "n/a")]
    heads = [(columns(summary, ())[0].cell(point), VERDICT_WORDS[verdict(point)]) for point in points]
    return {"heads": heads, "rows": rows, "evidence": evidence, "open": open_ones}


def _check_word(check: dict[str, Any]) -> str:
    return "overloaded" if check["verdict"] == "nonstationary" else str(check["verdict"])


def definitions(summary: Summary) -> list[tuple[str, str, str]]:
    """(metric, definition, what the peers call it)."""
    return [
        (
            METRIC_WORDS.get(key, key.replace("_", " ")),
            text,
            ", ".join(f"{tool} {name}" for tool, name in summary["aliases"].get(key, {}).items()),
        )
        for key, text in summary["definitions"].items()
    ]


def identity_rows(summary: Summary) -> list[tuple[str, str]]:
    """Everything the figures hold for: conditions, ceilings of the roofline, ids."""
    rows = [(key.replace("_", " "), str(text)) for key, text in summary["conditions"].items()]
    roofline = summary["roofline"]
    if roofline["ceilings"]:
        ceilings = roofline["ceilings"]
        text = f"{number(ceilings['bandwidth_gbs'])} GB/s, {number(ceilings['tflops'])} TFLOP/s ({ceilings['source']})"
        rows.append((f"roofline ceilings, {roofline['devices']} x {roofline['hardware']}", text))
    tool = f"{summary['tool']['name']} {summary['tool']['version']}"
    return [*rows, ("schedule id", summary["schedule_id"]), ("run", summary["run_id"]), ("measured by", tool)]


# --- the page --------------------------------------------------------------------------------------------------------


def simulated(summary: Summary) -> str:
    """What the title of a run in virtual time says beyond others."""
    return " (simulated, not measured)" if summary.get("simulated") else ""


def run_context(summary: Summary) -> dict[str, Any]:
    """What the template of one run shows."""
    run = Run(summary)
    empty = nothing_measured(summary)
    return {
        "title": f"{summary['scenario'].get('name', 'unnamed')}: throughput and latency{simulated(summary)}",
        "identity": identity(summary), "date": date_text(summary), "badge": badge(summary),
        "answer": answer_sentences(summary), "notices": notices(summary), "errors": all_errors(summary)[:10],
        "empty": empty, "figures": {} if empty else run_figures(summary),
        "heads": columns(summary, TABLE), "rows": points_rows(run), "numbers": all_numbers(run),
        "conditions": four_variables(summary), "percentiles": percentile_rows(summary),
        "certificate": certificate(summary), "definitions": definitions(summary),
        "identity_rows": identity_rows(summary), "csv": points_csv(summary), "markdown": points_markdown(summary),
        "json": json.dumps(summary, indent=1, ensure_ascii=False),
    }  # fmt: skip


def write_report(summary: Summary, path: Path) -> None:
    """Write the run's page to `path`: one HTML file that needs no network."""
    path.write_text(environment().get_template("report.html").render(run_context(summary)), encoding="utf-8")
