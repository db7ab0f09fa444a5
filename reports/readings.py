"""How a number is looked up in a summary and written for people: its value or the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Summary = dict[str, Any]
Point = dict[str, Any]

VARIABLES = ("input_lengths", "output_lengths", "load", "latency_target")
VERDICT_WORDS = {"VALID": "valid", "WARN": "warn", "NONSTATIONARY": "overloaded", "INVALID": "invalid"}
METRIC_WORDS = {
    "ttft": "TTFT", "ttfo": "TTFO", "e2e": "E2E", "itl": "ITL", "tpot": "TPOT", "event_gap": "event gap",
}  # fmt: skip
LIMITER_WORDS = {
    "bandwidth": "memory-bandwidth", "compute": "compute", "kv capacity": "KV-capacity", "latency": "latency",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reading:
    """A value with its 95% interval, or None with the reason; `short` is the reason in a table cell."""

    value: float | None
    reason: str = ""
    short: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of a load point: `key` ends in its unit, `head` and `unit` label it, `read` finds it."""

    key: str
    head: str
    unit: str
    read: Callable[[Point], Reading]
    write: Callable[[float], str]
    scale: float = 1.0

    def cell(self, point: Point) -> str:
        """The figure as people read it, or "n/a, " and the short reason."""
        reading = self.read(point)
        return na(reading) if reading.value is None else self.write(reading.value * self.scale)


def number(value: float) -> str:
    """Three significant digits from 1 to 100, thousands separated above; for columns of figures."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 or size == 0 else f"{value:.3g}"


def short(value: float) -> str:
    """Two significant digits below 100, thousands separated above; for sentences and labels."""
    if abs(value) >= 99.5:
        return f"{value:,.0f}"
    return f"{value:.0f}" if abs(value) >= 9.95 else f"{value:.2g}"


def integer(value: float) -> str:
    """A count."""
    return f"{value:,.0f}"


def percent(value: float) -> str:
    """A share; a decimal below 10%, and close to 100%, which only all of it is."""
    if 0.985 <= value < 1:
        return f"{math.floor(value * 1000) / 1000:.1%}"
    return f"{value:.0%}" if value >= 0.0995 or value == 0 else f"{value:.1%}"


def na(reading: Reading) -> str:
    """ "n/a" and the short reason, as it stands in a cell and in print."""
    return f"n/a, {reading.short or reading.reason}"


def missing(reason: str) -> Reading:
    """A number that isn't there; the cell keeps what stands before the colon."""
    return Reading(None, reason, reason.split(":")[0])


def value_reading(value: float | None, reason: str) -> Reading:
    """A plain figure of the summary; `reason` is said when it is null."""
    if value is None or not math.isfinite(value):
        return missing(reason)
    return Reading(float(value))


def why(reading: Reading) -> str:
    """Why a figure is missing, the same words for equal reasons: how many samples it needs, not how many it has."""
    return f"{reading.short} samples" if reading.short.startswith("needs") else reading.reason


def distribution(point: Point, metric: str, start: str | None = None) -> dict[str, Any] | None:
    """D of a metric; TTFT, TTFO and E2E count from intended (headline), in closed loop from sent, or from `start`."""
    found: dict[str, Any] | None = point["metrics"].get(metric)
    if found is None or "n" in found:
        return found
    chosen: dict[str, Any] | None = found.get(start) if start else found.get("from_intended") or found.get("from_sent")
    return chosen


def stat(point: Point, metric: str, name: str, start: str | None = None) -> Reading:
    """A percentile in seconds with its interval, or why it is missing (too few samples, withheld)."""
    found = distribution(point, metric, start)
    if found is None:
        return missing("not measured: closed loop has no intended instants" if start else "not measured")
    value = found.get(name)
    if value is not None and math.isfinite(value):
        low, high = (found.get("ci95") or {}).get(name) or (None, None)
        return Reading(float(value), low=low, high=high)
    needs = (found.get("needs") or {}).get(name)
    if found.get("reason"):
        return missing(found["reason"])
    if needs:
        return Reading(None, f"needs {needs:,} samples, has {found['n']:,}", f"needs {needs:,}")
    return missing("no samples" if not found["n"] else "not computed")


