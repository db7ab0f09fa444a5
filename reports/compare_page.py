"""Two runs side by side: what differs, the ratio at equal SLO and at equal concurrency, and the page that shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from reports import multiples
from reports.exports import points_csv
from reports.marks import Run, pair
from reports.multiples import objective
from reports.page import (
    KNEE_SAYS,
    TABLE,
    Figure,
    all_numbers,
    curve_figure,
    definitions,
    environment,
    four_variables,
    inline,
    latency_figure,
    points_rows,
    speed_figure,
)
from reports.readings import (
    Point,
    Summary,
    badge,
    by_load,
    columns,
    date_text,
    drawable,
    identity,
    knee_state,
    notices,
    number,
    point_at,
    short,
    slo_text,
    verdict,
)
from reports.svg import WIDE
from reports.tables import conditions_text, grid, points_only, wrap

Comparison = dict[str, Any]
# What makes two measurements incomparable, rather than two engines different.
CRUCIAL = (
    "schedule_id", "mode", "input_lengths", "output_lengths", "load", "latency_target", "token_source",
    "receive_stamps", "client_machine", "seed", "scaled_for_cpu",
)  # fmt: skip
NO_INTERVAL = "Sampling interval n/a: one run each, needs repeats with other seeds."


# --- what is compared (pure) -----------------------------------------------------------------------------------------


def differences(summary_a: Summary, summary_b: Summary) -> list[dict[str, Any]]:
    """Every condition in which the runs differ, the crucial ones first: {key, a, b, crucial}."""
    sides = [_all_conditions(summary) for summary in (summary_a, summary_b)]
    keys = list(dict.fromkeys([*CRUCIAL, *sides[0], *sides[1]]))
    pairs = [(key, sides[0].get(key, "unknown"), sides[1].get(key, "unknown")) for key in keys]
    return [{"key": key, "a": a, "b": b, "crucial": key in CRUCIAL} for key, a, b in pairs if a != b]


def _all_conditions(summary: Summary) -> dict[str, str]:
    extra = {key: str(summary[key]) for key in ("schedule_id", "mode", "scaled_for_cpu")}
    return extra | {key: str(text) for key, text in summary["conditions"].items()}


def _counted(summary: Summary) -> list[Point]:
    return [p for p in by_load(summary) if drawable(p) and verdict(p) in ("VALID", "WARN")]


def _interpolated(points: list[Point], x: np.ndarray) -> np.ndarray:
    known = sorted((float(np.log2(p["concurrency_mean"])), float(p["output_tps"])) for p in points)
    return np.asarray(np.interp(np.log2(x), [a for a, _ in known], [b for _, b in known]))


def equal_concurrency(summary_a: Summary, summary_b: Summary) -> dict[str, Any]:
    """B / A of output tokens/s at the concurrencies measured in either run, interpolated in log concurrency.

    Only where both were measured: nothing is extrapolated. Only VALID and WARN points count; the concurrency of an
    overloaded one depends on how long one waits.
    """
    counted = [_counted(summary) for summary in (summary_a, summary_b)]
    empty: dict[str, Any] = {"concurrency": [], "ratio": [], "low": None, "high": None}
    if any(len(points) < 2 for points in counted):
        return empty | {"reason": "fewer than two valid points in a run"}
    users = [[float(p["concurrency_mean"]) for p in points] for points in counted]
    low, high = max(map(min, users)), min(map(max, users))
    if low >= high:
        return empty | {"reason": "the runs share no range of concurrency"}
    x = np.array(sorted({c for side in users for c in side if low <= c <= high}))
    a, b = (_interpolated(points, x) for points in counted)
    if not np.all(a > 0):
        return empty | {"reason": "A has no throughput at some concurrency"}
    return {"concurrency": x.tolist(), "ratio": (b / a).tolist(), "low": low, "high": high, "reason": None}


def equal_slo(summary_a: Summary, summary_b: Summary) -> dict[str, Any]:
    """B / A of output tokens/s and goodput at each run's best point within the SLO, when both asked the same.

    `low` and `high` bracket the throughput ratio by the steps of the ladders: the true capacity of a run lies between
    its best point and the next heavier one measured, so the ratio lies between best B / next A and next B / best A.
    """
    reason = _slo_reason(summary_a, summary_b)
    if reason:
        return {"reason": reason, "output_tps": None, "goodput_rps": None}
    best = [point_at(summary, summary["slo"]["best_point"]) for summary in (summary_a, summary_b)]
    result: dict[str, Any] = {"reason": None, "slo": slo_text(summary_a)}
    for key in ("output_tps", "goodput_rps"):
        a, b = best[0][key], best[1][key]
        result[key] = {"a": a, "b": b, "ratio": b / a if a and b is not None else None}
    a_top, b_top = (_next_heavier(summary) for summary in (summary_a, summary_b))
    a, b = best[0]["output_tps"], best[1]["output_tps"]
    result["output_tps"] |= {
        "low": b / a_top if a_top else None,
        "high": b_top / a if b_top and a else None,
        "interval_reason": NO_INTERVAL,
    }
    return result


def _slo_reason(summary_a: Summary, summary_b: Summary) -> str | None:
    objectives = [summary["slo"]["objectives"] for summary in (summary_a, summary_b)]
    if not objectives[0] or not objectives[1]:
        return "a run has no SLO"
    if objectives[0] != objectives[1]:
        return f"the SLOs differ: A {slo_text(summary_a)}; B {slo_text(summary_b)}"
    missing = [name for name, s in (("A", summary_a), ("B", summary_b)) if s["slo"]["best_point"] is None]
    if any(s["slo"].get("undecided") for s in (summary_a, summary_b)):
        return f"whether {' and '.join(missing)} meets the SLO can't be said, with too few requests a point"
    return f"no load point of {' and '.join(missing)} met the SLO" if missing else None


def _next_heavier(summary: Summary) -> float | None:
    """The most that the run can serve within its SLO as far as it was measured; None when the SLO held to the end."""
    best = point_at(summary, summary["slo"]["best_point"])
    beyond = [p for p in by_load(summary) if p["output_tps"] is not None and verdict(p) != "INVALID"]
    heavier = beyond[beyond.index(best) + 1 :] if best in beyond else []
    return max(float(best["output_tps"]), float(heavier[0]["output_tps"])) if heavier else None


def compare(summary_a: Summary, summary_b: Summary) -> Comparison:
    """{differences, equal_slo, equal_concurrency}: ratios are B / A; what can't be said is None with its reason."""
    return {
        "differences": differences(summary_a, summary_b),
        "equal_slo": equal_slo(summary_a, summary_b),
        "equal_concurrency": equal_concurrency(summary_a, summary_b),
    }


