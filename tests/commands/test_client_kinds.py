"""Kinds client_limits and accounting of the public bug reports, from the command line over real sockets."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.certificates import make_pair
from support.fake_server import Script, fake_server

from loadgen.cli import bench

CALM = ["--set", "load.warmup=0s"]
PREFLIGHT = 4  # requests before the load: one, and three that find how much text makes a token


def run(url: str, out: Path, *args: str) -> Result:
    result = CliRunner().invoke(bench, ["run", "smoke", "--url", url, "--out", str(out), *CALM, *args])
    assert "Traceback" not in result.output, result.output
    return result


def records(out: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    return [row for row in rows if row["phase"] == "measured"]


def point(out: Path) -> dict[str, Any]:
    [found] = json.loads((out / "summary.json").read_text())["points"]
    return dict(found)


def check(out: Path, name: str) -> dict[str, Any]:
    return next(each for each in point(out)["validity"]["checks"] if each["name"] == name)


def seconds(row: dict[str, Any], end: str, begin: str) -> float:
    return float((row[end] - row[begin]) / 1e9)


def test_a_hundred_and_fifty_at_once_are_a_hundred_and_fifty_at_the_server(tmp_path: Path) -> None:
    with fake_server() as (url, script):  # case B58
        script.first_token_s, script.token_gap_s = 1.0, 0.0
        run(url, tmp_path / "r", "--concurrency", "150", "--requests", "150")
    assert script.peak_in_flight == 150
    waits_s = [seconds(row, "first_token_at_ns", "sent_at_ns") for row in records(tmp_path / "r")]
    assert len(waits_s) == 150
    assert min(waits_s) >= 0.99


def test_a_proxy_of_the_environment_does_not_stand_before_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # case B61
    monkeypatch.setenv("NO_PROXY", "localhost")
    for options in ([], ["--trust-env"]):
        out = tmp_path / f"r{len(options)}"
        with fake_server() as (url, _):
            run(url, out, "--rate", "20", "--requests", "5", *options)
        assert point(out)["counts"]["ok"] == 5
        manifest = json.loads((out / "manifest.json").read_text())
        assert manifest["client"]["via"] == "own sockets, HTTP/1.1"


def test_a_lab_server_is_reached_with_its_certificate_or_with_insecure_and_the_run_says_which(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, "lab")  # case B62
    few = ["--rate", "20", "--requests", "5"]
    with fake_server(pair.server()) as (url, _):
        refused = run(url, tmp_path / "refused", *few)
        run(url, tmp_path / "insecure", *few, "--insecure")
        run(url, tmp_path / "trusted", *few, "--ca-file", str(pair.cert))
    assert refused.exit_code == 2
    assert "certificate verification failed" in refused.output
    assert "--insecure" in refused.output
    for name, via in (("insecure", "own sockets, HTTP/1.1, TLS, certificate not verified"), ("trusted", "TLS")):
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        assert summary["points"][0]["counts"]["ok"] == 5
        assert via in summary["conditions"]["connections"]
        assert any("not verified" in note for note in summary["notes"]) == (name == "insecure")
        assert ("certificate not verified" in (tmp_path / name / "report.html").read_text()) == (name == "insecure")


def test_a_server_that_refuses_everything_gives_nulls_counts_and_no_exit_code_0(tmp_path: Path) -> None:
    with fake_server() as (url, script):  # case B65
        script.rejects = lambda n: (503, {}) if n >= PREFLIGHT else None
        result = run(url, tmp_path / "r", "--rate", "50", "--requests", "20")
    assert result.exit_code == 4
    found = point(tmp_path / "r")
    assert (found["counts"]["ok"], found["counts"]["failed"]) == (0, 20)
    assert found["errors"] == [{"class": "http_status", "message": "HTTP 503: slow down", "count": 20}]
    assert found["metrics"]["e2e"]["from_sent"]["p50"] is None
    assert (tmp_path / "r" / "report.html").stat().st_size > 10_000


def test_requests_that_time_out_stay_in_the_count_and_below_no_quantile(tmp_path: Path) -> None:
    hang = threading.Event()

    def rejects(script: Script) -> Any:
        def decide(n: int) -> None:
            if n >= PREFLIGHT and n % 5 == 0:
                hang.wait(10)

        return decide

    with fake_server() as (url, script):  # case B67
        script.rejects = rejects(script)
        run(url, tmp_path / "r", "--rate", "20", "--requests", "10", "--set", "timeouts.total=500ms")
        hang.set()
    found = point(tmp_path / "r")
    assert (found["counts"]["ok"], found["counts"]["failed"], found["counts"]["due"]) == (8, 2, 10)
    assert [error["class"] for error in found["errors"]] == ["total_timeout"]
    assert found["metrics"]["e2e"]["from_sent"]["n"] == 8
    assert found["e2e_with_timeouts"]["n"] == 10
    assert "2 of 10 requests had not ended" in found["e2e_with_timeouts"]["reason"]
    assert "With 2 timeouts as at least their limit E2E is p50" in check(tmp_path / "r", "errors")["text"]
    assert found["validity"]["verdict"] == "INVALID"


def one_rejection(n: int) -> tuple[int, dict[str, str]] | None:
    return (429, {"Retry-After": "1"}) if n == PREFLIGHT else None


def test_a_429_is_a_failure_and_nothing_is_sent_again_unasked(tmp_path: Path) -> None:
    with fake_server() as (url, script):  # case B69, retry off
        script.rejects = one_rejection
        run(url, tmp_path / "r", "--rate", "10", "--requests", "5")
    assert {row["n_attempts"] for row in records(tmp_path / "r")} == {1}
    [row] = [row for row in records(tmp_path / "r") if row["status"] == "failed"]
    assert (row["error_class"], row["http_status"], row["advised_wait_s"], row["n_attempts"]) == ("rejected", 429, 1, 1)
    assert point(tmp_path / "r")["rejections"]["rejections"] == 1
    assert check(tmp_path / "r", "rejections")["verdict"] == "warn"


def test_a_429_is_waited_out_when_the_scenario_says_so_and_the_wait_is_on_record(tmp_path: Path) -> None:
    with fake_server() as (url, script):  # case B69, retry on
        script.rejects, script.first_token_s = one_rejection, 0.1
        run(url, tmp_path / "r", "--rate", "10", "--requests", "5", "--set", "on_429=wait")
    rows = records(tmp_path / "r")
    assert sum(row["n_attempts"] for row in rows) == 5 + 1
    assert {row["status"] for row in rows} == {"ok"}
    [row] = [row for row in rows if row["n_attempts"] == 2]
    from_sent = seconds(row, "last_token_at_ns", "sent_at_ns")
    assert from_sent >= 0.1
    assert seconds(row, "last_token_at_ns", "intended_at_ns") >= from_sent + 0.99  # the advised wait
    found = point(tmp_path / "r")["rejections"]
    assert (found["requests"], found["rejections"], found["on_time_again"], found["advised_s"]) == (1, 1, 0, 1.0)
    assert found["needed_s"] >= 0.99  # the two ends are stamped by different hands
    assert "a rejected request waits as advised" in (tmp_path / "r" / "report.html").read_text()


def test_a_server_whose_advice_is_too_short_is_told_so(tmp_path: Path) -> None:
    with fake_server() as (url, script):
        script.rejects = lambda n: (503, {"Retry-After": "0.1"}) if PREFLIGHT <= n < PREFLIGHT + 3 else None
        run(url, tmp_path / "r", "--rate", "2", "--requests", "1", "--set", "on_429=wait")
    found = point(tmp_path / "r")["rejections"]
    assert (found["requests"], found["rejections"], found["on_time_again"]) == (1, 3, 2)
    assert found["needed_s"] >= 0.3
    assert "rejected again" in check(tmp_path / "r", "rejections")["text"]


def test_the_clients_own_limit_is_told_by_the_certificate_and_booked_to_nobody_else(tmp_path: Path) -> None:
    limit = ["--set", "limit.rate=10", "--set", "limit.burst=2"]
    with fake_server() as (url, _):
        run(url, tmp_path / "r", "--rate", "40", "--requests", "20", *limit, "--set", "load.arrivals=constant")
    rows = sorted(records(tmp_path / "r"), key=lambda row: row["index"])
    assert [row["status"] for row in rows] == ["ok"] * 20
    delays_s = [row["limit_delay_ns"] / 1e9 for row in rows]
    assert delays_s[0] == 0
    assert delays_s[-1] == pytest.approx((20 - 2) / 10 - 19 / 40, abs=0.2)
    assert point(tmp_path / "r")["validity"]["verdict"] == "INVALID"
    assert check(tmp_path / "r", "client limit")["verdict"] == "invalid"
    ttft = point(tmp_path / "r")["metrics"]["ttft"]
    assert ttft["from_intended"]["mean"] > ttft["from_sent"]["mean"] + 0.3
    assert "the client's own limit 10/s with bursts of 2" in (tmp_path / "r" / "report.html").read_text().replace(
        "&#39;", "'"
    )


def test_cold_connections_are_opened_by_the_load_and_warm_ones_before_it(tmp_path: Path) -> None:
    for mode in ("warm", "cold"):
        with fake_server() as (url, _):
            run(url, tmp_path / mode, "--rate", "20", "--requests", "10", "--set", f"connections={mode}")
        assert (
            "(cold)" in json.loads((tmp_path / mode / "summary.json").read_text())["conditions"]["connections"]
        ) == (mode == "cold")
    assert point(tmp_path / "cold")["connecting"]["n"] == 10  # the server closes each connection after its answer
    assert records(tmp_path / "cold")[0]["connected_at_ns"] is not None
    assert records(tmp_path / "warm")[0]["connected_at_ns"] is None
    taken_up_s = [seconds(row, "dispatched_at_ns", "intended_at_ns") for row in records(tmp_path / "cold")]
    assert check(tmp_path / "cold", "lateness")["value"] <= max(taken_up_s)  # connecting is no lateness


def test_more_users_than_the_system_allows_files_is_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = pytest.importorskip("resource", reason="Windows has no such limit")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 512))
    with fake_server() as (url, script):
        result = run(url, tmp_path / "r", "--concurrency", "1000", "--requests", "1000")
    assert result.exit_code == 2
    assert "1,000 connections at once need 1,100 open files" in result.output
    assert script.seen == []
    assert not (tmp_path / "r").exists()


def test_a_unix_socket_needs_no_url_and_what_needs_a_server_is_refused_without_one() -> None:
    for args, words in (
        (["run", "smoke", "--rate", "1", "--unix-socket", "/nowhere.sock"], "no answer from http://localhost"),
        (["run", "smoke", "--rate", "1", "--insecure"], "give its --url"),
        (["run", "smoke", "--rate", "1", "--url", "https://h", "--key", "x"], "give --cert"),
        (["gate", "smoke", "--baseline", "http://a", "--candidate", "http://b", "--unix-socket", "s"], "--self-check"),
        (["run", "smoke", "--rate", "1", "--set", "on_429=retry"], "on_429"),
        (["run", "smoke", "--rate", "1", "--set", "limit.rate=0"], "limit.rate"),
        (["run", "smoke", "--rate", "1", "--set", "connections=hot"], "connections"),
    ):
        result = CliRunner().invoke(bench, args)
        assert result.exit_code == 2, (args, result.output)
        assert words in result.output
        assert "Traceback" not in result.output
