"""The run folder: everything a run knows, on disk as it happens, readable after a crash."""

from __future__ import annotations

import json
import os
import queue
import threading
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from loadgen.collectors.records import PointLog, RequestRecord

SCHEMA_VERSION = 1
MANIFEST, SCHEDULE, RECORDS, READS, POINTS, SUMMARY = (
    "manifest.json",
    "schedule.jsonl",
    "records.jsonl",
    "reads.i32",
    "points.jsonl",
    "summary.json",
)
TICK_NS = 100  # gaps on disk are int32 in ticks of 0.1 us: exact to 214 s
TICK_LIMIT = 2**31 - 1
BACKLOG_LIMIT = 5000
# Records that end together are written together: a thread that wakes for each takes the interpreter from the sender.
BUSY, NAP_S = 4, 0.02


class FolderError(Exception):
    """The folder can't be created or read; the text tells the user why."""


class RunFolder:
    """Writes a run. Records go through a thread, so that a slow disk never delays a send.

    A record is handed to the operating system as soon as the thread gets to it: killing the process loses the requests
    in flight and no finished one that had been written. How far the thread fell behind is kept for the validity check.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        """Create the folder; raises FolderError when it exists: a run is never overwritten."""
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise FolderError(f"{path} exists already; a run is never overwritten, choose another --out") from None
        except OSError as error:
            raise FolderError(f"can't create {path}: {error.strerror}") from None
        self.path = path
        self.manifest = dict(manifest)
        self.save_manifest()
        self._files: dict[str, BinaryIO] = {
            name: (path / name).open("ab", buffering=0) for name in (SCHEDULE, RECORDS, READS, POINTS)
        }
        self.writer = Writer(self._files[RECORDS], self._files[READS], self._files[POINTS])

    def save_manifest(self, **changes: Any) -> None:
        """Write the manifest anew, with changes; the old one stays until the new one is complete."""
        self.manifest.update(changes)
        write_json(self.path / MANIFEST, self.manifest)

    def add_schedule(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append the plan of a point, before the point starts."""
        self._files[SCHEDULE].write(b"".join(line(row) for row in rows))

    def close(self) -> None:
        """Write what is queued and close the files."""
        self.writer.close()
        for file in self._files.values():
            file.close()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Writer:
    """The sink that the generator sees: takes records at once, writes them from a thread of its own."""

    def __init__(
        self, records: BinaryIO, reads: BinaryIO, points: BinaryIO, backlog_limit: int = BACKLOG_LIMIT
    ) -> None:
        self.backlog_limit = backlog_limit
        self.backlog_max = 0
        self._lag_max_s = 0.0
        self._writing_since_s: float | None = None
        self.error: OSError | None = None
        self._records, self._reads, self._points = records, reads, points
        self._n_ints = reads.seek(0, os.SEEK_END) // 4
        self._closing = threading.Event()
        self._queue: queue.SimpleQueue[tuple[float, RequestRecord | PointLog] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="run-folder", daemon=True)
        self._thread.start()

    @property
    def lag_max_s(self) -> float:
        """Longest that an entry waited for the disk, one that is still waiting included."""
        since_s = self._writing_since_s
        return max(self._lag_max_s, monotonic() - since_s if since_s is not None else 0.0)

    @property
    def backlog(self) -> int:
        """Entries that wait for the disk now."""
        return self._queue.qsize()

    def record(self, record: RequestRecord) -> None:
        """Queue one record; never blocks. Nothing is dropped: past the limit the point becomes INVALID."""
        self._queue.put((monotonic(), record))
        self.backlog_max = max(self.backlog_max, self._queue.qsize())

    def end_point(self, log: PointLog) -> None:
        """Queue a point's log behind its records and begin counting anew for the next point."""
        self._queue.put((monotonic(), log))
        self.backlog_max = 0
        self._lag_max_s = 0.0

    def close(self) -> None:
        """Wait until everything queued is written; raises FolderError when the disk refused."""
        if self._thread.is_alive():
            self._closing.set()
            self._queue.put(None)
            self._thread.join()
        if self.error is not None:
            raise FolderError(f"writing the run folder failed: {self.error.strerror}")

    def _work(self) -> None:
        n_in_a_row = 0
        while (item := self._queue.get()) is not None:
            queued_s, entry = item
            self._writing_since_s = queued_s
            if self.error is None:
                try:
                    self._write_entry(entry)
                except OSError as error:
                    self.error = error
            self._lag_max_s = max(self._lag_max_s, monotonic() - queued_s)
            self._writing_since_s = None
            n_in_a_row += 1
            if self._queue.empty():
                if n_in_a_row >= BUSY:
                    self._closing.wait(NAP_S)
                n_in_a_row = 0

    def _write_entry(self, entry: RequestRecord | PointLog) -> None:
        if isinstance(entry, PointLog):
            self._points.write(line(asdict(entry)))
        else:
            self._write(entry)

    def _write(self, record: RequestRecord) -> None:
        """Sidecar first, then the row that points into it: a row never points at bytes that are missing."""
        ints = np.stack([to_ticks(record.gap_ns), record.gap_events, record.gap_bytes], axis=1).astype(np.int32)
        self._reads.write(ints.tobytes() + record.gap_tokens.tobytes())
        row = record.row()
        row["reads_at"], row["n_reads"], row["tokens_told"] = self._n_ints, len(ints), len(record.gap_tokens)
        self._n_ints += ints.size + len(record.gap_tokens)
        self._records.write(msgspec.json.encode(row) + b"\n")


