"""Where a run's page goes; the report is written in full or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from errno import EISDIR
from pathlib import Path
from typing import Any

from loadgen.commands.common import UsageProblem
from reports.page import write_report

REPORT = "report.html"


def write_page(path: Path, summary: Mapping[str, Any]) -> Path:
    """The report of a summary; returns its path."""
    whole(path, lambda scratch: write_report(dict(summary), scratch))
    return path


def whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file through a scratch file, so that a reader sees the old one or the new one."""
    scratch = path.with_name(f".{path.name}.part")
    try:
        write(scratch)
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def check_new(path: Path | None, force: bool) -> None:
    """As `check_writable`, and a page that exists is only replaced with `force`; raises OSError or UsageProblem."""
    if path is not None and path.is_file() and not force:
        raise UsageProblem(f"--out {path} exists already; choose another file, or give --force to replace it")
    check_writable(path)


def check_writable(path: Path | None) -> None:
    """Refuse a file that can't be written before the work that it is for; raises OSError."""
    if path is None:
        return
    if path.is_dir():
        raise IsADirectoryError(EISDIR, "is a folder, a file is wanted", str(path))
    probe = path.with_name(f".{path.name}.part")
    probe.write_bytes(b"")
    probe.unlink()
