"""Load points as CSV and Markdown, and a gate's decision as Markdown, JUnit XML and a terminal table."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Any

from reports.readings import VARIABLES, Column, Point, Summary, by_load, columns, percent, verdict
from reports.tables import grid, wrap

MARKDOWN = (
    "concurrency_mean", "achieved_rps", "output_tps", "ttft_p50_ms", "ttft_p95_ms", "itl_p95_ms", "tpot_p50_ms",
    "e2e_p95_ms", "goodput_rps", "attainment_share", "failed", "bound_share",
)  # fmt: skip
Decision = dict[str, Any]


# --- load points -----------------------------------------------------------------------------------------------------


def points_csv(summary: Summary) -> str:
    """Every figure of every point, units in the column names; a missing one is empty, its reason in `missing`."""
    shown = columns(summary)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["point", *(column.key for column in shown), "limiter", "validity", "missing"])
    for point in by_load(summary):
        missing = [f"{column.key}: {column.read(point).reason}" for column in shown if column.read(point).value is None]
        row = [_raw(column, point) for column in shown]
        writer.writerow([point["index"], *row, point["bound"]["limiter"] or "", verdict(point), "; ".join(missing)])
    return buffer.getvalue()


def _raw(column: Column, point: Point) -> str:
    value = column.read(point).value
    return "" if value is None else f"{value * column.scale:.8g}"


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, figures right-aligned but for the first and last column."""
    marks = [":--", *["--:"] * (len(heads) - 2), ":--"]
    lines = [heads, marks, *rows]
    return "\n".join("| " + " | ".join(_md(cell) for cell in line) + " |" for line in lines) + "\n"


def _md(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;"))


def points_markdown(summary: Summary) -> str:
    """The main figures of every point as a Markdown table, its conditions below."""
    shown = columns(summary, MARKDOWN)
    heads = [column.key for column in shown] + ["validity"]
    rows = [[*(column.cell(point) for column in shown), verdict(point)] for point in by_load(summary)]
    return markdown_table(heads, rows) + "\n" + _conditions_md(summary["conditions"])


def _conditions_md(conditions: dict[str, Any]) -> str:
    first = [key for key in VARIABLES if key in conditions]
    keys = [*first, *(key for key in conditions if key not in first)]
    return "".join(f"- {key.replace('_', ' ')}: {_md(str(conditions[key]))}\n" for key in keys)


# --- the gate --------------------------------------------------------------------------------------------------------

# Each look has its own share of the 5%: the intervals are of 97.8%.
_GATE_HEADS = ("metric", "margin", "candidate / baseline", "97.8% interval", "verdict")


def _gate_rows(decision: Decision) -> list[list[str]]:
    return [
        [str(one["metric"]), _margin(one["margin"]), _ratio(one["ratio"]), _interval(one), str(one["verdict"])]
        for one in decision["metrics"]
    ]


def _margin(margin: Any) -> str:
    return f"{'+' if margin > 0 else '-'}{percent(abs(margin))}" if isinstance(margin, int | float) else str(margin)


def _ratio(ratio: float | None) -> str:
    return "n/a" if ratio is None else f"{ratio:.3f}"


def _interval(one: dict[str, Any]) -> str:
    if one["ratio_low"] is None or one["ratio_high"] is None:
        return "n/a"
    return f"{one['ratio_low']:.3f} to {one['ratio_high']:.3f}"


def _headline(decision: Decision) -> str:
    return f"{decision['verdict']} after {decision['pairs']} interleaved pairs"


def gate_table(decision: Decision) -> str:
    """The decision for a terminal: verdict, each metric with its interval, the reasons, notes and conditions."""
    blocks = [
        wrap(_headline(decision)),
        grid([_GATE_HEADS], _gate_rows(decision), left=[0, 4]) if decision["metrics"] else "",
        "\n".join(wrap(f"{one['metric']}: {one['text']}", "  ") for one in decision["metrics"] if one["text"]),
        "\n".join(wrap(f"! {note}", "  ") for note in decision["notes"]),
        "\n".join(wrap(f"{key.replace('_', ' ')}: {text}", "  ") for key, text in decision["conditions"].items()),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def gate_markdown(decision: Decision) -> str:
    """The decision as Markdown for a pull request."""
    parts = [f"## Gate: {_headline(decision)}\n\n"]
    if decision["metrics"]:
        parts.append(markdown_table(_GATE_HEADS, _gate_rows(decision)) + "\n")
    parts += [
        f"- **{_md(str(one['metric']))}**: {_md(str(one['text']))}\n" for one in decision["metrics"] if one["text"]
    ]
    parts += [f"- Note: {_md(str(note))}\n" for note in decision["notes"]]
    return "".join([*parts, "\n### Conditions\n\n", _conditions_md(decision["conditions"])])


def gate_junit(decision: Decision) -> str:
    """The decision as JUnit XML: FAIL is a failure; no verdict (INCONCLUSIVE, INVALID) is an error, never a pass."""
    cases = [*decision["metrics"]]
    if not cases:  # a gate that could not measure must not look like an empty, green suite
        text = "; ".join(map(str, decision["notes"])) or "nothing was measured"
        cases = [{"metric": "gate", "verdict": decision["verdict"], "text": text}]
    failures = sum(one["verdict"] == "FAIL" for one in cases)
    errors = sum(one["verdict"] not in ("PASS", "FAIL") for one in cases)
    counts = {"tests": str(len(cases)), "failures": str(failures), "errors": str(errors)}
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": "bench gate", **counts})
    properties = ET.SubElement(suite, "properties")
    for key, value in {"verdict": decision["verdict"], "pairs": decision["pairs"], **decision["conditions"]}.items():
        ET.SubElement(properties, "property", {"name": _xml(key), "value": _xml(value)})
    for one in cases:
        _junit_case(suite, one)
    ET.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _junit_case(suite: ET.Element, one: dict[str, Any]) -> None:
    case = ET.SubElement(suite, "testcase", {"classname": "gate", "name": _xml(one["metric"])})
    text = _xml(one["text"])
    if one["verdict"] == "PASS":
        ET.SubElement(case, "system-out").text = text
        return
    kind = "failure" if one["verdict"] == "FAIL" else "error"
    ET.SubElement(case, kind, {"type": _xml(one["verdict"]), "message": text}).text = text


def _xml(value: Any) -> str:
    """Text without the control characters that XML 1.0 forbids."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", str(value))
