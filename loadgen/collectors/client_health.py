"""What the client did to itself during a point: how late its loop woke, its garbage collections, and its CPU."""

from __future__ import annotations

import time

import numpy as np

from loadgen.generator.clock import Clock

PROBE_NS = 10_000_000


class ClientHealth:
    """A probe that wants to wake every 10 ms, and the process's CPU time beside the wall clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_ns = clock.now_ns()
        self._cpu_s = time.process_time()
        self._lags_ns: list[int] = []
        self._gc_started_ns = 0
        self.gc_pauses = 0
        self.gc_pause_max_s = 0.0

    async def probe(self) -> None:
        """Run until cancelled."""
        due_ns = self._clock.now_ns()
        while True:
            due_ns += PROBE_NS
            await self._clock.sleep_coarse_until_ns(due_ns)
            now_ns = self._clock.now_ns()
            self._lags_ns.append(max(now_ns - due_ns, 0))
            due_ns = max(due_ns, now_ns - PROBE_NS)  # a long stall counts once, not once for each missed tick

    def loop_lag_p99_s(self) -> float | None:
        """99th percentile of the probe's lateness, in seconds; None before the first tick."""
        return float(np.percentile(self._lags_ns, 99)) / 1e9 if self._lags_ns else None

    def loop_stall_max_s(self) -> float | None:
        """The probe's longest lateness, in seconds: so long nothing was sent or read. None before the first tick."""
        return max(self._lags_ns) / 1e9 if self._lags_ns else None

    def on_gc(self, phase: str, _info: dict[str, int]) -> None:
        """Called by the garbage collector (`gc.callbacks`), which the generator has switched off."""
        if phase == "start":
            self._gc_started_ns = self._clock.now_ns()
        else:
            self.gc_pauses += 1
            self.gc_pause_max_s = max(self.gc_pause_max_s, (self._clock.now_ns() - self._gc_started_ns) / 1e9)

    def cpu_share(self) -> float | None:
        """Process CPU time over wall time: 1.0 is one whole core."""
        wall_s = (self._clock.now_ns() - self._started_ns) / 1e9
        return (time.process_time() - self._cpu_s) / wall_s if wall_s > 0 else None
