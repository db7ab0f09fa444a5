"""A disk that stalls never delays a send, and the point says that it can't be believed."""

from __future__ import annotations

import threading

import anyio
from support.fakes import FakeAdapter, schedule

from loadgen.analysis.evidence import Evidence
from loadgen.analysis.validity import certify
from loadgen.collectors.records import PointLog
from loadgen.collectors.run_folder import Writer
from loadgen.generator.clock import MonotonicClock
from loadgen.generator.open_loop import run_open_loop
from loadgen.generator.point import MemorySink, PointRun


class Disk:
    """Writes at once until told to stall."""

    def __init__(self) -> None:
        self.moving = threading.Event()
        self.moving.set()

    def seek(self, *_: int) -> int:
        return 0

    def write(self, data: bytes) -> int:
        self.moving.wait()
        return len(data)


def run_with(disk: Disk) -> tuple[PointLog, MemorySink]:
    writer = Writer(disk, disk, disk)  # type: ignore[arg-type]
    clock = MonotonicClock()
    plan = schedule([0.02 * i for i in range(70)], duration_s=1.4, cooldown_s=1.0)
    sink = MemorySink(writer)
    run = PointRun(plan, [b"x"] * 70, FakeAdapter(clock, lambda n: 0.01), clock, sink, "test", "constant")
    log = anyio.run(run_open_loop, run)
    disk.moving.set()
    writer.close()
    return log, sink


def records_check(log: PointLog, sink: MemorySink) -> str:
    certificate = certify(Evidence(log, sink.records))
    [check] = [check for check in certificate.checks if check.name == "records writing"]
    assert (check.verdict == "invalid") <= (certificate.verdict == "INVALID")
    return check.verdict


def test_a_stalled_disk_makes_the_point_invalid_and_delays_no_send() -> None:
    disk = Disk()
    disk.moving.clear()
    log, sink = run_with(disk)
    late_s = sorted((r.sent_at_ns - r.intended_at_ns) / 1e9 for r in sink.records if r.sent_at_ns)
    assert len(late_s) == 70
    assert late_s[35] < 0.05  # the disk stood still for 1.4 s
    assert log.writer_lag_max_s > 1.0
    assert records_check(log, sink) == "invalid"


def test_a_disk_that_keeps_up_passes() -> None:
    assert records_check(*run_with(Disk())) == "pass"
