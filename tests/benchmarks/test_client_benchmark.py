"""The client benchmark counts a whole process tree, compares with the log as it says, and hides nothing that failed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine_adapters.mock.process import MockServer
from engine_adapters.mock.truth import Truth

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "client"))

from errors import arrivals, errors
from measure import ClientFailed, measured
from ours import FLOOR, build_floor
from peers import PEERS, Answer
from readme import BEGIN, END, ROOT, block
from run import pair
from table import markdown, slopes_us
from workloads import Task, Workload

linux = pytest.mark.skipif(sys.platform != "linux", reason="process trees are read from /proc")
TWO_TOKENS = Workload("b", 2, itl_ms=10.0, users=1)
BURN = "import time\nwhile time.process_time() < 0.3: pass\n"


def core() -> int:
    return min(os.sched_getaffinity(0))


def cost_of(program: str, folder: Path, **more: Any) -> Any:
    """What a Python program as the client costs."""
    options = {"client_core": core(), "server_core": core(), "env": os.environ, "folder": folder, "timeout_s": 30.0}
    return measured([sys.executable, "-S", "-c", program], **(options | more))


@linux
def test_cpu_of_a_grandchild_that_outlived_its_parent_is_counted(tmp_path: Path) -> None:
    daemon = f"import os\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  exec({BURN!r})\n os._exit(0)\n"
    assert cost_of(daemon, tmp_path).cpu_s == pytest.approx(0.3, abs=0.15)


@linux
def test_cpu_of_children_whose_parent_ignores_their_end_is_counted(tmp_path: Path) -> None:
    ignoring = (
        "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        f"if os.fork() == 0:\n exec({BURN!r})\n time.sleep(0.3)\n os._exit(0)\n"
        "try: os.wait()\nexcept ChildProcessError: pass\n"
    )
    assert cost_of(ignoring, tmp_path).cpu_s > 0.2


@linux
def test_memory_is_told_as_before_the_load_and_above_it(tmp_path: Path) -> None:
    growing = (
        "import time\ntime.sleep(0.4)\nprint(time.monotonic_ns(), flush=True)\nx = b'x' * 40_000_000\ntime.sleep(0.4)"
    )
    cost = cost_of(growing, tmp_path, memory=True)
    before, above = cost.memory_bytes(int((tmp_path / "output.txt").read_text()))
    assert before < 30e6
    assert above == pytest.approx(40e6, rel=0.2)


@linux
def test_a_failing_client_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ClientFailed, match=r"exit code 3: .*no such model"):
        cost_of("import sys; print('no such model'); sys.exit(3)", tmp_path)


@linux
def test_a_client_that_hangs_is_ended_with_all_its_children(tmp_path: Path) -> None:
    hanging = "import os, time\nprint(os.fork(), flush=True)\ntime.sleep(60)"
    with pytest.raises(ClientFailed, match="did not end within 1 s"):
        cost_of(hanging, tmp_path, timeout_s=1.0)
    child = max(int(line) for line in (tmp_path / "output.txt").read_text().split())
    assert not Path(f"/proc/{child}/cmdline").exists() or not Path(f"/proc/{child}/cmdline").read_bytes()


def log(*requests: tuple[str, int, list[int]], asked: int = 2) -> Truth:
    """(request id, received ms, event ms) as the server's log; answer ids are numbered."""
    counts = np.array([len(events) for _, _, events in requests])
    return Truth(
        request_id=[name for name, _, _ in requests],
        answer_id=[f"answer-{i}" for i in range(len(requests))],
        accepted_at_ns=np.zeros(len(requests), np.int64),
        received_at_ns=np.array([at for _, at, _ in requests]) * 1_000_000,
        tokens_asked=np.full(len(requests), asked),
        tokens=counts,
        first_event=np.concatenate([[0], np.cumsum(counts)[:-1]]),
        n_events=counts,
        event_at_ns=np.concatenate([events for _, _, events in requests]).astype(np.int64) * 1_000_000,
    )


def test_errors_are_the_client_less_the_log_request_by_request() -> None:
    truth = log(("x", 0, [50, 60]), ("y", 5, [95, 105]))
    found = errors([Answer("y", 0.092, [0.013]), Answer("x", 0.052, [0.013])], truth, TWO_TOKENS, "request id")
    assert (found.matched, found.ttft_p50_ms, found.itl_p50_ms) == (2, pytest.approx(2.0), pytest.approx(3.0))


def test_answers_can_be_matched_by_the_servers_own_id() -> None:
    truth = log(("", 0, [50, 60]), ("", 5, [95, 105]))
    found = errors([Answer("answer-1", 0.091, [])], truth, TWO_TOKENS, "answer id")
    assert (found.matched, found.ttft_p50_ms, found.itl_p50_ms) == (1, pytest.approx(1.0), None)


def test_in_order_of_sending_a_warm_up_request_is_passed_over() -> None:
    truth = log(("", 0, [900, 910]), ("", 1000, [1050, 1060]), ("", 1005, [1095, 1105]))
    found = errors([Answer(7.1, 0.090, [0.01]), Answer(7.0, 0.050, [0.01])], truth, TWO_TOKENS, "order of sending")
    assert (found.matched, found.ttft_p99_ms, found.itl_p99_ms) == (2, pytest.approx(0.0), pytest.approx(0.0))


