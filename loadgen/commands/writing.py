"""Where a run's page goes; the report is written in full or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reports.page import write_report

REPORT = "report.html"


def write_outputs(folder: Path, summary: Mapping[str, Any]) -> Path:
    """report.html beside the records; returns its path."""
    path = folder / REPORT
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
