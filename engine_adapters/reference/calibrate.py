"""Owns the ceilings of this machine as one engine thread meets them: read bytes/s and FLOP/s, by gemv and sgemm.

numpy is imported only in the functions that run in the child process: its BLAS reads the thread count once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

ONE_THREAD = {
    name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
}
_ROW_LENGTHS = (256, 512, 1024, 2048, 4096)
# (M, K, N): square ones, and a chunk of prompt tokens times matrices as small models have them.
_GEMMS = ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048))
_PREFILLS = ((256, 256, 768), (512, 256, 1024), (512, 512, 1536), (1024, 768, 2304))
_MIN_PASSES = 3


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What one BLAS thread of a machine reached at best.

    `bandwidth_bps`: bytes/s read from a working set of `working_set_bytes` (small weights live in a cache, so the
    figure holds for that size only). `flops`: single-precision FLOP/s. `source` says how it was measured.
    """

    bandwidth_bps: float
    flops: float
    source: str
    working_set_bytes: int


class CalibrationError(RuntimeError):
    """The measuring process failed; the text carries its last line."""


def measure_ceilings(weight_bytes: int, budget_s: float = 2.5) -> Ceilings:
    """Ceilings of this machine for a model of `weight_bytes`, measured for about `budget_s` in a child process.

    Best of all repeats and shapes, since a bound built on it must not be below a true measurement. Blocks; raises
    CalibrationError when the child fails, ValueError for a size below one matrix row.
    """
    if weight_bytes < 4 * max(_ROW_LENGTHS):
        raise ValueError(f"weight_bytes must be at least {4 * max(_ROW_LENGTHS)}, not {weight_bytes}")
    command = [sys.executable, "-m", __name__, "--weight-bytes", str(weight_bytes), "--budget", str(budget_s)]
    child = subprocess.run(command, env=os.environ | ONE_THREAD, capture_output=True, text=True, check=False)
    if child.returncode:
        raise CalibrationError(f"calibration failed: {(child.stderr.strip() or 'no message').splitlines()[-1]}")
    return Ceilings(**json.loads(child.stdout))


def combine(before: Ceilings, after: Ceilings) -> Ceilings:
    """The larger of each ceiling of two calibrations at one working set: a disturbed one reads low, none reads high.

    Raises ValueError for two working sets.
    """
    if before.working_set_bytes != after.working_set_bytes:
        raise ValueError("ceilings of two working sets can't be combined")
    return Ceilings(
        bandwidth_bps=max(before.bandwidth_bps, after.bandwidth_bps),
        flops=max(before.flops, after.flops),
        source=before.source if before.source == after.source else f"{before.source}; {after.source}",
        working_set_bytes=before.working_set_bytes,
    )


def best_rate(work: Callable[[], object], amount: float, budget_s: float, clock: Callable[[], float]) -> float:
    """Largest amount/s over repeats of `work`, each of `amount`, within `budget_s` of `clock` but at least three."""
    best, started, n_passes = 0.0, clock(), 0
    while n_passes < _MIN_PASSES or clock() - started < budget_s:
        begun = clock()
        work()
        best, n_passes = max(best, amount / max(clock() - begun, 1e-9)), n_passes + 1
    return best


def _read_bandwidth(weight_bytes: int, budget_s: float) -> float:
    """Bytes/s of gemv over square-ish matrices that together fill `weight_bytes`; best over row lengths and both
    orders of the product. A gemv uses each weight once, so it reads exactly what a decode step of one user reads."""
    share_s, rates = budget_s / (2 * len(_ROW_LENGTHS)), []
    for n in _ROW_LENGTHS:
        matrices, row, column = _matrices(weight_bytes, n)
        read = float(sum(m.nbytes for m in matrices))
        rates.append(best_rate(lambda ms=matrices, x=row: [m @ x for m in ms], read, share_s, time.perf_counter))
        rates.append(
            best_rate(lambda ms=matrices, x=column: [x[: len(m)] @ m for m in ms], read, share_s, time.perf_counter)
        )
    return max(rates)


def _matrices(weight_bytes: int, row_length: int) -> tuple[list[Any], Any, Any]:
    """Matrices of up to 4n x n float32 that fill `weight_bytes`, and the vectors to multiply them by."""
    import numpy as np

    rows_left, matrices = weight_bytes // (4 * row_length), []
    while rows_left:
        n_rows = min(rows_left, 4 * row_length)
        matrices.append(np.full((n_rows, row_length), 1e-3, dtype=np.float32))
        rows_left -= n_rows
    return matrices, np.ones(row_length, dtype=np.float32), np.ones(4 * row_length, dtype=np.float32)


def _flops(budget_s: float) -> float:
    """FLOP/s of sgemm, best over square shapes and those of a small model's prefill."""
    import numpy as np

    shapes = _GEMMS + _PREFILLS
    rates = []
    for m, k, n in shapes:
        a, b = np.full((m, k), 1e-3, dtype=np.float32), np.full((k, n), 1e-3, dtype=np.float32)
        out = np.empty((m, n), dtype=np.float32)
        work = lambda a=a, b=b, out=out: np.matmul(a, b, out=out)  # noqa: E731
        rates.append(best_rate(work, 2.0 * m * k * n, budget_s / len(shapes), time.perf_counter))
    return max(rates)


def _measure_here(weight_bytes: int, budget_s: float) -> Ceilings:
    """In the child: half of the budget for each ceiling."""
    import numpy as np

    bandwidth_bps = _read_bandwidth(weight_bytes, budget_s / 2)
    flops = _flops(budget_s / 2)
    source = (
        f"gemv over {weight_bytes / 1e6:.1f} MB and sgemm, one BLAS thread, best of repeats, numpy {np.__version__}"
    )
    return Ceilings(bandwidth_bps, flops, source, weight_bytes)


def _main() -> None:
    parser = argparse.ArgumentParser(description="Measure this machine's ceilings with one BLAS thread.")
    parser.add_argument("--weight-bytes", type=int, required=True)
    parser.add_argument("--budget", type=float, default=2.5, help="seconds to spend (default: %(default)s)")
    args = parser.parse_args()
    os.environ.update(ONE_THREAD)  # for a direct call; numpy is not imported yet
    print(json.dumps(asdict(_measure_here(args.weight_bytes, args.budget))))


if __name__ == "__main__":
    _main()