@dataclass
class LoadedRun:
    """A run folder as read back; a point without its log (the process was killed) is rebuilt from its records."""

    path: Path
    manifest: dict[str, Any]
    points: list[tuple[PointLog, list[RequestRecord]]]


def load_run(path: Path) -> LoadedRun:
    """Read a run folder, also one whose process was killed; raises FolderError when it is none."""
    if not (path / MANIFEST).is_file():
        raise FolderError(f"{path} is not a run folder: it has no {MANIFEST}")
    manifest = json.loads((path / MANIFEST).read_text())
    by_point: dict[int, list[RequestRecord]] = {}
    for record in _read_records(path):
        by_point.setdefault(record.point, []).append(record)
    logs = {row["point"]: PointLog(**row) for row in _rows(path / POINTS)}
    for point, records in by_point.items():
        if point not in logs:
            logs[point] = rebuild_log(point, records, list(_rows(path / SCHEDULE)), manifest)
    return LoadedRun(path, manifest, [(logs[point], by_point.get(point, [])) for point in sorted(logs)])


def rebuild_log(
    point: int, records: list[RequestRecord], schedule: list[dict[str, Any]], manifest: Mapping[str, Any]
) -> PointLog:
    """The log of a point whose process was killed: what its records still tell, and no counter of the generator."""
    plan: dict[str, Any] = next((p for p in manifest.get("points", []) if p["point"] == point), {})
    planned = {row["index"]: row for row in schedule if row["point"] == point}
    first = min(records, key=lambda record: record.intended_at_ns)
    t0_ns = first.intended_at_ns
    if first.index in planned and plan.get("mode") == "open":
        t0_ns -= round(planned[first.index]["at_s"] * 1e9)
    last_ns = max(record.stream_end_at_ns or record.intended_at_ns for record in records)
    start_ns = t0_ns + round(plan.get("warmup_s", 0) * 1e9)
    end_ns = min(start_ns + round(plan.get("duration_s", 0) * 1e9), max(last_ns, start_ns))
    due = [row for row in planned.values() if row["phase"] == "measured" and t0_ns + row["at_s"] * 1e9 < end_ns]
    return PointLog(
        point=point,
        mode=plan.get("mode", "open"),
        rate_rps=plan.get("rate_rps"),
        concurrency=plan.get("concurrency"),
        t0_ns=t0_ns,
        t0_wall_s=first.intended_wall_s - (first.intended_at_ns - t0_ns) / 1e9,
        window_start_ns=start_ns,
        window_end_ns=end_ns,
        closed_at_ns=last_ns,
        due_measured=len(due),
        in_flight_mean=None,
        in_flight_max=0,
        bin_s=0.1,
        in_flight_bins=[],
        loop_lag_p99_s=None,
        client_cpu_share=None,
        writer_backlog_max=0,
        writer_backlog_limit=BACKLOG_LIMIT,
        writer_lag_max_s=0.0,
        interrupted=True,
        arrivals=manifest.get("scenario", {}).get("load", {}).get("arrivals", "poisson"),
    )


def _read_records(path: Path) -> Iterator[RequestRecord]:
    """One record at a time, with its reads from the sidecar: a long run is read without a second copy in memory."""
    sidecar = path / READS
    with sidecar.open("rb") if sidecar.is_file() else BytesIO() as reads:
        for row in _rows(path / RECORDS):
            reads.seek(4 * row.pop("reads_at"))
            data = reads.read(12 * row.pop("n_reads"))
            told = reads.read(4 * row.pop("tokens_told", 0))
            ticks, n_events, n_bytes = np.frombuffer(data, np.int32, len(data) // 12 * 3).reshape(-1, 3).T
            yield RequestRecord(
                **row,
                gap_ns=array("q", to_ns(ticks).tobytes()),
                gap_events=array("i", n_events.tobytes()),
                gap_bytes=array("i", n_bytes.tobytes()),
                gap_tokens=array("i", told[: len(told) // 4 * 4]),
            )


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSONL file; a last line that was cut by a crash is left out."""
    if not path.is_file():
        return
    with path.open("rb") as lines:
        for text in lines:
            try:
                row = msgspec.json.decode(text)
            except msgspec.DecodeError:
                return
            yield row


def to_ticks(gap_ns: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Gaps that fit into int32: 0.1 us ticks, or negative milliseconds where those would not fit (over 214 s)."""
    gaps = np.asarray(gap_ns, dtype=np.int64)
    ticks = np.rint(gaps / TICK_NS).astype(np.int64)
    return np.where(ticks <= TICK_LIMIT, ticks, -np.rint(gaps / 1e6).astype(np.int64))


def to_ns(values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """The gaps in nanoseconds that `to_ticks` wrote."""
    ints = np.asarray(values, dtype=np.int64)
    return np.where(ints >= 0, ints * TICK_NS, -ints * 1_000_000)


def line(row: Mapping[str, Any]) -> bytes:
    """One strict JSON line: NaN and infinities are refused."""
    return (json.dumps(row, allow_nan=False, separators=(",", ":"), ensure_ascii=False) + "\n").encode()


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON file so that a reader sees the old one or the new one, never half of it."""
    scratch = path.with_name(path.name + ".part")
    try:
        scratch.write_text(json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
