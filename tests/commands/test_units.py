"""Case B77: a time is in seconds where its name says _s and in milliseconds where it says ms, on every surface."""

from __future__ import annotations

import csv
import io
import json
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadgen.cli import bench
from loadgen.collectors.records import PointLog, RequestRecord
from loadgen.collectors.run_folder import RunFolder
from loadgen.scenario.loader import load_scenario

S = 1_000_000_000
N = 80  # enough for a p95
MACHINE = {"cpu": "a CPU", "cores": 2, "memory_gib": 4.0, "system": "Linux 6", "python": "3.11"}
MANIFEST = {
    "scenario": load_scenario("smoke").as_json(),
    "server": {"model": "m", "engine": "e 1.0", "url": "http://h:1", "flags": None},
    "client": {"machine": MACHINE, "loop": "uvloop"},
    "roofline": {"reason": "bound unknown: tell me the hardware"},
    "created_utc": "2026-12-01T13:00:00Z",
    "run_id": "units",
    "finished": True,
    "schedule_id": "0" * 16,
    "version": "0.1.0",
}


def answer(index: int, ttft_s: float, gap_s: float) -> RequestRecord:
    """Five tokens: the first after `ttft_s`, the others `gap_s` apart."""
    at = 10 * S + index * S // 8
    record = RequestRecord(0, index, "measured", "ok", at, 1.7e9 + at / S, dispatched_at_ns=at, sent_at_ns=at)
    record.first_token_at_ns = record.first_answer_at_ns = at + round(ttft_s * S)
    record.last_token_at_ns = record.stream_end_at_ns = record.first_token_at_ns + round(4 * gap_s * S)
    record.output_tokens = record.output_tokens_asked = record.n_token_events = 5
    record.prompt_tokens = record.prompt_tokens_asked = 32
    record.output_tokens_source, record.finish_reason = "usage", "length"
    record.gap_ns, record.gap_events = array("q", [0] + [round(gap_s * S)] * 4), array("i", [1] * 5)
    record.gap_bytes = array("i", [100] * 5)
    return record


def run_folder(path: Path, ttft_s: float, gap_s: float) -> Path:
    records = [answer(i, ttft_s, gap_s) for i in range(N)]
    log = PointLog(
        point=0, mode="open", rate_rps=8.0, concurrency=None, t0_ns=9 * S, t0_wall_s=1.7e9, window_start_ns=10 * S,
        window_end_ns=20 * S, closed_at_ns=24 * S, due_measured=N, in_flight_mean=8 * (ttft_s + 4 * gap_s),
        in_flight_max=30, bin_s=0.1, in_flight_bins=[20.0] * 150, loop_lag_p99_s=0.001, client_cpu_share=0.1,
        writer_backlog_max=1, writer_backlog_limit=5000, writer_lag_max_s=0.0,
    )  # fmt: skip
    with RunFolder(path, MANIFEST) as folder:
        for record in records:
            folder.writer.record(record)
        folder.writer.end_point(log)
    return path


def shown(folder: Path, form: str) -> str:
    result = CliRunner().invoke(bench, ["show", str(folder), "--format", form])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(params=[(0.5, 0.5), (2.5, 0.125)], ids=["e2e of 2.5 s", "TTFT of 2.5 s"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, float]]:
    """A run folder, and the seconds that every surface must tell."""
    ttft_s, gap_s = request.param
    times = {"ttft": ttft_s, "e2e": ttft_s + 4 * gap_s, "itl": gap_s, "tpot": gap_s}
    return run_folder(tmp_path / "r", ttft_s, gap_s), times


def test_json_has_seconds_and_says_so(case: tuple[Path, dict[str, float]]) -> None:
    folder, times = case
    [point] = json.loads(shown(folder, "json"))["points"]
    for metric, seconds in times.items():
        found = point["metrics"][metric]
        for each in [found] if "n" in found else found.values():
            assert each["unit"] == "s"
            assert each["p50"] == each["mean"] == pytest.approx(seconds)
    row = json.loads((folder / "records.jsonl").read_text().splitlines()[0])
    assert row["last_token_at_ns"] - row["sent_at_ns"] == times["e2e"] * S


