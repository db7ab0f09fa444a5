"""The client machine and the versions that a run was made with, for the manifest and the conditions."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("openloop", "httpx", "httptools", "msgspec", "anyio", "uvloop", "numpy", "pydantic")


def client_machine() -> dict[str, str | int | float]:
    """CPU, cores this process may use, memory, kernel and Python."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1),
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Installed versions of what takes part in measuring."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def loop_name() -> str:
    """The event loop that the generator runs on."""
    return "uvloop" if "uvloop" in sys.modules else "asyncio"


def machine_text(machine: dict[str, str | int | float]) -> str:
    """One line for the conditions."""
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}, "
        f"Python {machine['python']}"
    )


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for row in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if row.startswith("model name"):
                return row.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory_bytes() -> int:
    """Physical memory; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0
