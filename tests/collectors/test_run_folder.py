"""A run folder loses nothing: round trip, refusal to overwrite, kill at any moment, a disk that stalls."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.collectors.records import PointLog, RequestRecord
from loadgen.collectors.run_folder import FolderError, RunFolder, Writer, load_run, to_ns, to_ticks

PLAN = {"point": 0, "mode": "open", "rate_rps": 10.0, "warmup_s": 0.0, "duration_s": 60.0}


def a_record(index: int, **values: object) -> RequestRecord:
    at_ns = 10**9 + index * 10**8
    record = RequestRecord(0, index, "measured", "ok", at_ns, 1.7e9 + index / 10, stream_end_at_ns=at_ns + 10**7)
    record.gap_ns, record.gap_events, record.gap_bytes = (
        array("q", [0, 1_234_500, 10**12]),
        array("i", [1, 2, 1]),
        array("i", [100, 200, 100]),
    )
    for name, value in values.items():
        setattr(record, name, value)
    return record


def a_log(point: int = 0) -> PointLog:
    return PointLog(
        point,
        "open",
        10.0,
        None,
        10**9,
        1.7e9,
        10**9,
        2 * 10**9,
        3 * 10**9,
        5,
        1.0,
        2,
        0.1,
        [1.0],
        0.001,
        0.2,
        1,
        9,
        0.0,
    )


def test_records_and_logs_come_back_as_they_were(tmp_path: Path) -> None:
    records = [a_record(0), a_record(1, error="line\u2028sep", status="failed"), a_record(2)]
    with RunFolder(tmp_path / "run", {"points": [PLAN]}) as folder:
        for record in records:
            folder.writer.record(record)
        folder.writer.end_point(a_log())
    loaded = load_run(tmp_path / "run")
    assert loaded.points == [(a_log(), records)]


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", {"a": 1}):
        pass
    with pytest.raises(FolderError, match="never overwritten"):
        RunFolder(tmp_path / "run", {"a": 2})
    assert json.loads((tmp_path / "run" / "manifest.json").read_text()) == {"a": 1}


def test_nan_never_reaches_a_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        RunFolder(tmp_path / "run", {"a": float("nan")})


@given(st.integers(0, 10**13))
def test_a_gap_on_disk_is_exact_to_its_tick(gap_ns: int) -> None:
    tick = to_ticks(gap_ns)
    assert -(2**31) <= tick < 2**31
    assert abs(to_ns(tick) - gap_ns) <= (50 if tick >= 0 else 500_000)


WRITES_FOREVER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_run_folder import PLAN, a_record
from loadgen.collectors.run_folder import RunFolder
folder = RunFolder(Path(sys.argv[1]), {"points": [PLAN], "scenario": {"load": {"arrivals": "constant"}}})
folder.add_schedule({"point": 0, "index": i, "at_s": i / 10, "phase": "measured"} for i in range(600))
for i in range(600):
    folder.writer.record(a_record(i))
    time.sleep(0.002)
    if i == 30:
        print("started", flush=True)
    if i > 30:
        print(i, flush=True)
"""


def test_killing_the_process_loses_no_finished_request(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WRITES_FOREVER, str(tmp_path / "run"), str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "started\n"
    time.sleep(0.1)
    os.kill(child.pid, signal.SIGKILL)
    said = child.stdout.read().split()
    child.wait()
    child.stdout.close()
    loaded = load_run(tmp_path / "run")
    [(log, records)] = loaded.points
    # A record is written by its thread within the 2 ms that the child waits before it says so; one more may be cut.
    assert len(records) >= int(said[-1])
    assert records[5] == a_record(5)
    assert log.interrupted
    assert log.arrivals == "constant"
    assert log.due_measured >= len(records) - 1


def test_a_row_that_was_cut_by_a_crash_is_left_out(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", {"points": [PLAN]}) as folder:
        folder.writer.record(a_record(0))
        folder.writer.record(a_record(1))
    path = tmp_path / "run" / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert [record.index for _, records in load_run(tmp_path / "run").points for record in records] == [0]


class StalledDisk(io.RawIOBase):
    """Blocks every write until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def seek(self, *_: int) -> int:
        return 0

    def write(self, data: object) -> int:
        self.released.wait()
        return len(data)  # type: ignore[arg-type]


def test_a_stalled_disk_never_blocks_the_sender_and_shows_in_the_log() -> None:
    disk = StalledDisk()
    writer = Writer(disk, disk, disk, backlog_limit=50)  # type: ignore[arg-type]
    started = time.monotonic()
    for i in range(200):
        writer.record(a_record(i))
    queued_s = time.monotonic() - started
    time.sleep(0.05)
    assert writer.backlog_max > writer.backlog_limit
    assert writer.lag_max_s > 0.04
    disk.released.set()
    writer.close()
    assert queued_s < 10 * writer.lag_max_s


def test_a_full_disk_is_told_at_the_end_and_not_to_the_sender() -> None:
    class FullDisk(StalledDisk):
        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

    writer = Writer(FullDisk(), FullDisk(), FullDisk())  # type: ignore[arg-type]
    writer.record(a_record(0))
    with pytest.raises(FolderError, match="No space left"):
        writer.close()
