"""The results as Markdown: every figure with its conditions, a missing one with its reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from workloads import workloads

from loadgen.collectors.machine import machine_text

Runs = Sequence[Mapping[str, Any]]
Row = list[str]
NOTHING = "-"


def markdown(found: Mapping[str, Any]) -> str:
    """The whole page."""
    runs = found["runs"]
    clients = list(dict.fromkeys(run["client"] for run in runs))
    sections = {
        "CPU and memory": grid(COST_HEAD, [cost_row(name, of(runs, name)) for name in clients]),
        "Accuracy at b, against the server's log": grid(
            EXACT_HEAD, [exact_row(name, found["match"].get(name, ""), of(runs, name)) for name in clients]
        ),
        "Open loop (c)": grid(OPEN_HEAD, [open_row(name, of(runs, name)) for name in clients]),
        "Goals": goals_table(runs),
        "Notes": remarks(found),
    }
    parts = [f"# Clients on one machine, {found['date_utc']} UTC", conditions(found)]
    parts += [f"## {title}\n\n{body}" for title, body in sections.items() if body]
    return "\n\n".join(parts) + "\n"


def conditions(found: Mapping[str, Any]) -> str:
    """What holds for every figure of the page."""
    cores, versions = found["cores"], found["versions"]
    lines = [
        f"- Machine: {machine_text(found['machine'])}. Mock server on core {cores['server']}, the whole client (all of "
        f"its processes) on core {cores['client']}.",
        "- Ours: " + ", ".join(f"{name} {number}" for name, number in versions.items()) + ".",
        f"- Medians of {found['repeats']} (smallest to largest in brackets). CPU is user and system time of the whole "
        "process tree, as the slope between two numbers of requests: start-up is not in it, reports are. An answer of "
        "n tokens has n + 3 events.",
        "- Memory is the tree's PSS: before the first request, and the peak above that for that many requests.",
        "- TTFT error: the client's TTFT from its own sending, less the server's from receiving. ITL error: the "
        "client's gap less the server's. Both absolute, p50 / p99.",
        *(f"- {name}: {text}." for name, text in found["conditions"].items()),
    ]
    if found["quick"]:
        lines.append("- **Quick run**: a quarter of the requests; not for publishing.")
    return "\n".join(lines)


def grid(head: Row, rows: Sequence[Row]) -> str:
    """A Markdown table; empty when there is nothing in it."""
    filled = [row for row in rows if any(cell != NOTHING for cell in row[1:])]
    if not filled:
        return ""
    lines = [head, ["---"] * len(head), *filled]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# --- figures -------------------------------------------------------------------------------------------------------


def of(runs: Runs, client: str, load: str | None = None) -> list[Mapping[str, Any]]:
    """The launches of a client that ended well."""
    return [run for run in runs if run["client"] == client and load in (None, run["load"]) and "failed" not in run]


def slopes_us(runs: Runs, load: str) -> list[float]:
    """Microseconds of CPU a request, one a repeat: between its launch with few and its launch with many requests."""
    by_repeat: dict[int, list[Mapping[str, Any]]] = {}
    for run in runs:
        if run["load"] == load:
            by_repeat.setdefault(run["repeat"], []).append(run)
    pairs = [two for two in by_repeat.values() if len(two) == 2]
    return [
        (many["cpu_s"] - few["cpu_s"]) / (many["arrivals"]["n"] - few["arrivals"]["n"]) * 1e6
        for few, many in pairs
        if many["arrivals"]["n"] > few["arrivals"]["n"]
    ]


def events_of(load: str) -> int:
    """SSE events of one answer of this workload."""
    return workloads(1.0)[load].events


def largest(runs: Runs, load: str) -> list[Mapping[str, Any]]:
    """The launches with most requests."""
    mine = [run for run in runs if run["load"] == load]
    most = max((run["n_requests"] for run in mine), default=0)
    return [run for run in mine if run["n_requests"] == most]


def values(runs: Runs, load: str, *path: str) -> list[float]:
    """A figure of the largest launches of a workload, where it is there."""
    found: list[float] = []
    for run in largest(runs, load):
        value: Any = run
        for key in path:
            value = (value or {}).get(key)
        if value is not None:
            found.append(value)
    return found


def number(figures: Sequence[float], form: str) -> str:
    """The median."""
    return format(median(figures), form) if figures else NOTHING


def spread(figures: Sequence[float], form: str) -> str:
    """The median, with the smallest and largest where there are several."""
    if len(figures) < 2:
        return number(figures, form)
    return f"{number(figures, form)} ({min(figures):{form}} to {max(figures):{form}})"


def two(runs: Runs, load: str, what: str) -> str:
    """Median over the repeats of an error's p50 and p99, in ms."""
    cells = [number(values(runs, load, "errors", f"{what}_{p}_ms"), ".3g") for p in ("p50", "p99")]
    return NOTHING if NOTHING in cells else " / ".join(cells)


