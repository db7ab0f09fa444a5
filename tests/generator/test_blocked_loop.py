"""A client that stood still for 300 ms says so: its point is INVALID, in open and in closed loop."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from support.fakes import FakeAdapter, schedule

from loadgen.analysis.evidence import Evidence
from loadgen.analysis.validity import Certificate, certify
from loadgen.collectors.records import PointLog
from loadgen.generator.clock import MonotonicClock
from loadgen.generator.closed_loop import run_closed_loop
from loadgen.generator.open_loop import run_open_loop
from loadgen.generator.point import MemorySink, PointRun

DRIVES = {"open": run_open_loop, "closed": run_closed_loop}


def certificate(mode: Any, blocked_s: float) -> tuple[Certificate, PointLog]:
    """A point of 1.2 s, in whose middle the event loop is blocked."""
    clock, sink = MonotonicClock(), MemorySink()
    plan = schedule([0.01 * i for i in range(120)], duration_s=1.2, cooldown_s=1.0, mode=mode, concurrency=2)
    run = PointRun(plan, [b"x"] * 120, FakeAdapter(clock, lambda n: 0.02), clock, sink, "test", "constant")

    async def main() -> PointLog:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(block, blocked_s)
            return await DRIVES[mode](run)

    log = anyio.run(main)
    return certify(Evidence(log, sink.records)), log


async def block(blocked_s: float) -> None:
    await anyio.sleep(0.6)
    time.sleep(blocked_s)


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_a_loop_blocked_for_300_ms_makes_the_point_invalid(mode: str) -> None:
    found, log = certificate(mode, 0.3)
    assert found.verdict == "INVALID"
    assert {check.name: check.verdict for check in found.checks}["loop lag"] == "invalid"
    assert (log.loop_stall_max_s or 0) > 0.25


def test_a_garbage_collection_during_a_point_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    collect: Callable[[], int] = gc.collect
    monkeypatch.setattr(time, "sleep", lambda _: collect())
    _, log = certificate("open", 0.0)
    assert log.gc_pauses
    assert log.gc_pause_max_s
