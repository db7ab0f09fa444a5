"""Our own command and the C floor as clients, and what our run folder tells beyond what the peers save."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from peers import Answer, Client
from workloads import PROMPT_TOKENS, Task

from loadgen.analysis.self_error import token_instants
from loadgen.collectors.records import RequestRecord
from loadgen.collectors.run_folder import load_run

SAVED = "saved"
WARMUP_S = 1.0
FLOOR_SOURCE = Path(__file__).with_name("floor.c")


def ours(task: Task) -> list[str]:
    """`bench run` as installed, with its defaults; only the workload and the length of the run are told."""
    load = task.load
    if load.users:
        how = ["--concurrency", str(load.users), "--requests", str(task.n_requests)]
    else:
        how = ["--rate", f"{load.rate_rps:g}", "--duration", f"{load.seconds:g}s", *setting(f"load.warmup={WARMUP_S}s")]
    return [
        task.program("bench"), "run", "chat", "--url", task.url, *how,
        *setting(f"workload.prompt.tokens={PROMPT_TOKENS}", f"workload.output.tokens={load.tokens}"),
        *setting("workload.shared_prefix=null"), "--out", str(task.folder / SAVED),
    ]  # fmt: skip


def setting(*changes: str) -> list[str]:
    """Changes of the scenario as options."""
    return [word for change in changes for word in ("--set", change)]


def measured_records(task: Task) -> tuple[str, list[RequestRecord]]:
    """The run's id and the records of its measured window."""
    run = load_run(task.folder / SAVED)
    ((_, records),) = run.points
    return run.manifest["run_id"], [record for record in records if record.phase == "measured"]


def ours_answers(task: Task) -> Iterator[Answer]:
    run_id, records = measured_records(task)
    for record in records:
        if record.status == "ok" and record.first_token_at_ns and record.sent_at_ns:
            gaps_s = np.diff(token_instants(record)) / 1e9
            ttft_s = (record.first_token_at_ns - record.sent_at_ns) / 1e9
            yield Answer(f"{run_id}-{record.point}-{record.index}", ttft_s, gaps_s.tolist())


def own_figures(task: Task) -> dict[str, Any]:
    """What our certificate is about: sends made / due, lateness, gap CV of the schedule for what was sent, verdict."""
    run = load_run(task.folder / SAVED)
    ((log, records),) = run.points
    measured = [record for record in records if record.phase == "measured"]
    sent = [record for record in measured if record.sent_at_ns]
    late_s = [(record.sent_at_ns - record.intended_at_ns) / 1e9 for record in sent if record.sent_at_ns]
    gaps = np.diff(np.sort([record.intended_at_ns for record in records if record.sent_at_ns]))
    certificate = certificate_of(task)
    return {
        "sends_per_due": len(sent) / log.due_measured if log.due_measured else None,
        "late_p99_ms": float(np.percentile(late_s, 99)) * 1e3 if late_s else None,
        "schedule_gap_cv": float(gaps.std() / gaps.mean()) if len(gaps) > 1 and gaps.mean() else None,
        "failed": sum(record.status != "ok" for record in measured),
        "in_flight_max": log.in_flight_max,
        "client_cpu_share": log.client_cpu_share,
        "verdict": certificate["verdict"],
        "doubts": [check["text"] for check in certificate["checks"] if check["verdict"] not in ("pass", "n/a")],
        "kernel_stamped_share": kernel_share(measured),
    }


def kernel_share(records: list[RequestRecord]) -> float | None:
    """Share of reads whose instant is the kernel's receive stamp."""
    total = sum(record.reads_total for record in records)
    return sum(record.reads_kernel_stamped for record in records) / total if total else None


def certificate_of(task: Task) -> dict[str, Any]:
    """The point's validity certificate, from the summary that the run wrote."""
    (point,) = json.loads((task.folder / SAVED / "summary.json").read_text())["points"]
    found: dict[str, Any] = point["validity"]
    return found


# --- the floor -----------------------------------------------------------------------------------------------------


def build_floor(folder: Path) -> str | None:
    """Compile it into `folder`; the reason where that can't be done."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return "there is no C compiler"
    folder.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-O2", "-o", str(folder / "floor"), str(FLOOR_SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True)
    return f"it did not compile: {done.stderr.strip().splitlines()[0]}" if done.returncode else None


def floor(task: Task) -> list[str]:
    port, users = task.url.rpartition(":")[2], str(task.load.users)
    return [task.program("floor"), port, users, str(task.n_requests), str(task.load.tokens), str(task.folder / SAVED)]


def floor_answers(task: Task) -> Iterator[Answer]:
    """Its events are the role, the tokens, the finish reason, usage and [DONE]; reads may hold several."""
    saved = np.fromfile(task.folder / SAVED, dtype=np.int64)
    at = 0
    while at < len(saved):
        number, sent_ns, n_reads = saved[at : at + 3]
        at_ns, n_events = saved[at + 3 : at + 3 + 2 * n_reads].reshape(-1, 2).T
        at += 3 + 2 * n_reads
        token_ns = np.repeat(at_ns, n_events)[1 : 1 + task.load.tokens]
        yield Answer(f"floor-{number:08d}", (token_ns[0] - sent_ns) / 1e9, (np.diff(token_ns) / 1e9).tolist())


FAST = {"a": (1000, 17000), "b": (512, 3072)}
OURS = Client(
    "openloop",
    (),
    ours,
    ours_answers,
    "request id",
    FAST,
    exit_codes=(0, 4),  # 4: a point that its own certificate calls INVALID, which is a result here
    note="`bench run` with its defaults: records, metrics, certificate, report",
)
FLOOR = Client(
    "C floor",
    (),
    floor,
    floor_answers,
    "request id",
    FAST,
    open_loop=False,
    note="epoll, one stamp a read, no JSON and no report: what the system calls alone cost",
)