def interactivity(point: Point) -> Reading:
    """1/TPOT p50: tokens/s that one user sees."""
    tpot = stat(point, "tpot", "p50")
    return Reading(1 / tpot.value) if tpot.value else Reading(None, tpot.reason, tpot.short)


def throughput(point: Point) -> Reading:
    """Output tokens/s inside the window, with an interval when the summary has one (`output_tps_ci95`)."""
    low, high = point.get("output_tps_ci95") or (None, None)
    value = point["output_tps"]
    if not value and not point["counts"]["ok"]:
        return missing("no answers: not one request was answered")
    return missing("no tokens in the window") if value is None else Reading(float(value), low=low, high=high)


def has_tokens(point: Point) -> bool:
    """Whether tokens came, or may have been meant to: False where requests were answered and no answer had one."""
    ttft = distribution(point, "ttft")
    return not point["counts"]["ok"] or bool(point["output_tps"]) or ttft is None or bool(ttft["n"])


def fluidity(point: Point) -> Reading:
    """Share of token deadlines met."""
    found = point.get("fluidity") or {}
    return value_reading(found.get("share"), found.get("reason") or "not computed")


def time_line(point: Point) -> tuple[list[float], list[float], tuple[float, float]] | None:
    """(middles of the bins in seconds, requests in flight, measured window); None where the counter was lost."""
    found = point.get("time_line") or {}
    if not found.get("in_flight"):
        return None
    middles = [(i + 0.5) * found["bin_s"] for i in range(len(found["in_flight"]))]
    return middles, found["in_flight"], (found["window_s"][0], found["window_s"][1])


def bound_share(point: Point) -> Reading:
    """Measured over bound."""
    return value_reading(point["bound_fraction"], point["bound"].get("reason") or "bound unknown")


def _of(key: str, reason: str) -> Callable[[Point], Reading]:
    return lambda point: value_reading(point.get(key), reason)


def _inside(outer: str, key: str, reason: str) -> Callable[[Point], Reading]:
    return lambda point: value_reading((point.get(outer) or {}).get(key), reason)


def _stat(metric: str, name: str, start: str | None = None) -> Callable[[Point], Reading]:
    return lambda point: stat(point, metric, name, start)


def _latency(metric: str, name: str, start: str | None = None) -> Column:
    suffix = f"_{start}" if start else ""
    head = f"{METRIC_WORDS[metric]} {name}" + (f" {start.replace('_', ' ')}" if start else "")
    return Column(f"{metric}_{name}{suffix}_ms", head, "ms", _stat(metric, name, start), number, 1000)


