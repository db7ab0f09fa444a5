"""What a person sees while load runs: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
import numpy as np

from loadgen.generator.point import Progress
from loadgen.scenario.schedule import PointSchedule

if TYPE_CHECKING:
    from rich.live import Live

REFRESH_S = 0.5  # drawing takes a few milliseconds of the interpreter: twice a second stays out of the sends' way


class Display:
    """Shows the running point. `n_expected` is how many points are planned, when that is known."""

    def __init__(self, n_expected: int | None, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.n_expected = n_expected
        self._now_ns = now_ns
        self.n_started = 0
        self._current: tuple[PointSchedule, Progress] | None = None
        self._live: Live | None = None

    @contextmanager
    def running(self) -> Iterator[Display]:
        """Draw until the block ends; without a terminal there is nothing to draw, only a line a point."""
        if not sys.stderr.isatty():
            yield self
            return
        from rich.console import Console
        from rich.live import Live

        stop = threading.Event()
        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as self._live:
            thread = threading.Thread(target=self._draw, args=(self._live, stop), name="display", daemon=True)
            thread.start()
            try:
                yield self
            finally:
                stop.set()
                thread.join()
        self._live = None

    def start(self, plan: PointSchedule, progress: Progress) -> None:
        """A point begins."""
        self.n_started += 1
        progress.total_s = plan.warmup_s + plan.duration_s
        self._current = (plan, progress)

    def done(self, text: str) -> None:
        """A point has ended: its one line stays."""
        self._current = None
        line = f"  {self._place()} {text}"
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            click.echo(line, err=True)

    def _place(self) -> str:
        of = f"/{max(self.n_expected, self.n_started)}" if self.n_expected else ""
        return f"[{self.n_started}{of}]"

    def _draw(self, live: Live, stop: threading.Event) -> None:
        from rich.text import Text

        while not stop.wait(REFRESH_S):
            current = self._current
            text = self._line(*current) if current else ""
            live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def _line(self, plan: PointSchedule, progress: Progress) -> str:
        elapsed_s = max((self._now_ns() - progress.started_ns) / 1e9, 0.0) if progress.started_ns else 0.0
        share = min(elapsed_s / progress.total_s, 1.0) if progress.total_s else 0.0
        left_s = max(progress.total_s - elapsed_s, 0.0)
        bar = "#" * round(10 * share) + "." * (10 - round(10 * share))
        recent = list(progress.recent_ttft_s)
        ttft = f"TTFT p95 {np.percentile(recent, 95) * 1e3:,.0f} ms" if len(recent) >= 20 else "TTFT p95 n/a"
        failed = f", {progress.failed} failed" if progress.failed else ""
        stage = f"{left_s:.0f} s left" if left_s else "last answers"
        return (
            f"  {self._place()} {load_text(plan)} [{bar}] {progress.in_flight} in flight, "
            f"{progress.done} done, {ttft}{failed}, {stage}"
        )


def load_text(plan: PointSchedule) -> str:
    """The load of a point in two words."""
    return f"{plan.rate_rps:.3g} req/s" if plan.rate_rps else f"{plan.concurrency} users"
