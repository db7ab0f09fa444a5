"""Plain text for the terminal: the answer in sentences and tables that fit 80 columns, without any escape codes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from reports.readings import (
    LIMITER_WORDS,
    VARIABLES,
    VERDICT_WORDS,
    Column,
    Point,
    Reading,
    Summary,
    all_errors,
    badge,
    by_load,
    columns,
    date_text,
    has_tokens,
    heaviest_stable,
    identity,
    knee_state,
    na,
    nothing_measured,
    notices,
    percent,
    point_at,
    short,
    slo_text,
    stat,
    verdict,
    why,
)

WIDTH = 80
TERMINAL = {  # key: the two lines of its heading
    "concurrency_mean": ("users", "mean"),
    "achieved_rps": ("done", "req/s"),
    "output_tps": ("output", "tok/s"),
    "ttft_p50_ms": ("TTFT", "p50 ms"),
    "ttft_p95_ms": ("TTFT", "p95 ms"),
    "itl_p95_ms": ("ITL", "p95 ms"),
    "goodput_rps": ("good", "req/s"),
    "bound_share": ("of", "bound"),
}
WITHOUT_TOKENS = {  # embeddings and rerank
    **{key: TERMINAL[key] for key in ("concurrency_mean", "achieved_rps")},
    "e2e_p50_ms": ("E2E", "p50 ms"),
    "e2e_p95_ms": ("E2E", "p95 ms"),
    "e2e_p99_ms": ("E2E", "p99 ms"),
    "goodput_rps": TERMINAL["goodput_rps"],
}


# --- the answer ------------------------------------------------------------------------------------------------------


def answer_sentences(summary: Summary) -> list[str]:
    """The run in two sentences with numbers, or what is missing for them; a third when the bound is unknown."""
    if nothing_measured(summary):
        return _failed_sentences(summary)
    found = [_slo_sentence(summary), _knee_sentence(summary)]
    if summary["roofline"]["reason"]:
        found.append(_sentence(summary["roofline"]["reason"]))
    return found


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _failed_sentences(summary: Summary) -> list[str]:
    due = sum(point["counts"]["due"] for point in summary["points"])
    errors = all_errors(summary)
    first = f"Nothing was measured: not one of {due:,} requests was answered."
    if not errors:
        return [first, "No error was recorded."]
    worst = errors[0]
    return [first, f"Most frequent ({worst['count']:,} times): {worst['class']}: {worst['message']}."]


def figures_of(point: Point, goodput: bool = False) -> str:
    """ "38 users: 6.2 requests/s, 1,240 output tokens/s, 41% of the memory-bandwidth bound"."""
    users, rps, tps = point["concurrency_mean"], point["achieved_rps"], point["output_tps"]
    parts = [
        f"{short(rps)} requests/s" if rps is not None else "requests/s n/a",
        f"{short(tps)} output tokens/s" if tps is not None else "output tokens/s n/a",
    ]
    if point["bound_fraction"] is not None:
        limiter = LIMITER_WORDS.get(point["bound"]["limiter"], "hardware")
        parts.append(f"{percent(point['bound_fraction'])} of the {limiter} bound")
    return f"{short(users) if users is not None else 'an unknown number of'} users: " + ", ".join(parts)


def _slo_sentence(summary: Summary) -> str:
    asked, best = slo_text(summary), summary["slo"]["best_point"]
    if asked and best is not None:
        return f"Within the SLO ({asked}) it serves {figures_of(point_at(summary, best))}."
    counted = [p for p in by_load(summary) if verdict(p) in ("VALID", "WARN") and p["output_tps"] is not None]
    if asked and summary["slo"].get("undecided"):
        return f"Whether it serves within the SLO ({asked}) can't be said{_lightest(summary, counted)}."
    if asked:
        reason = summary["slo"]["reason"] or "no load point met it"
        return f"No answer within the SLO ({asked}): {reason}{_lightest(summary, counted)}."
    if not counted:
        return "No SLO was set, and no load point has a valid throughput."
    top = max(counted, key=lambda point: float(point["output_tps"]))
    return f"No SLO was set. The fastest valid point is at {figures_of(top)}."


def _lightest(summary: Summary, counted: list[Point]) -> str:
    if not counted:
        return ""
    found = [(one, stat(counted[0], one["metric"], one["stat"])) for one in summary["slo"]["objectives"]]
    texts = [
        f"{one['metric'].upper()} {one['stat']} {_milliseconds(reading)}" for one, reading in found
    ]  # fmt: skip
    return f". The lightest point had {', '.join(texts)}"


def _milliseconds(reading: Reading) -> str:
    return na(reading) if reading.value is None else f"{short(reading.value * 1000)} ms"


def _knee_sentence(summary: Summary) -> str:
    knee = summary["knee"]["measured"]
    state = knee_state(summary)
    if state == "none":
        return _sentence(f"No knee: {summary['knee']['reason'] or 'the ladder did not reach it'}")
    if state == "overloaded":
        return _overload_sentence(summary)
    if state == "not passed":
        top = f"{short(knee['concurrency'])} users ({short(knee['output_tps'])} output tokens/s)"
        return f"The knee was not passed: throughput was highest at the heaviest load that counts, {top}."
    where = f"the knee at {short(knee['concurrency'])} users ({short(knee['output_tps'])} output tokens/s)"
    if any(verdict(point) == "NONSTATIONARY" for point in summary["points"]):
        return f"Past {where} the queue grows."
    return f"Past {where} little is gained: the most measured was {short(knee['x_max_tps'])} output tokens/s."


def _overload_sentence(summary: Summary) -> str:
    most, last = short(summary["knee"]["measured"]["x_max_tps"]), heaviest_stable(summary)
    if last is None:
        return f"No knee: the queue grew at every load that counts; {most} output tokens/s at most."
    return (
        f"Past {short(last['concurrency_mean'])} users ({short(last['output_tps'])} output tokens/s), the heaviest "
        f"load without a growing queue, only overload gives more: {most} at most."
    )


# --- tables ----------------------------------------------------------------------------------------------------------


def grid(heads: Sequence[Sequence[str]], rows: Sequence[Sequence[str]], left: Iterable[int] = ()) -> str:
    """Columns two spaces apart under one or more heading lines; right-aligned but for those in `left`."""
    lines = [*heads, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    keep = set(left)

    def written(line: Sequence[str]) -> str:
        cells = (text.ljust(widths[i]) if i in keep else text.rjust(widths[i]) for i, text in enumerate(line))
        return "  ".join(cells).rstrip()

    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join([*map(written, heads), rule, *map(written, rows)])


def wrap(text: str, indent: str = "") -> str:
    """`text` at 80 columns; continuation lines are indented."""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def conditions_text(summary: Summary) -> str:
    """The four variables, one a line; a figure without them is not printed."""
    named = ((key.replace("_", " "), str(summary["conditions"].get(key, "unknown"))) for key in VARIABLES)
    return "\n".join(wrap(f"{name + ':':<16}{text}", " " * 16) for name, text in named)


def points_only(summary: Summary) -> str:
    """The load points from light to heavy, with the reason of each missing number below."""
    chosen = TERMINAL if any(has_tokens(point) for point in summary["points"]) else WITHOUT_TOKENS
    shown = columns(summary, chosen)
    asked = ("asked", "req/s" if summary["mode"] == "open" else "users")
    heads = [asked, *chosen.values(), ("validity", "")]
    notes: dict[str, str] = {}
    rows = []
    for point in by_load(summary):
        row = [_footnoted(column, point, notes) for column in shown]
        rows.append([*row, VERDICT_WORDS[verdict(point)]])
    table = grid([[head[0] for head in heads], [head[1] for head in heads]], rows, left=[len(heads) - 1])
    return "\n".join([table, *(wrap(f"{mark}: {reason}", "   ") for reason, mark in notes.items())])


def _footnoted(column: Column, point: Point, notes: dict[str, str]) -> str:
    reading = column.read(point)
    if reading.value is not None:
        return column.cell(point)
    return "n/a " + notes.setdefault(why(reading), chr(ord("a") + len(notes)))


def errors_text(summary: Summary, most: int = 5) -> str:
    """The most frequent errors with their counts; empty without errors."""
    found = all_errors(summary)
    lines = [wrap(f"{error['count']:>7,} x {error['class']}: {error['message']}", " " * 10) for error in found[:most]]
    if len(found) > most:
        lines.append(f"        and {len(found) - most} kinds more")
    return "\n".join(["errors:", *lines]) if lines else ""


def validity_text(summary: Summary) -> str:
    """The evidence of every check that did not pass, point by point."""
    lines = []
    for point in by_load(summary):
        load = columns(summary, ())[0].cell(point)
        for one in point["validity"]["checks"]:
            if one["verdict"] in ("warn", "invalid", "nonstationary"):
                lines.append(wrap(f"  {load} {one['verdict']}: {one['name']}. {one['text']}", "    "))
    return "\n".join(["checks that did not pass:", *lines]) if lines else ""


def points_table(summary: Summary) -> str:
    """All that a terminal shows of a run: identity, notes, answer, table (when anything was measured), conditions."""
    blocks = [
        wrap(" · ".join([*identity(summary), date_text(summary), badge(summary)]), "  "),
        "\n".join(wrap(f"! {note}", "  ") for note in notices(summary)),
        "\n".join(wrap(sentence) for sentence in answer_sentences(summary)),
        "" if nothing_measured(summary) else points_only(summary),
        errors_text(summary),
        validity_text(summary),
        conditions_text(summary),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"