ASKED = {
    "open": Column("rate_rps", "asked", "requests/s", _of("rate_rps", "not set"), number),
    "closed": Column("concurrency_target", "asked", "users", _of("concurrency_target", "not set"), integer),
}
COLUMNS: tuple[Column, ...] = (
    Column("concurrency_mean", "in flight", "mean", _of("concurrency_mean", "not counted"), number),
    Column("concurrency_max", "in flight", "max", _of("concurrency_max", "not counted"), integer),
    Column("running_mean", "running", "mean", _of("running_mean", "no ITL"), number),
    Column("offered_rps", "offered", "requests/s", _of("offered_rps", "not counted"), number),
    Column("achieved_rps", "achieved", "requests/s", _of("achieved_rps", "nothing completed"), number),
    Column("output_tps", "output", "tokens/s", throughput, number),
    Column("prompt_tps", "prompt", "tokens/s", _of("prompt_tps", "no usage"), number),
    *(_latency("ttft", name) for name in ("p50", "p90", "p95", "p99")),
    _latency("ttft", "p95", "from_sent"),
    _latency("ttfo", "p95"),
    *(_latency("itl", name) for name in ("p50", "p95", "p99")),
    _latency("event_gap", "p95"),
    *(_latency("tpot", name) for name in ("p50", "p95")),
    *(_latency("e2e", name) for name in ("p50", "p95", "p99")),
    _latency("e2e", "p95", "from_sent"),
    Column("user_tps", "one user", "tokens/s", interactivity, number),
    Column("decode_rate_tps", "decode rate", "tokens/s", _of("decode_rate_tps", "not measured"), number),
    Column("prefill_rate_tps", "prefill rate", "tokens/s", _of("prefill_rate_tps", "not measured"), number),
    Column("goodput_rps", "goodput", "requests/s", _of("goodput_rps", "no SLO verdict"), number),
    Column("attainment_share", "attainment", "share", _of("attainment", "no SLO verdict"), percent),
    Column("failed", "failed", "requests", _of("failed", "not counted"), integer),
    Column("unfinished", "unfinished", "requests", _of("unfinished", "not counted"), integer),
    Column("bound_tps", "bound", "tokens/s", _inside("bound", "output_tps", "bound unknown"), number),
    Column("bound_share", "of bound", "share", bound_share, percent),
    Column("stalls", "stalls", "count", _inside("stalls", "count", "not counted"), integer),
    Column("stall_longest_ms", "longest stall", "ms", _inside("stalls", "longest_s", "no stall"), number, 1000),
    Column("fluidity_share", "fluidity", "share", fluidity, percent),
    Column("tokens_per_event", "tokens/event", "mean", _inside("tokens", "per_event", "no events"), number),
    Column("window_s", "window", "s", _of("window_s", "not set"), number),
)
BY_KEY = {column.key: column for column in COLUMNS}


def columns(summary: Summary, keys: Iterable[str] | None = None) -> list[Column]:
    """What was asked, then the figures named by `keys` (all of them when None)."""
    chosen = COLUMNS if keys is None else [BY_KEY[key] for key in keys]
    return [ASKED[summary["mode"]], *chosen]


def verdict(point: Point) -> str:
    """The validity verdict: VALID, WARN, INVALID or NONSTATIONARY."""
    return str(point["validity"]["verdict"])


def by_load(summary: Summary) -> list[Point]:
    """The load points from light to heavy: by concurrency where it is known, then by what was asked."""

    def load(point: Point) -> tuple[float, float]:
        asked = point["rate_rps"] if summary["mode"] == "open" else point["concurrency_target"]
        return (asked or 0.0, point["concurrency_mean"] or 0.0)

    return sorted(summary["points"], key=load)


def point_at(summary: Summary, index: int) -> Point:
    """The load point with this `index`."""
    return next(point for point in summary["points"] if point["index"] == index)


def drawable(point: Point) -> bool:
    """It has a place on the curve: a concurrency above zero and a throughput."""
    return bool(point["concurrency_mean"]) and throughput(point).value is not None


def heaviest_stable(summary: Summary) -> Point | None:
    """The most requests in flight that were borne without a growing queue."""
    stable = [point for point in summary["points"] if drawable(point) and verdict(point) in ("VALID", "WARN")]
    return max(stable, key=lambda point: float(point["concurrency_mean"]), default=None)


def knee_state(summary: Summary) -> str:
    """What can be said of the measured knee, the same in sentence, figure and caption.

    "none"; "overloaded": only overloaded points reach 90% of the highest throughput, and their concurrency tells how
    long one waited, not where the knee is; "not passed": no heavier point counts, so throughput may still be growing
    there; "passed".
    """
    knee = summary["knee"]["measured"]
    if not knee:
        return "none"
    if verdict(point_at(summary, knee["point"])) == "NONSTATIONARY":
        return "overloaded"
    counted = [point for point in summary["points"] if drawable(point) and verdict(point) != "INVALID"]
    return "passed" if any(point["concurrency_mean"] > knee["concurrency"] for point in counted) else "not passed"