# --- in words --------------------------------------------------------------------------------------------------------


def warning_sentences(found: Comparison) -> list[str]:
    """What must be said above the headline: each crucial difference, and the names of the others."""
    crucial = [one for one in found["differences"] if one["crucial"]]
    others = [one["key"].replace("_", " ") for one in found["differences"] if not one["crucial"]]
    texts = [f"Other {one['key'].replace('_', ' ')}: A {one['a']}; B {one['b']}." for one in crucial]
    if not crucial:
        texts.append("Same schedule, lengths, load, latency target, token source and client machine.")
    if others:
        texts.append(f"They {'also ' if crucial else ''}differ in: {', '.join(others)}.")
    return texts


def headline_sentences(found: Comparison, names: tuple[str, str]) -> list[str]:
    """The ratio at equal SLO with its interval, then at equal concurrency; or why there is none."""
    texts = [_slo_headline(found["equal_slo"], names), _concurrency_headline(found["equal_concurrency"], names)]
    return texts if found["equal_slo"]["reason"] else [*texts, NO_INTERVAL]


def _slo_headline(found: dict[str, Any], names: tuple[str, str]) -> str:
    served = found["output_tps"]
    if found["reason"] or served["ratio"] is None:
        return f"No ratio at equal SLO: {found['reason'] or 'a throughput is missing'}."
    text = f"At equal SLO ({found['slo']}) {names[1]} (B) serves {served['ratio']:.2f} times the output tokens/s of "
    text += f"{names[0]} (A): {short(served['b'])} against {short(served['a'])}; {_bracket(served)}"
    goodput = found["goodput_rps"]["ratio"]
    return text + (f" (goodput {goodput:.2f} times)." if goodput is not None else ".")


def _bracket(served: dict[str, Any]) -> str:
    if served["low"] is None and served["high"] is None:
        return "the SLO held to the end of both ladders, so neither capacity was reached"
    if served["low"] is None:
        return f"at most {served['high']:.2f}: A held the SLO to the end of its ladder"
    if served["high"] is None:
        return f"at least {served['low']:.2f}: B held the SLO to the end of its ladder"
    return f"the steps of the ladders allow {served['low']:.2f} to {served['high']:.2f}"


def _concurrency_headline(found: dict[str, Any], names: tuple[str, str]) -> str:
    if found["reason"]:
        return f"No ratio at equal concurrency: {found['reason']}."
    low, high = min(found["ratio"]), max(found["ratio"])
    where = f"from {short(found['low'])} to {short(found['high'])} users"
    times = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    return f"At equal concurrency, {where}, B gives {times} times the output tokens/s of A."