# --- rows ----------------------------------------------------------------------------------------------------------

COST_HEAD = [
    "client",
    "a: us/event",
    "a: us/request",
    "a: requests/s",
    "b: us/event",
    "b: us/request",
    "a: MB at the start",
    "a: MB above it (requests)",
]
EXACT_HEAD = ["client", "TTFT error, ms", "ITL error, ms", "matched by", "requests"]
OPEN_HEAD = [
    "client",
    *(f"{rate}/s: {what}" for rate in (200, 500) for what in ("achieved", "gap CV", "TTFT error, ms")),
]


def cost_row(name: str, runs: Runs) -> Row:
    """CPU and memory of one client."""
    row = [name]
    for load in ("a", "b"):
        us = slopes_us(runs, load)
        row += [spread([each / events_of(load) for each in us], ".3g"), number(us, ",.0f")]
        row += [number(values(runs, load, "arrivals", "served_rps"), ",.0f")] if load == "a" else []
    return row + memory_cells(runs)


def memory_cells(runs: Runs) -> Row:
    """MB at the start and above it, with the number of requests that it took."""
    before, above = ([size / 1e6 for size in values(runs, "a", f"{what}_bytes")] for what in ("start", "peak_above"))
    if not above:
        return [NOTHING, NOTHING]
    return [number(before, ".0f"), f"{number(above, '.0f')} ({largest(runs, 'a')[0]['n_requests']:,})"]


def exact_row(name: str, match: str, runs: Runs) -> Row:
    """Errors of one client at b."""
    found = [two(runs, "b", what) for what in ("ttft", "itl")]
    if found == [NOTHING, NOTHING]:
        return [name, *[NOTHING] * 4]
    return [name, *found, match, number(values(runs, "b", "errors", "matched"), ",.0f")]


def open_row(name: str, runs: Runs) -> Row:
    """Rate, evenness and errors of one client in open loop."""
    row = [name]
    for load in ("c200", "c500"):
        row.append(number(values(runs, load, "arrivals", "rate_rps"), ".0f"))
        row.append(number(values(runs, load, "arrivals", "gap_cv"), ".2f"))
        row.append(two(runs, load, "ttft"))
    return row


# --- goals ---------------------------------------------------------------------------------------------------------


def goals_table(runs: Runs) -> str:
    """Ours against what was wanted, each from this run."""
    rows = [row for goal in GOALS if (row := goal(of(runs, "openloop"), runs))]
    return grid(["goal", "wanted", "found", ""], rows)


def judged(what: str, wanted: str, found: str, met: bool) -> Row:
    """A line of the goals."""
    return [what, wanted, found, "met" if met else "**not met**"]


def burst(ours: Runs, runs: Runs) -> Row | None:
    mine = [us / events_of("a") for us in slopes_us(ours, "a")]
    theirs = [us / events_of("a") for name in names(runs, "vllm") for us in slopes_us(of(runs, name), "a")]
    if not mine:
        return None
    share = f", vLLM's / {median(theirs) / median(mine):.1f}" if theirs else ""
    met = median(mine) <= 3.5 and (not theirs or median(mine) <= median(theirs) / 3.5)
    return judged("a: us/event", "<= 3.5, vLLM's / 3.5", f"{median(mine):.2f}{share}", met)


def paced(ours: Runs, runs: Runs) -> Row | None:
    mine = [us / events_of("b") for us in slopes_us(ours, "b")]
    least = [us / events_of("b") for us in slopes_us(of(runs, "C floor"), "b")]
    if not mine:
        return None
    ratio = f", floor's x {median(mine) / median(least):.2f}" if least else ""
    met = median(mine) <= 16 and (not least or median(mine) <= 1.5 * median(least))
    return judged("b: us/event", "<= 16, floor's x 1.5", f"{median(mine):.2f}{ratio}", met)


