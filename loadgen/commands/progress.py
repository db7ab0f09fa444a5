"""What a person sees while load runs: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
import numpy as np

from loadgen.generator.point import Progress
from loadgen.scenario.schedule import PointSchedule

REFRESH_S = 0.5  # drawing takes a few milliseconds of the interpreter: twice a second stays out of the sends' way


class Display:
    """Shows the running point. `n_expected` is how many points are planned, when that is known."""

    def __init__(self, n_expected: int | None, quiet: bool = False) -> None:
        self.n_expected = n_expected
        self.n_started = 0
        self._quiet = quiet
        self._live = not quiet and sys.stderr.isatty()
        self._current: tuple[PointSchedule, Progress] | None = None
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[Display]:
        """Draw until the block ends."""
        thread = threading.Thread(target=self._draw, name="display", daemon=True)
        if self._live:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            if self._live:
                thread.join()

    def start(self, plan: PointSchedule, progress: Progress) -> None:
        """A point begins."""
        self.n_started += 1
        progress.total_s = plan.warmup_s + plan.duration_s
        self._current = (plan, progress)

    def done(self, text: str) -> None:
        """A point has ended: its one line stays."""
        self._current = None
        if not self._quiet:
            clear = "\r\x1b[2K" if self._live else ""
            click.echo(f"{clear}  {self._place()} {text}", err=True)

    def _place(self) -> str:
        of = f"/{max(self.n_expected, self.n_started)}" if self.n_expected else ""
        return f"[{self.n_started}{of}]"

    def _draw(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        with Live(Text(""), console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            while not self._stop.wait(REFRESH_S):
                current = self._current
                live.update(
                    Text(self._line(*current) if current else "", no_wrap=True, overflow="ellipsis"), refresh=True
                )

    def _line(self, plan: PointSchedule, progress: Progress) -> str:
        elapsed_s = max((time.monotonic_ns() - progress.started_ns) / 1e9, 0.0) if progress.started_ns else 0.0
        share = min(elapsed_s / progress.total_s, 1.0) if progress.total_s else 0.0
        left_s = max(progress.total_s - elapsed_s, 0.0)
        bar = "#" * round(20 * share) + "." * (20 - round(20 * share))
        recent = list(progress.recent_ttft_s)
        ttft = f"TTFT p95 {np.percentile(recent, 95) * 1e3:,.0f} ms" if len(recent) >= 20 else "TTFT p95 ..."
        failed = f"  failed {progress.failed}" if progress.failed else ""
        stage = f"{left_s:.0f} s left" if left_s else "waiting for the last answers"
        return (
            f"  {self._place()} {load_text(plan)} [{bar}] in flight {progress.in_flight}  "
            f"done {progress.done}  {ttft}{failed}  {stage}"
        )


def load_text(plan: PointSchedule) -> str:
    """The load of a point in two words."""
    return f"{plan.rate_rps:.3g} req/s" if plan.rate_rps else f"{plan.concurrency} users"