def compare_text(summary_a: Summary, summary_b: Summary, names: tuple[str, str] = ("A", "B")) -> str:
    """The comparison for a terminal: differences first, then the headline, the ratios and both tables."""
    found = compare(summary_a, summary_b)
    equal = found["equal_concurrency"]
    rows = [[number(c), f"{r:.3f}"] for c, r in zip(equal["concurrency"], equal["ratio"], strict=True)]
    blocks = [
        "\n".join(wrap(f"! {text}", "  ") for text in warning_sentences(found)),
        "\n".join(wrap(text) for text in headline_sentences(found, names)),
        grid([["users", "output tok/s, B / A"]], rows) if rows else "",
    ]
    for letter, name, summary in (("A", names[0], summary_a), ("B", names[1], summary_b)):
        title = wrap(f"{letter}: {name}: {' · '.join(identity(summary))}, {badge(summary)}", "   ")
        blocks += [f"{title}\n{points_only(summary)}", conditions_text(summary)]
    return "\n\n".join(block for block in blocks if block) + "\n"


# --- the page --------------------------------------------------------------------------------------------------------


def _ratio_figure(equal: dict[str, Any]) -> Figure:
    says = "Output tokens/s of B over A, interpolated in log concurrency, only over the range that both runs measured."
    missing = (f"n/a: {equal['reason']}",) if equal["reason"] else ()
    title = "Ratio at equal concurrency"
    drawings = [
        inline(multiples.ratio(equal["concurrency"], equal["ratio"], *size), f"ratio{i}", title, says)
        for i, size in enumerate(((WIDE, 240.0), (360.0, 240.0)))
    ]
    return Figure("ratio", title, says, missing, *drawings)


def _condition_rows(summary_a: Summary, summary_b: Summary) -> list[dict[str, Any]]:
    sides = [_all_conditions(summary) for summary in (summary_a, summary_b)]
    keys = list(dict.fromkeys([*summary_a["conditions"], *summary_b["conditions"], *sides[0]]))
    values = [(key, sides[0].get(key, "unknown"), sides[1].get(key, "unknown")) for key in keys]
    return [{"key": key, "a": a, "b": b, "differs": a != b, "unknown": a == b == "unknown"} for key, a, b in values]


def _side(run: Run) -> dict[str, Any]:
    summary = run.summary
    return {
        "key": run.key, "name": run.name, "identity": identity(summary), "date": date_text(summary),
        "badge": badge(summary), "heads": columns(summary, TABLE), "rows": points_rows(run),
        "conditions": four_variables(summary), "notices": notices(summary), "csv": points_csv(summary),
    }  # fmt: skip


def _page_conditions(runs: tuple[Run, Run]) -> tuple[tuple[str, str], ...]:
    sides = [dict(four_variables(run.summary)) for run in runs]
    return tuple((key, a if a == sides[1][key] else f"A {a}, B {sides[1][key]}") for key, a in sides[0].items())


def _curve_says(runs: tuple[Run, Run]) -> str:
    says = "A is blue, round and solid; B is orange, square and dashed; bounds are grey. "
    says += "Rings mark the knees; hollow points are overloaded (arrow) or invalid."
    states = [(run.prefix.strip(), knee_state(run.summary)) for run in runs]
    return says + "".join(f" {letter}:{KNEE_SAYS[state]}" for letter, state in states if state != "passed")


def compare_context(summary_a: Summary, summary_b: Summary, names: tuple[str, str]) -> dict[str, Any]:
    """What the template of a comparison shows."""
    found, runs = compare(summary_a, summary_b), pair(summary_a, summary_b, names)
    stats = {metric: objective(summary_a, metric)[0] for metric in ("ttft", "itl")}
    return {
        "title": f"{names[0]} against {names[1]}", "sides": [_side(run) for run in runs],
        "warnings": warning_sentences(found), "same": not any(one["crucial"] for one in found["differences"]),
        "headline": headline_sentences(found, names), "conditions": _page_conditions(runs),
        "curve": [curve_figure(runs, _curve_says(runs))],
        "ratio": [_ratio_figure(found["equal_concurrency"])],
        "latency": [latency_figure(runs, metric) for metric in stats] + [speed_figure(runs)],
        "rows": _condition_rows(summary_a, summary_b), "numbers": [*all_numbers(runs[0]), *all_numbers(runs[1])],
        "definitions": definitions(summary_a),
    }  # fmt: skip


def write_compare(summary_a: Summary, summary_b: Summary, path: Path, names: tuple[str, str] = ("A", "B")) -> None:
    """Write the comparison to `path`: one HTML file that needs no network."""
    page = environment().get_template("compare.html").render(compare_context(summary_a, summary_b, names))
    path.write_text(page, encoding="utf-8")