def sends(ours: Runs, runs: Runs) -> Row | None:
    share, late = values(ours, "c500", "own", "sends_per_due"), values(ours, "c500", "own", "late_p99_ms")
    if not share:
        return None
    cvs = [number(values(ours, "c500", *path), ".3f") for path in (("arrivals", "gap_cv"), ("own", "schedule_gap_cv"))]
    text = f"{median(share):.4f}; {median(late):.2f} ms; gap CV {cvs[0]}, its schedule's {cvs[1]}"
    apart = [abs(run["arrivals"]["gap_cv"] - run["own"]["schedule_gap_cv"]) for run in largest(ours, "c500")]
    n_arrivals = median(values(ours, "c500", "arrivals", "n"))
    met = median(share) >= 0.9995 and median(late) < 2 and median(apart) <= 2 / math.sqrt(n_arrivals)
    title = "c at 500/s: sends made / due; lateness p99; gap CV at the server"
    return judged(title, "1.000; < 2 ms; the schedule's within 2/sqrt(n)", text, met)


def beside(ours: Runs, runs: Runs) -> Row | None:
    late, open_ = values(ours, "beside", "own", "late_p99_ms"), values(ours, "beside", "own", "in_flight_max")
    if not late:
        return None
    text = f"{median(late):.2f} ms at 200 requests/s, {median(open_):,.0f} streams at most"
    return judged("send lateness p99 beside 256 streams, ITL 10 ms", "told (< 2 ms as in c)", text, median(late) < 2)


def exact(load: str, what: str, title: str, p50: float, p99: float) -> Callable[[Runs, Runs], Row | None]:
    """A goal about an error's p50 and p99."""

    def goal(ours: Runs, runs: Runs) -> Row | None:
        found = [values(ours, load, "errors", f"{what}_{p}_ms") for p in ("p50", "p99")]
        if not all(found):
            return None
        met = median(found[0]) < p50 and median(found[1]) < p99
        return judged(title, f"< {p50:g} / {p99:g} ms", f"{two(ours, load, what)} ms", met)

    return goal


def memory(ours: Runs, runs: Runs) -> Row | None:
    sizes = values(ours, "memory", "peak_above_bytes")
    if not sizes:
        return None
    return judged("memory, 20,000 requests x 128 tokens", "< 120 MB", f"{median(sizes) / 1e6:.0f} MB", sizes[0] < 120e6)


def streams(ours: Runs, runs: Runs) -> Row | None:
    for run in largest(ours, "streams"):
        own = run["own"]
        doubts = f" ({'; '.join(own['doubts'])})" if own["doubts"] else ""
        cpu = f", {own['client_cpu_share']:.0%} of the core" if own["client_cpu_share"] else ""
        text = f"{own['verdict']}{cpu}, {own['in_flight_max']:,} open at most, {own['failed']} failed{doubts}"
        valid = own["verdict"] in ("VALID", "WARN")
        return judged("5,000 open streams, ITL 100 ms", "valid on one core", text, valid)
    return None


GOALS: tuple[Callable[[Runs, Runs], Row | None], ...] = (
    burst,
    paced,
    sends,
    exact("c200", "ttft", "TTFT error at 200/s", 0.2, 1.5),
    exact("c500", "ttft", "TTFT error at 500/s", 0.3, 3.0),
    exact("b", "itl", "ITL error at b", 0.01, 0.1),
    beside,
    memory,
    streams,
)


def names(runs: Runs, start: str) -> list[str]:
    """Titles of the clients whose name begins so."""
    return list(dict.fromkeys(run["client"] for run in runs if run["client"].startswith(start)))


# --- what is not in the tables -------------------------------------------------------------------------------------


def remarks(found: Mapping[str, Any]) -> str:
    """Notes on the clients, what is missing, what failed."""
    present = {run["client"] for run in found["runs"]}
    lines = [f"- {name}: {note}." for name, note in found["notes"].items() if name in present]
    lines += [f"- {name} is missing: {why}" for name, why in found["missing"].items()]
    lines += [f"- {run['client']} failed at {run['load']}: {run['failed']}" for run in found["runs"] if "failed" in run]
    return "\n".join(lines)
