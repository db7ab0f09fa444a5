"""Runs one client and counts what its whole process tree costs: CPU, and memory over time.

As a program (`measure.py REPORT CLIENT_CORE MEMORY -- COMMAND ...`) it is the client's parent and the reaper of all its
descendants; `measured` starts it so, in a process of its own. CPU is what the kernel charged to the descendants
that ended, or what was last seen of each alive where that is more (a parent that ignores SIGCHLD loses its children's).
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TICKS = os.sysconf("SC_CLK_TCK")
SAMPLING_SHARE = 0.03  # of the server's core, at most
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5
ORPHAN_GRACE_S = 3.0  # what still runs so long after the client has ended is killed, and counted


class ClientFailed(Exception):
    """The client could not be started, failed, or did not end in time; the text has its last lines."""


@dataclass(frozen=True)
class Cost:
    """What one launch of a client cost. `memory` are (monotonic ns, bytes of the tree: PSS) samples."""

    cpu_s: float
    wall_s: float
    memory: list[tuple[int, int]]

    def memory_bytes(self, start_ns: int) -> tuple[int | None, int | None]:
        """(last sample before `start_ns`, where the load began; the largest after, above that); None without any."""
        before = [size for at_ns, size in self.memory if at_ns <= start_ns]
        after = [size for at_ns, size in self.memory if at_ns > start_ns]
        return (before[-1], max(after) - before[-1]) if before and after else (None, None)


def measured(
    command: Sequence[str],
    *,
    client_core: int,
    server_core: int,
    env: Mapping[str, str],
    folder: Path,
    timeout_s: float,
    memory: bool = False,
    exit_codes: Sequence[int] = (0,),
) -> Cost:
    """Run `command` in `folder` on its core and return its cost; the sampling stays on the server's core.

    Its output goes to `folder`/output.txt. Raises ClientFailed.
    """
    report, output = folder / "cost.json", folder / "output.txt"
    launcher = [sys.executable, __file__, str(report), str(client_core), str(int(memory)), "--", *command]
    with output.open("wb") as sink:
        process = subprocess.Popen(
            launcher, cwd=folder, env=dict(env), stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
            start_new_session=True,
        )  # fmt: skip
        os.sched_setaffinity(process.pid, {server_core})
        try:
            process.wait(timeout_s)
        except BaseException as error:
            process.terminate()  # the launcher ends the tree
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise ClientFailed(f"did not end within {timeout_s:g} s: {last_lines(output)}") from None
            raise
    if process.returncode not in exit_codes or not report.is_file():
        raise ClientFailed(f"exit code {process.returncode}: {last_lines(output)}")
    found = json.loads(report.read_text())
    return Cost(found["cpu_s"], found["wall_s"], [(at_ns, size) for at_ns, size in found["memory"]])


def last_lines(path: Path, n: int = 3) -> str:
    """The last lines of a client's output that say something."""
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip(" ─│╰╯┘└-=\t")]
    return " / ".join(lines[-n:])[-400:] or "no output"


# --- the launcher's side -------------------------------------------------------------------------------------------


@dataclass
class Tree:
    """The client's processes, descendants of this one, whoever their parent was at first."""

    with_memory: bool
    cpu_seen_s: dict[int, float] = field(default_factory=dict)
    memory: list[tuple[int, int]] = field(default_factory=list)

    def sample(self) -> None:
        """Look at all processes that live."""
        total = 0
        for pid in descendants(os.getpid()):
            try:
                self.cpu_seen_s[pid] = cpu_s(pid)
                total += memory_bytes(pid) if self.with_memory else 0
            except (OSError, ValueError, IndexError):
                continue  # ended meanwhile
        if self.with_memory and total:
            self.memory.append((time.monotonic_ns(), total))

    def cpu_s(self) -> float:
        """User and system time of the tree, once all of it has been reaped."""
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        return max(spent.ru_utime + spent.ru_stime, sum(self.cpu_seen_s.values()))


def descendants(root: int) -> list[int]:
    """All processes below `root`, zombies included."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def parents() -> Iterator[tuple[int, int]]:
    """(process, parent) of all processes."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                yield int(name), int(stat(int(name))[1])
            except (OSError, IndexError):
                continue


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; the name before it may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def cpu_s(pid: int) -> float:
    """User and system time of a process, without its children."""
    fields = stat(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_bytes(pid: int) -> int:
    """Proportional set size: pages shared by n processes count 1/n in each, so that a tree can be summed."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def started(command: Sequence[str], core: int) -> int:
    """The client's process id; it and all that it starts stay on its core."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        return os.posix_spawnp(command[0], list(command), os.environ)
    finally:
        os.sched_setaffinity(0, ours)


def reap() -> dict[int, int]:
    """Exit codes of the children, adopted ones included, that have ended."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def watch(pid: int, tree: Tree) -> int:
    """Sample until the client has ended; its exit code."""
    while True:
        before_s = time.monotonic()
        tree.sample()
        took_s = time.monotonic() - before_s
        time.sleep(min(max(took_s / SAMPLING_SHARE, SHORTEST_PAUSE_S), LONGEST_PAUSE_S))
        ended = reap()
        if pid in ended:
            return ended[pid]


def end_orphans(tree: Tree, grace_s: float) -> None:
    """Wait for what the client left behind, then kill it."""
    deadline_s = time.monotonic() + grace_s
    while descendants(os.getpid()):
        tree.sample()
        if time.monotonic() > deadline_s:
            for pid in descendants(os.getpid()):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
        reap()


def launch(report: Path, core: int, with_memory: bool, command: Sequence[str]) -> int:
    """Run the client to its end and write the report."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    tree = Tree(with_memory)

    def give_up(*_: Any) -> None:
        end_orphans(tree, 0.0)
        os._exit(143)

    signal.signal(signal.SIGTERM, give_up)
    started_s = time.monotonic()
    code = watch(started(command, core), tree)
    wall_s = time.monotonic() - started_s
    end_orphans(tree, ORPHAN_GRACE_S)
    report.write_text(json.dumps({"cpu_s": tree.cpu_s(), "wall_s": wall_s, "memory": tree.memory}))
    return code


if __name__ == "__main__":
    _, where, on_core, want_memory, _, *what = sys.argv
    sys.exit(launch(Path(where), int(on_core), want_memory == "1", what))
