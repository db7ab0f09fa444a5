"""A user's mistake is one line, exit code 2, no traceback, and nothing half-written."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.fake_server import fake_server

from loadgen.cli import bench


def invoke(*args: str) -> Result:
    return CliRunner().invoke(bench, list(args))


def check(result: Result, code: int, words: str) -> None:
    assert result.exit_code == code, result.output
    assert words in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["swep"], "did you mean 'sweep'"),
        (["sweep", "ragg"], "did you mean 'rag'"),
        (["sweep", "rag", "--set", "load.ratess=[1]"], "did you mean 'rates'"),
        (["sweep", "rag", "--set", "load.rates=[]"], "the ladder of rates is empty"),
        (["sweep", "rag", "--set", "load.duration=60"], "write 60s"),
        (["sweep", "rag", "--set", "load.duration=60parsecs"], "unknown unit"),
        (["sweep", "rag", "--url", "localhost:8000"], "a URL looks like http://host:8000"),
        (["sweep", "rag", "--url", "http://me:pw@127.0.0.1:9"], "--api-key-env"),
        (["sweep", "rag", "--url", "http://127.0.0.1:9"], "no answer from http://127.0.0.1:9"),
        (["sweep", "rag", "--url", "http://127.0.0.1:9", "--hardware", "h1000"], "unknown hardware"),
        (["sweep", "rag", "--url", "http://127.0.0.1:9", "--precision", "bf61"], "unknown precision"),
        (["sweep", "rag", "--url", "http://127.0.0.1:9", "--model-config", "none.json"], "none.json"),
        (["sweep", "rag", "--model", "huge"], "tiny or small"),
        (["sweep", "rag", "--api-key-env", "SURELY_NOT_SET"], "SURELY_NOT_SET"),
        (["sweep", "rag", "--header", "nocolon"], "Name: value"),
        (["run", "rag"], "--rate R or --concurrency N"),
        (["run", "smoke", "--url", "http://127.0.0.1:9", "--rate", "1e7"], "lower the rate"),
        (["sweep", "smoke", "--dry-run", "--set", "load.rates=[10000000]"], "lower the rate"),
        (["sweep", "smoke", "--hardware", "h100-sxm"], "give its --url"),
        (["sweep", "smoke", "--out", ""], "name a folder"),
        (["compare", "a", "b", "--out", "missing/c.html"], "No such file"),
        (["gate", "chat", "--baseline", "http://a", "--candidate", "http://b", "--junit", "missing/x.xml"], "No such"),
        (["run", "smoke", "--rate", "1", "--concurrency", "2"], "give one of them"),
        (["run", "smoke", "--duration", "1s", "--requests", "2"], "give one of them"),
        (["show", "."], "not a run folder"),
        (["report", "nowhere"], "not a run folder"),
        (["compare", "a", "b"], "not a run folder"),
        (["gate", "chat", "--baseline", "http://127.0.0.1:9"], "--candidate"),
        (
            ["gate", "chat", "--baseline", "http://a", "--candidate", "http://b", "--max-regression", "ttft_p59=10%"],
            "did you mean",
        ),
        (
            ["gate", "chat", "--baseline", "http://a", "--candidate", "http://b", "--max-regression", "ttft_p95=x"],
            "10%",
        ),
    ],
)
def test_a_mistake_is_one_clear_line(
    args: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(*args)
    check(result, 2, words)
    assert list(tmp_path.iterdir()) == []


def test_a_line_of_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nworkload:\n  prompt: {tokens: 32}\n  ouput: {tokens: 16}\n")
    check(invoke("sweep", str(path)), 2, f"{path}:4: unknown key 'ouput' in workload; did you mean 'output'?")


def test_an_existing_out_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    with fake_server() as (url, script):
        check(invoke("sweep", "smoke", "--url", url, "--out", str(tmp_path)), 2, "exists already")
        assert script.seen == []


def test_a_refused_key_is_said(tmp_path: Path) -> None:
    with fake_server() as (url, script):
        script.wants_key = "secret"
        check(invoke("sweep", "smoke", "--url", url, "--out", str(tmp_path / "r")), 2, "--api-key-env")
    assert not (tmp_path / "r").exists()


def test_a_server_that_is_no_llm_server_is_said(tmp_path: Path) -> None:
    with fake_server() as (url, script):
        script.models = {"hello": "world"}
        check(invoke("sweep", "smoke", "--url", url, "--out", str(tmp_path / "r")), 2, "not an OpenAI-compatible")


def test_several_models_are_listed(tmp_path: Path) -> None:
    with fake_server() as (url, script):
        script.models = {"data": [{"id": "one"}, {"id": "two"}]}
        check(invoke("sweep", "smoke", "--url", url, "--out", str(tmp_path / "r")), 2, "one, two")


def test_a_folder_and_a_bottomless_file_are_no_scenarios(tmp_path: Path) -> None:
    check(invoke("sweep", str(tmp_path)), 2, "is a folder")
    deep = tmp_path / "deep.yaml"
    deep.write_text("name: " + "[" * 3000)
    check(invoke("scenario", "validate", str(deep)), 2, "deep.yaml")


def test_a_page_can_not_take_the_place_of_a_folder(tmp_path: Path) -> None:
    check(invoke("compare", "a", "b", "--out", str(tmp_path)), 2, "is a folder")


@pytest.mark.parametrize("args", [["compare", "a", "b"], ["report", "a"]])
def test_a_page_that_exists_is_not_replaced_unasked(args: list[str], tmp_path: Path) -> None:
    page = tmp_path / "mine.html"
    page.write_text("mine")
    result = invoke(*args, "--out", str(page))
    check(result, 2, f"--out {page} exists already; choose another file, or give --force to replace it")
    assert len(result.output.splitlines()) == 1
    check(invoke(*args, "--out", str(page), "--force"), 2, "not a run folder")  # on to the next thing that is wrong
    assert page.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [page]


def test_the_default_page_is_not_replaced_unasked_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "compare.html").write_text("mine")
    check(invoke("compare", "a", "b"), 2, "compare.html exists already")
