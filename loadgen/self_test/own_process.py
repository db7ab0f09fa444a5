"""What the system lets this process use: cores, open files, memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def rss_bytes() -> int | None:
    """Resident memory of this process now; None where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def core_busy_s(core: int) -> float | None:
    """Seconds since boot that a core was not idle, stolen by a hypervisor included; None where it is not told."""
    try:
        rows = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return None
    return next((busy_s(row) for row in rows if row.startswith(f"cpu{core} ")), None)


def busy_s(row: str) -> float:
    """The same from the core's row of /proc/stat: user nice system idle iowait irq softirq steal ..."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, row.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / float(os.sysconf("SC_CLK_TCK"))


@contextmanager
def open_files(wanted: int) -> Iterator[int]:
    """Raise the soft limit of open files to `wanted`, at most to the hard one, for the block; gives what is allowed."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        yield wanted
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinity = resource.RLIM_INFINITY
    if soft != infinity and soft < wanted:
        allowed = wanted if hard == infinity else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        except (ValueError, OSError):  # macOS has a second limit that it does not tell
            allowed = soft
    else:
        allowed = wanted
    try:
        yield allowed
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def pinned_apart() -> Iterator[tuple[int, int] | None]:
    """Keep this process on one core and leave another to the server, for the block; None when there is only one.

    Gives (own core, the server's). Two threads of one physical core are only taken when there is nothing else.
    """
    if not hasattr(os, "sched_getaffinity"):
        yield None
        return
    cores = sorted(os.sched_getaffinity(0))
    own = cores[-1]
    others = [core for core in cores if core != own]
    if not others:
        yield None
        return
    apart = [core for core in others if core not in siblings(own)]
    os.sched_setaffinity(0, {own})
    try:
        yield own, (apart or others)[0]
    finally:
        os.sched_setaffinity(0, cores)


def siblings(core: int) -> set[int]:
    """Logical cores on the same physical one, itself included."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    try:
        return parse_cores(path.read_text())
    except (OSError, ValueError):
        return {core}


def parse_cores(text: str) -> set[int]:
    """`0,4-6` as the kernel writes sets of cores."""
    found: set[int] = set()
    for item in text.strip().split(","):
        first, _, last = item.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
