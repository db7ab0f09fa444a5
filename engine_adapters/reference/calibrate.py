"""Owns the ceilings of this machine as one engine thread meets them: read bytes/s and FLOP/s, by gemv and sgemm.

numpy is imported only in the functions that run in the child process: its BLAS reads the thread count once.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
ONE_THREAD = dict.fromkeys(_THREAD_VARIABLES, "1")
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
    share_s = budget_s / (2 * len(_ROW_LENGTHS))
    return max(
        best_rate(work, n_bytes, share_s, time.perf_counter)
        for row_length in _ROW_LENGTHS
        for work, n_bytes in _gemvs(weight_bytes, row_length)
    )


def _gemvs(weight_bytes: int, row_length: int) -> Iterator[tuple[Callable[[], object], float]]:
    """A pass of gemv over matrices of up to 4n x n float32 that fill `weight_bytes`, in both orders, and its bytes."""
    import numpy as np

    rows = weight_bytes // (4 * row_length)
    heights = [min(4 * row_length, rows - start) for start in range(0, rows, 4 * row_length)]
    matrices = [np.full((height, row_length), 1e-3, dtype=np.float32) for height in heights]
    lefts = [np.ones(height, dtype=np.float32) for height in heights]
    right = np.ones(row_length, dtype=np.float32)
    n_bytes = 4.0 * rows * row_length
    yield lambda: [matrix @ right for matrix in matrices], n_bytes
    yield lambda: [left @ matrix for left, matrix in zip(lefts, matrices, strict=True)], n_bytes


def _flops(budget_s: float) -> float:
    """FLOP/s of sgemm, best over square shapes and those of a small model's prefill."""
    shapes = _GEMMS + _PREFILLS
    share_s = budget_s / len(shapes)
    return max(best_rate(_gemm(*shape), 2.0 * math.prod(shape), share_s, time.perf_counter) for shape in shapes)


def _gemm(m: int, k: int, n: int) -> Callable[[], object]:
    import numpy as np

    a, b = np.full((m, k), 1e-3, dtype=np.float32), np.full((k, n), 1e-3, dtype=np.float32)
    out = np.empty((m, n), dtype=np.float32)
    return lambda: np.matmul(a, b, out=out)


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
