"""The mock server's log is the truth: a row a request, an instant an event, at the asked intervals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.mock_client import CHAT, COMPLETIONS, HOWS, ask, body, connect, how, read_answer, request

from engine_adapters.mock.process import MockServer
from engine_adapters.mock.truth import read_truth

SLACK_S = 0.1  # of a shared machine


@pytest.mark.parametrize("kind", HOWS)
def test_every_request_has_a_row_and_every_event_an_instant(kind: str) -> None:
    with MockServer(itl_ms=1, tokens_per_event=2, how=how(kind)) as mock:
        begun_ns = time.monotonic_ns()
        answer = ask(mock.port, request(CHAT, body(5), 'X-Request-ID: a,"b'))
        ask(mock.port, request(COMPLETIONS, {"max_tokens": 3}))
        ended_ns = time.monotonic_ns()
        truth = mock.truth()
    assert truth.request_id == ["a__b", ""]
    assert truth.answer_id == ["chatcmpl-00000000", "cmpl-00000001"]
    assert truth.answer_id[0].encode() in answer
    assert truth.tokens.tolist() == truth.tokens_asked.tolist() == [5, 3]
    assert truth.n_events.tolist() == [3, 1]  # the second one is not streamed: it is sent as a whole
    instants = [
        begun_ns,
        truth.accepted_at_ns[0],
        truth.received_at_ns[0],
        *truth.events(0),
        *truth.events(1),
        ended_ns,
    ]
    assert instants == sorted(instants)


@pytest.mark.parametrize("kind", HOWS)
def test_events_come_at_the_asked_intervals_and_lateness_does_not_add_up(kind: str) -> None:
    with MockServer(ttft_ms=30, itl_ms=4, how=how(kind)) as mock:
        ask(mock.port, request(CHAT, body(40)))
        truth = mock.truth()
    late_s = (truth.events(0) - truth.received_at_ns[0]) / 1e9 - (0.030 + 0.004 * np.arange(40))
    # Asyncio's clock has microseconds and may wake a hair early; the median shows that nothing drifts.
    assert late_s.min() > -0.001
    assert np.median(late_s) < SLACK_S


@pytest.mark.parametrize("kind", HOWS)
def test_exponential_gaps_have_the_asked_mean_and_spread(kind: str) -> None:
    n = 1500
    with MockServer(itl_ms=1, itl_dist="exp", how=how(kind)) as mock:
        ask(mock.port, request(CHAT, body(n)))
        gaps_s = np.diff(mock.truth().events(0)) / 1e9
    # The server's seed is fixed; 5 standard errors of the mean of n exponential gaps, and the machine's own delay.
    assert gaps_s.mean() == pytest.approx(0.001, rel=5 / np.sqrt(n) + 0.25)
    assert gaps_s.std() / gaps_s.mean() > 0.5


@pytest.mark.parametrize("kind", HOWS)
def test_phases_spread_what_began_together(kind: str) -> None:
    with MockServer(itl_ms=400, phase=True, how=how(kind)) as mock:
        socks = [connect(mock.port) for _ in range(30)]
        for sock in socks:
            sock.sendall(request(CHAT, body(1)))
        for sock in socks:
            read_answer(sock)
            sock.close()
        truth = mock.truth()
    first_s = np.sort((truth.event_at_ns - truth.received_at_ns) / 1e9)
    assert first_s[0] < 0.2 < first_s[-1]
    assert first_s[-1] < 0.4 + SLACK_S


@pytest.mark.parametrize("kind", HOWS)
def test_hundreds_of_connections_get_their_own_events(kind: str) -> None:
    n = 300
    with MockServer(itl_ms=20, phase=True, how=how(kind)) as mock:
        socks = [connect(mock.port) for _ in range(n)]
        for i, sock in enumerate(socks):
            sock.sendall(request(CHAT, body(4 + i % 3), f"x-request-id: r-{i}"))
        answers = [read_answer(sock) for sock in socks]
        for sock in socks:
            sock.close()
        truth = mock.truth()
    assert sorted(truth.request_id) == sorted(f"r-{i}" for i in range(n))
    for i, answer in zip(range(n), answers, strict=True):
        row = truth.request_id.index(f"r-{i}")
        assert truth.answer_id[row].encode() in answer
        assert answer.count(b'"content":" the"') == truth.n_events[row] == 4 + i % 3


@pytest.mark.parametrize("kind", HOWS)
def test_a_client_that_goes_away_leaves_a_short_row(kind: str) -> None:
    with MockServer(itl_ms=2, how=how(kind)) as mock:
        with connect(mock.port) as sock:
            sock.sendall(request(CHAT, body(10_000)))
            sock.recv(1000)
        ask(mock.port, request(CHAT, body(20)))
        truth = mock.truth()
    assert 1 <= truth.tokens[0] < truth.tokens_asked[0] == 10_000
    assert truth.n_events[0] == truth.tokens[0]


@pytest.mark.parametrize("kind", HOWS)
def test_a_reset_forgets_what_has_ended_and_keeps_what_runs(kind: str) -> None:
    with MockServer(itl_ms=5, how=how(kind)) as mock, connect(mock.port) as sock:
        ask(mock.port, request(CHAT, body(2), "x-request-id: old"))
        sock.sendall(request(CHAT, body(100), "x-request-id: running"))
        sock.recv(1000)
        mock.reset()
        ask(mock.port, request(CHAT, body(2), "x-request-id: new"))
        assert mock.truth().request_id == ["running", "new"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", HOWS)
def test_a_signal_ends_it_and_writes_the_log(kind: str, number: int, tmp_path: Path) -> None:
    log = tmp_path / "truth.csv"
    command = [*how(kind).command, f"--log={log}"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=heed_sigint)
    assert child.stdout is not None
    ask(int(child.stdout.readline()), request(CHAT, body(3)))
    child.send_signal(number)
    assert child.wait(10) == 0
    child.stdout.close()
    assert read_truth(log).n_events.tolist() == [3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["truth.csv", "truth.csv.i64"]


def heed_sigint() -> None:
    """A suite that was started in the background ignores SIGINT, and its children would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("kind", HOWS)
def test_it_ends_with_its_parent_whatever_ended_that(kind: str) -> None:
    how(kind)
    code = (
        "import os, sys; from engine_adapters.mock.process import MockServer, build, twin\n"
        f"mock = MockServer(how=build() if {kind!r} == 'C' else twin('')).__enter__()\n"
        "print(mock.pid, flush=True); os._exit(1)"
    )
    pid = int(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False).stdout)
    deadline = time.monotonic() + 20
    while runs(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def runs(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_log_whose_parts_do_not_belong_together_is_refused(tmp_path: Path) -> None:
    with MockServer(itl_ms=0) as mock:
        ask(mock.port, request(CHAT, body(3)))
        mock.truth()
        log = tmp_path / "truth.csv"
        log.write_bytes(mock._log.read_bytes())
    Path(f"{log}.i64").write_bytes(b"\0" * 16)
    with pytest.raises(ValueError, match="3 events and has 2 instants"):
        read_truth(log)