def nothing_measured(summary: Summary) -> bool:
    """Not one request of the whole run was answered."""
    return not any(point["counts"]["ok"] for point in summary["points"])


def badge(summary: Summary) -> str:
    """ "7 valid, 1 overloaded, 0 invalid": how many load points have which verdict."""
    counts = dict.fromkeys(VERDICT_WORDS.values(), 0)
    for point in summary["points"]:
        counts[VERDICT_WORDS[verdict(point)]] += 1
    return ", ".join(f"{n} {word}" for word, n in counts.items() if n or word != "warn")


def objective_text(objective: dict[str, Any]) -> str:
    """ "TTFT p95 < 500 ms"."""
    metric = METRIC_WORDS.get(objective["metric"], objective["metric"])
    return f"{metric} {objective['stat']} < {short(objective['limit_s'] * 1000)} ms"


def slo_text(summary: Summary) -> str:
    """All objectives in one phrase; empty when none was set."""
    return ", ".join(objective_text(one) for one in summary["slo"]["objectives"])


def meets_slo(summary: Summary, point: Point) -> bool:
    """VALID or WARN, and every objective's figure is there and below its limit."""
    if verdict(point) not in ("VALID", "WARN") or not summary["slo"]["objectives"]:
        return False
    found = [(stat(point, one["metric"], one["stat"]).value, one["limit_s"]) for one in summary["slo"]["objectives"]]
    return all(value is not None and value < limit for value, limit in found)


def breaks_slo(summary: Summary, point: Point) -> bool:
    """A figure is there and not below its limit; too few samples break nothing."""
    found = [(stat(point, one["metric"], one["stat"]).value, one["limit_s"]) for one in summary["slo"]["objectives"]]
    return any(value is not None and value >= limit for value, limit in found)


def known(summary: Summary, *keys: str) -> list[str]:
    """The conditions under `keys` that are known, as text."""
    found = (str(summary["conditions"].get(key, "unknown")) for key in keys)
    return [text for text in found if text and text != "unknown"]


def identity(summary: Summary) -> list[str]:
    """What was measured, in the order people say it: scenario, model and precision, engine, hardware and split."""
    model = " ".join(known(summary, "model", "precision")) or "model unknown"
    hardware = ", ".join(known(summary, "hardware", "split")) or "hardware unknown"
    engine = " ".join(known(summary, "engine")) or "engine unknown"
    return [str(summary["scenario"].get("name", "unnamed scenario")), model, engine, hardware]


def date_text(summary: Summary) -> str:
    """Date and minute in UTC."""
    return str(summary["created_utc"]).replace("T", " ")[:16] + " UTC"


def notices(summary: Summary) -> list[str]:
    """What a reader must know before any number: interrupted, closed loop, scaled for a CPU, the run's own notes."""
    found = []
    if not summary["finished"]:
        found.append("The run was interrupted: this is what it had measured by then.")
    if summary["mode"] == "closed":
        found.append("Closed loop: load follows the server's speed, and latencies count from sent, not from intended.")
    if summary["scaled_for_cpu"] and not any("scaled" in note.lower() for note in summary["notes"]):
        found.append("Scaled to what a CPU serves: these are not the scenario's own lengths.")
    return found + [str(note) for note in summary["notes"]]


def all_errors(summary: Summary) -> list[dict[str, Any]]:
    """The errors of all points, equal ones added up, the most frequent first."""
    counts: dict[tuple[str, str], int] = {}
    for point in summary["points"]:
        for error in point["errors"]:
            key = (str(error["class"]), str(error["message"]))
            counts[key] = counts.get(key, 0) + int(error["count"])
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return [{"class": kind, "message": message, "count": count} for (kind, message), count in ordered]


def devices(summary: Summary) -> int:
    """Devices that the roofline counts; at least 1."""
    return max(1, int(summary["roofline"].get("devices") or 1))