def test_an_answer_with_another_number_of_gaps_is_left_out_of_itl() -> None:
    found = errors([Answer("x", 0.05, [0.01, 0.01])], log(("x", 0, [50, 60])), TWO_TOKENS, "request id")
    assert (found.ttft_p50_ms, found.itl_p50_ms) == (pytest.approx(0.0), None)


def test_requests_of_another_length_are_a_clients_own_probes_and_no_arrivals() -> None:
    assert arrivals(log(("x", 0, [50, 60]), asked=1), TWO_TOKENS).n == 0
    came = arrivals(log(("x", 0, [50, 60]), ("y", 10, [50, 60]), ("z", 30, [50, 80])), TWO_TOKENS)
    assert (came.n, came.rate_rps, came.gap_cv) == (3, pytest.approx(2 / 0.03), pytest.approx(1 / 3))


def launch(n: int, cpu_s: float, repeat: int = 0, client: str = "openloop", **more: Any) -> dict[str, Any]:
    """One launch of workload a as the results hold it."""
    came = {"n": n, "rate_rps": 1.0, "gap_cv": 1.0, "served_rps": 10.0}
    return {"client": client, "load": "a", "n_requests": n, "cpu_s": cpu_s, "repeat": repeat, "arrivals": came} | more


def page(*runs: dict[str, Any]) -> str:
    machine = {"cpu": "c", "cores": 2, "memory_gib": 1, "system": "Linux", "python": "3"}
    head = {"date_utc": "2026-01-01 00:00", "machine": machine, "cores": {"server": 0, "client": 1}, "versions": {}}
    rest = {"repeats": 3, "quick": False, "conditions": {"a": "64 users"}, "match": {}, "notes": {}}
    return markdown(head | rest | {"missing": {"vllm 1": "no wheel"}, "runs": list(runs)})


def test_start_up_is_in_no_slope() -> None:
    runs = [launch(100, 5.1), launch(1100, 6.1), launch(100, 9.1, 1), launch(1100, 10.2, 1)]
    assert slopes_us(runs, "a") == pytest.approx([1000.0, 1100.0])


def test_a_goal_is_met_only_when_both_of_its_halves_are() -> None:
    ours = (launch(100, 1.0), launch(1100, 1.4))  # 400 us / 131 events = 3.05
    slow = (launch(100, 1.0, client="vllm 1"), launch(1100, 2.5, client="vllm 1"))
    cheap = (launch(100, 1.0, client="vllm 1"), launch(1100, 2.0, client="vllm 1"))
    assert "| 3.05, vLLM's / 3.8 | met |" in page(*ours, *slow)
    assert "| 3.05, vLLM's / 2.5 | **not met** |" in page(*ours, *cheap)


def test_what_is_missing_or_failed_is_on_the_page_with_its_reason() -> None:
    text = page(launch(100, 1.0) | {"failed": "exit code 1: no port"})
    assert "vllm 1 is missing: no wheel" in text
    assert "openloop failed at a: exit code 1: no port" in text


@pytest.mark.skipif(not shutil.which("cc") and not shutil.which("gcc"), reason="there is no C compiler for the floor")
@linux
def test_the_floor_stamps_every_token_after_the_server_sent_it(tmp_path: Path) -> None:
    assert build_floor(tmp_path) is None
    load = Workload("b", 16, itl_ms=1.0, users=4)
    with MockServer(itl_ms=1.0) as server:
        task = Task(load, 12, server.url, tmp_path, tmp_path, tmp_path)
        measured(
            FLOOR.command(task), client_core=core(), server_core=core(), env=os.environ, folder=tmp_path, timeout_s=30.0
        )
        truth = server.truth()
    answers = list(FLOOR.answers(task))
    assert sorted(answer.key for answer in answers) == sorted(truth.request_id)
    assert all(len(answer.gaps_s) == 15 and min(answer.gaps_s) >= 0 for answer in answers)
    assert errors(answers, truth, load, "request id").matched == 12


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("load", [TWO_TOKENS, Workload("c200", 2, rate_rps=200.0, seconds=2.0)])
def test_every_peer_is_told_the_whole_workload(name: str, load: Workload, tmp_path: Path) -> None:
    if load.rate_rps and not PEERS[name].open_loop:
        return
    told = PEERS[name].command(Task(load, 77, "http://127.0.0.1:1", tmp_path, tmp_path, tmp_path / "tokenizer"))
    words = " ".join(told) + "".join(path.read_text() for path in tmp_path.glob("*.yml"))
    assert Path(told[0]).parent == tmp_path
    assert "http://127.0.0.1:1" in words
    assert "200" in words if load.rate_rps else "77" in words


def test_the_benchmark_is_told_where_an_environment_is(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    assert pair(f"vllm={tmp_path}") == ("vllm", tmp_path)


def test_the_readme_shows_what_the_results_hold() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = text[text.index(BEGIN) : text.index(END) + len(END)]
    assert shown == block(shown.split("-->")[0].removeprefix(BEGIN).split())