def test_csv_and_markdown_have_milliseconds_and_say_so(case: tuple[Path, dict[str, float]]) -> None:
    folder, times = case
    [row] = csv.DictReader(io.StringIO(shown(folder, "csv")))
    for metric, seconds in times.items():
        assert float(row[f"{metric}_p50_ms"]) == pytest.approx(1000 * seconds)
    assert float(row["e2e_p95_from_sent_ms"]) == pytest.approx(1000 * times["e2e"])
    assert float(row["window_s"]) == 10
    head, _, cells = (re.split(r" *\| *", line) for line in shown(folder, "markdown").splitlines()[:3])
    told = dict(zip(head, cells, strict=True))
    for metric, name in (("ttft", "p50"), ("ttft", "p95"), ("itl", "p95"), ("tpot", "p50"), ("e2e", "p95")):
        assert number(told[f"{metric}_{name}_ms"]) == pytest.approx(1000 * times[metric])


def test_the_console_has_milliseconds_and_says_so(case: tuple[Path, dict[str, float]]) -> None:
    folder, times = case
    lines = shown(folder, "table").splitlines()
    rule = next(i for i, line in enumerate(lines) if set(line) == {"-"})
    columns = [lines[rule + 1][: where.end()].split()[-1] for where in re.finditer("ms(?= |$)", lines[rule - 1])]
    heads = [lines[rule - 2][: where.end()].split()[-1] for where in re.finditer("ms(?= |$)", lines[rule - 1])]
    assert heads == ["TTFT", "TTFT", "ITL"]
    assert [number(text) for text in columns] == pytest.approx(
        [1000 * times["ttft"], 1000 * times["ttft"], 1000 * times["itl"]]
    )


def test_the_page_has_milliseconds_and_says_so(case: tuple[Path, dict[str, float]]) -> None:
    folder, times = case
    CliRunner().invoke(bench, ["report", str(folder)])  # whether the made-up point is valid is not asked here
    page = (folder / "report.html").read_text(encoding="utf-8")
    table = page[page.index('<table class="points">') :]
    heads = re.findall(
        r'<th scope="col"[^>]*>([^<]+)(?:<small>([^<]*)</small>)?</th>', table[: table.index("</thead>")]
    )
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", table[table.index("<tbody>") : table.index("</tbody>")])
    told = dict(zip(heads, cells, strict=True))
    hover = dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]+)</dd>", page))
    for metric, name in (("TTFT", "p50"), ("TTFT", "p95"), ("ITL", "p95"), ("TPOT", "p50"), ("E2E", "p95")):
        seconds = times[metric.lower()]
        assert number(told[f"{metric} {name}", "ms"]) == pytest.approx(1000 * seconds)
        assert number(hover[f"{metric} {name}, ms"]) == pytest.approx(1000 * seconds)
    drawn = re.findall(r'data-point="0" data-x="[\d.]+" data-y="([\d.]+)"', page[page.index('id="latency-ttft"') :])
    assert float(drawn[0]) == pytest.approx(1000 * times["ttft"])


def number(text: str) -> float:
    return float(text.replace(",", ""))


# Numbers that have no unit: counts, ordinals, shares and what stands under a name that says what it counts.
PURE = {
    "schema_version", "index", "n", "count", "failed", "unfinished", "best_point", "point", "devices", "attainment",
    "share", "bound_fraction", "requests", "rejections", "on_time_again", "n_reconnected",
}  # fmt: skip
COUNTED = {"counts", "needs", "tokens", "source", "in_flight", "scenario", "conditions"}
UNITS = re.compile(r"(_(s|ns|rps|tps|gbs|ci95|concurrency)|^concurrency(_mean|_max|_target)?|^running_mean|tflops)$")


def unnamed(node: Any, key: str = "", within: tuple[str, ...] = ()) -> Iterator[str]:
    """The path of every number of a summary whose name and surroundings tell no unit."""
    if isinstance(node, dict):
        inside = (*within, key)
        for name, child in node.items():
            if name == "value" and {"text", "limit"} <= node.keys():
                continue  # of a check: its text and limit say it with their units
            if "unit" not in node or name == "n":
                yield from unnamed(child, name, inside)
    elif isinstance(node, list):
        for child in node:
            yield from unnamed(child, key, within)
    elif isinstance(node, int | float) and not isinstance(node, bool):
        known = key in PURE or UNITS.search(key) or COUNTED & {key, *within}
        yield from [] if known else [".".join((*within, key))]


def test_every_number_of_the_summary_names_its_unit(case: tuple[Path, dict[str, float]]) -> None:
    assert sorted(unnamed(json.loads(shown(case[0], "json")))) == []
    assert list(unnamed({"points": [{"latency": 3.0}]})) == [".points.latency"]
