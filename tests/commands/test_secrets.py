"""Secrets come from the environment or a file and are found in nothing that a run prints, writes or starts (B97)."""

from __future__ import annotations

import html
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import pytest
from click.testing import CliRunner, Result
from support.fake_server import Script, fake_server

from engine_adapters.reference.calibrate import CalibrationError
from loadgen import cli, redaction
from loadgen.commands import bundled, gating, measuring
from loadgen.commands.credentials import clean_url, keep_proxy_secret, request_headers
from loadgen.redaction import keep_secret, redact

QUICK = ["--set", "load.duration=1s", "--set", "load.warmup=200ms", "--rate", "20"]
KEY, TOKEN, COOKIE, TYPED, USER, PASSWORD, PROXY = (
    f"planted-{name}-0f3a<&\"'" if name == "cookie" else f"planted-{name}-0f3a"
    for name in ("key", "token", "cookie", "typed", "user", "password", "proxy")
)
CREDENTIALS = ["--api-key-env", "BENCH_KEY", "--header", "x-token: t $BENCH_TOKEN", "--header", "Cookie: @cookie.txt"]


@pytest.fixture(autouse=True)
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The secrets where they may be, in a folder of their own; none is known beforehand."""
    monkeypatch.setattr(redaction, "_secrets", set())
    monkeypatch.setenv("BENCH_KEY", KEY)
    monkeypatch.setenv("BENCH_TOKEN", TOKEN)
    monkeypatch.setenv("HTTP_PROXY", f"http://{USER}:{PROXY}@surely-nowhere.invalid:9")
    home = tmp_path / "home"
    home.mkdir()
    (home / "cookie.txt").write_text(f"session={COOKIE}\n")
    (home / "key.txt").write_text(f"{KEY}\n")
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(home)


@pytest.fixture
def server() -> Iterator[tuple[str, Script]]:
    """A server that repeats what it was sent in every text of its own, and refuses each third request."""
    with fake_server() as (url, script):
        script.repeats_headers = True
        script.rejects = lambda n: (429 if n % 2 else 500, {"x-echo": KEY}) if n > 3 and n % 3 == 0 else None
        yield url, script


def invoke(*args: str) -> Result:
    return CliRunner().invoke(cli.bench, list(args))


def leaks(*texts: str, folder: Path | None = None) -> list[str]:
    """Where a planted secret, or a recognisable half of one, stands."""
    files = [path for path in folder.rglob("*") if path.is_file()] if folder else []
    named = [("output", text) for text in texts] + [(str(p), p.read_bytes().decode("latin-1")) for p in files]
    return [f"{name}: {text[max(text.find('planted') - 30, 0) :][:90]}" for name, text in named if "planted" in text]


def test_nothing_that_commands_print_and_write_has_a_secret(server: tuple[str, Script], tmp_path: Path) -> None:
    url, script = server
    out, outputs = tmp_path / "out", []
    for args in (
        ["run", "smoke", "--url", url, *CREDENTIALS, *QUICK, "--out", str(out / "a")],
        ["run", "smoke", "--url", url, *CREDENTIALS, *QUICK, "--trust-env", "--out", str(out / "b")],
        ["report", str(out / "a"), "--force"],
        ["show", str(out / "a"), "--format", "json"],
        ["compare", str(out / "a"), str(out / "b"), "--out", str(out / "c.html")],
    ):
        result = invoke(*args)
        assert result.exit_code in (0, 2, 4), (args, result.output, result.exception)
        assert "Traceback" not in result.output
        outputs.append(result.output)
    assert (out / "a" / "report.html").is_file()
    assert (out / "c.html").is_file(), outputs[-1]
    for name in ("records.jsonl", "summary.json", "report.html"):
        assert "slow down ['Bearer ***'," in html.unescape((out / "a" / name).read_text()), name
    assert leaks(*outputs, folder=out) == []
    assert len(script.seen) > 40


def test_a_secret_in_the_body_comes_from_the_environment_and_only_its_name_is_recorded(
    server: tuple[str, Script], tmp_path: Path
) -> None:
    url, script = server
    script.rejects = lambda n: None
    out = tmp_path / "out" / "run"
    extra = "request.extra={auth: {key: $BENCH_KEY}, note: $5 each}"
    result = invoke("run", "smoke", "--url", url, *QUICK, "--set", extra, "--out", str(out))
    assert result.exit_code == 0, result.output
    assert script.seen[-1]["auth"] == {"key": KEY}
    assert script.seen[-1]["note"] == "$5 each"
    assert "$BENCH_KEY" in (out / "manifest.json").read_text()
    assert not leaks(result.output, folder=out)


def test_a_key_typed_in_place_of_a_file_is_not_repeated() -> None:
    result = invoke("run", "smoke", "--url", "http://127.0.0.1:9", "--api-key-file", KEY)
    assert result.exit_code == 2
    assert not leaks(result.output)
    assert "there is no such file" in result.output


def test_the_gate_tells_no_secret_either(
    server: tuple[str, Script], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gating, "SETTLE_S", 0.02)
    url, _ = server
    out = tmp_path / "out"
    files = ["--markdown", str(out / "g.md"), "--junit", str(out / "g.xml"), "--out", str(out / "g")]
    quick = ["--rate", "200", "--requests", "100", "--set", "load.warmup=100ms"]
    result = invoke("gate", "smoke", "--baseline", url, "--self-check", *CREDENTIALS, *quick, *files)
    assert (out / "g.md").is_file(), result.output
    assert (out / "g.xml").is_file()
    assert leaks(result.output, folder=out) == []


def test_a_server_that_refuses_the_key_and_repeats_it_does_not_publish_it() -> None:
    with fake_server() as (url, script):
        script.repeats_headers, script.fails_after = True, 0
        result = invoke("run", "smoke", "--url", url, *CREDENTIALS, *QUICK)
    assert result.exit_code == 2
    assert "out of luck" in result.output
    assert leaks(result.output) == []


def test_a_traceback_of_ours_has_no_secret(
    server: tuple[str, Script], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(endpoint: Any, server: Any, scenario: Any) -> None:
        raise RuntimeError(f"asked with {server.headers}, {KEY!r}")

    monkeypatch.setattr(measuring, "open_endpoint", broken)
    monkeypatch.setattr(sys, "argv", ["bench", "run", "smoke", "--url", server[0], *CREDENTIALS, *QUICK])
    with pytest.raises(SystemExit) as end:
        cli.main()
    seen = capsys.readouterr()
    assert end.value.code == 70
    assert "RuntimeError: asked with" in seen.err
    assert leaks(seen.out, seen.err) == []


def test_no_process_that_a_run_starts_has_a_secret_in_its_arguments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[str] = []
    popen = subprocess.Popen

    class Recorded(popen):  # type: ignore[type-arg,misc,valid-type]
        def __init__(self, args: Any, *rest: Any, **options: Any) -> None:
            started.append(str(args))
            super().__init__(args, *rest, **options)

    def no_ceilings(n_bytes: int) -> None:
        raise CalibrationError("not for this test")

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    monkeypatch.setattr(bundled, "measure_ceilings", no_ceilings)
    few = ["--rate", "20", "--requests", "3", "--set", "load.warmup=0s"]
    invoke("run", "smoke", *CREDENTIALS, *few, "--out", str(tmp_path / "out" / "bundled"))
    assert any("engine_adapters" in args for args in started)
    assert leaks(*started, folder=tmp_path / "out") == []


# --- what is read, and what is refused ----------------------------------------------------------------------------


def headers(*, env: str | None = None, file: str | None = None, typed: tuple[str, ...] = ()) -> dict[str, str]:
    return request_headers({"api_key_env": env, "api_key_file": file and Path(file), "headers": typed})


def test_the_key_comes_from_the_environment_or_from_a_file() -> None:
    assert headers(env="BENCH_KEY") == headers(file="key.txt") == {"authorization": f"Bearer {KEY}"}


def test_a_header_takes_variables_and_files() -> None:
    found = headers(typed=("X-A: Bearer ${BENCH_TOKEN}!", "X-B: @key.txt", "X-C: plain", "X-D: $5"))
    assert found["x-a"] == f"Bearer {TOKEN}!"
    assert found["x-b"] == KEY
    assert found["x-c"] == "plain"


@pytest.mark.parametrize("name", ["Authorization", "Cookie", "api-key", "X-Auth-Token"])
def test_a_secret_that_was_typed_is_warned_about_and_not_repeated(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    headers(typed=(f"{name}: {TYPED}",))
    told = capsys.readouterr().err
    assert "`ps` shows what is typed" in told
    assert leaks(told) == []
    assert redact(f"the server got {TYPED}") == "the server got ***"


def test_a_harmless_header_is_not_warned_about(capsys: pytest.CaptureFixture[str]) -> None:
    headers(typed=("X-Env: staging",))
    assert capsys.readouterr().err == ""
    assert redact("staging") == "staging"


@pytest.mark.parametrize(
    "args",
    [
        ["--url", f"http://{USER}:{PASSWORD}@127.0.0.1:9"],
        ["--url", f"{USER}:{PASSWORD}@127.0.0.1:9"],
        ["--url", f"http//{USER}:{PASSWORD}@127.0.0.1:9"],
        ["--url", f"http://127.0.0.1:9/v1?key={KEY}"],
        ["--url", f"127.0.0.1:9?key={KEY}"],
        ["--url", f"http://127.0.0.1:9/#{KEY}"],
        ["--url", "http://127.0.0.1:9", "--api-key-env", KEY],
        ["--url", "http://127.0.0.1:9", "--api-key-env", "planted0f3a"],
        ["--url", "http://127.0.0.1:9", "--api-key", KEY],
        ["--url", "http://127.0.0.1:9", "--header", f"Bearer {KEY}"],
        ["--url", "http://127.0.0.1:9", "--header", f"x-key: {KEY}\n{KEY}"],
        ["--url", "http://127.0.0.1:9", "--header", f"x-key: {KEY}é"],
    ],
)
def test_what_is_refused_is_not_repeated(args: list[str]) -> None:
    result = invoke("run", "smoke", *QUICK, *args)
    assert result.exit_code == 2, result.output
    assert leaks(result.output) == []
    assert "Traceback" not in result.output


def test_a_key_file_with_several_lines_is_refused_without_showing_them(tmp_path: Path) -> None:
    Path("two.txt").write_text(f"{KEY}\n{TOKEN}\n")
    with pytest.raises(click.ClickException) as caught:
        headers(file="two.txt")
    assert leaks(str(caught.value.message)) == []


def test_a_client_key_that_is_none_is_not_shown(tmp_path: Path) -> None:
    Path("bad.key").write_text(f"-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----\n")
    network = ["--cert", "bad.key", "--key", "bad.key"]
    result = invoke("run", "smoke", "--url", "https://127.0.0.1:9", *QUICK, *network)
    assert (result.exit_code, leaks(result.output)) == (2, [])
    assert "bad.key" in result.output


def test_the_user_and_password_of_a_proxy_are_hidden() -> None:
    keep_proxy_secret()
    text = redact(f"407 from http://{USER}:{PROXY}@surely-nowhere.invalid:9, {PROXY}")
    assert text == "407 from http://***@surely-nowhere.invalid:9, ***"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://me:pw@h:1/x?key=k#f", "http://h:1/x"),
        ("me:pw@h:1", "h:1"),
        ("http//me:p/w@h", "h"),
        ("localhost:8000", "localhost:8000"),
    ],
)
def test_an_odd_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert clean_url(url) == shown


@pytest.mark.parametrize("secret", ['with "quotes" and more', "a+b/c==dddd", "päss-wörd"])
def test_a_secret_is_hidden_however_it_is_written(secret: str) -> None:
    keep_secret(secret)
    for written in (secret, json.dumps(secret), html.escape(secret), quote(secret, safe="")):
        assert redact(f"<{written}>").strip('<>"') == "***"


@pytest.mark.parametrize("n", [6, 10, len(KEY) - 1, len(KEY)])
def test_a_secret_at_which_a_text_was_cut_is_hidden(n: int) -> None:
    keep_secret(f"Bearer {KEY}")
    assert redact(f"HTTP 401: no such key {KEY[:n]}") == "HTTP 401: no such key ***"


def test_words_that_are_too_short_for_a_secret_stay() -> None:
    keep_secret("EMPTY")
    assert redact("an EMPTY stream") == "an EMPTY stream"
