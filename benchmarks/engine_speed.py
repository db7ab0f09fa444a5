"""How fast the numpy engine is: `python benchmarks/engine_speed.py`, one row for each number of users in flight.

Each row is of decode steps of a running batch: output tokens/s of one core, ITL, and the fraction of this machine's
roofline, which is the time that the step's bytes or FLOPs need at the machine's measured ceilings over the step's
time. A step's time is its CPU time, so that other work on the machine counts only as far as it takes caches.

With `--llama-cpp DIR` llama.cpp computes the same weights at the same loads in turns with it, in float32 on one thread;
the last columns are its tokens/s and ours over its, and it is checked that both get the same logits. DIR holds libllama
and libggml; a Release build is in the npm package @node-llama-cpp/linux-x64 (`npm pack`, then bins/linux-x64).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from engine_adapters.reference.calibrate import Ceilings, combine, measure_ceilings
from engine_adapters.reference.config import BYTES_PER_WEIGHT, MODELS, PROCESS_ENVIRONMENT, params_by_group

USERS = (1, 2, 4, 8, 16, 32, 64)
MAX_LOGITS_ERROR = 1e-3
HEADERS = ("users", "tokens/s", "ITL ms", "of the roofline", "roof", "llama.cpp tokens/s", "ratio")


@dataclass(frozen=True, slots=True)
class Row:
    """One load: medians over the steps. `roof` is the one that the fraction is of."""

    users: int
    step_s: float
    n_bytes: float
    flops: float
    llama_step_s: float | None
    fraction: float = 0.0
    roof: str = ""

    def cells(self) -> list[str]:
        """The row of the table."""
        theirs = self.llama_step_s
        told = [f"{self.users / theirs:,.0f}", f"{theirs / self.step_s:.2f}"] if theirs else ["", ""]
        rate, itl = f"{self.users / self.step_s:,.0f}", f"{1e3 * self.step_s:.2f}"
        return [str(self.users), rate, itl, f"{self.fraction:.0%}", self.roof, *told]


def main() -> None:
    """Measure and print."""
    if any(os.environ.get(name) != value for name, value in PROCESS_ENVIRONMENT.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | PROCESS_ENVIRONMENT)
    args = _arguments()
    weight_bytes = BYTES_PER_WEIGHT * sum(params_by_group(MODELS[args.model]).values())
    before = measure_ceilings(weight_bytes)
    rows = list(measure(args))
    ceilings = combine(before, measure_ceilings(weight_bytes))
    rows = [against(row, ceilings) for row in rows]
    _print(args, rows, ceilings)
    if args.json:
        args.json.write_text(json.dumps({"ceilings": asdict(ceilings), "rows": [asdict(row) for row in rows]}) + "\n")


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """One row a load, with progress on stderr."""
    with tempfile.TemporaryDirectory() as temporary:
        for users in args.users:
            print(f"{users} users ...", file=sys.stderr, flush=True)
            ours, costs = our_steps(args.model, users, args.prompt, args.steps)
            if args.llama_cpp is None:
                times, their_times = [ours() for _ in range(args.steps)], []
            else:
                theirs = llama_steps(args, users, Path(temporary))
                times, their_times = _in_turns(ours, theirs, args.steps)
            n_bytes, flops = (median(values) for values in zip(*costs, strict=True))
            yield Row(users, median(times), n_bytes, flops, median(their_times) if their_times else None)


def _in_turns(
    ours: Callable[[], float], theirs: Callable[[], float], n_steps: int, block: int = 8
) -> tuple[list[float], list[float]]:
    """Step times of both, some steps of one and some of the other, so that both meet the same machine."""
    our_times: list[float] = []
    their_times: list[float] = []
    for _ in range(n_steps // block):
        our_times += [ours() for _ in range(block)]
        their_times += [theirs() for _ in range(block)]
    return our_times, their_times


def against(row: Row, ceilings: Ceilings) -> Row:
    """The row with its fraction of the roofline: max(bytes / bandwidth, FLOPs / peak) over the step's time."""
    memory_s, compute_s = row.n_bytes / ceilings.bandwidth_bps, row.flops / ceilings.flops
    roof = "bandwidth" if memory_s > compute_s else "compute"
    known = {name: value for name, value in asdict(row).items() if name not in ("fraction", "roof")}
    return Row(**known, fraction=max(memory_s, compute_s) / row.step_s, roof=roof)


def our_steps(name: str, users: int, n_prompt: int, n_steps: int) -> tuple[Callable[[], float], list[Any]]:
    """A function that makes one decode step of a full batch and returns its seconds, and the costs as it goes."""
    from engine_adapters.reference.config import EngineConfig
    from engine_adapters.reference.engine import EngineCore
    from engine_adapters.reference.executors.numpy import NumpyExecutor
    from engine_adapters.reference.request import Request
    from engine_adapters.reference.weights import random_weights

    config = EngineConfig(max_model_len=1024, enable_prefix_caching=False)
    core = EngineCore(config, NumpyExecutor(MODELS[name], config, random_weights(MODELS[name], 0)))
    requests = [Request(str(i), p, n_prompt + n_steps, True) for i, p in enumerate(_prompts(name, users, n_prompt))]
    for request in requests:
        core.add(request)
    while any(request.num_uncomputed_tokens > 1 for request in requests):
        core.step()
    costs: list[Any] = []

    def step() -> float:
        bytes_before, flops_before = core.totals.n_bytes, core.totals.flops
        began = time.process_time()
        core.step()
        took_s = time.process_time() - began
        costs.append((core.totals.n_bytes - bytes_before, core.totals.flops - flops_before))
        return took_s

    return step, costs


def llama_steps(args: argparse.Namespace, users: int, scratch: Path) -> Callable[[], float]:
    """The same of llama.cpp, its greedy choice included."""
    from gguf_writer import write_gguf
    from llama_library import LlamaCpp

    from engine_adapters.reference.weights import random_weights

    path = scratch / f"{args.model}.gguf"
    if not path.exists():
        write_gguf(path, MODELS[args.model], random_weights(MODELS[args.model], 0))
    llama, prompts = LlamaCpp(args.llama_cpp, path, users, 512), _prompts(args.model, users, args.prompt)
    logits = llama.prefill(prompts)
    _check_same(logits[0], _our_logits(args.model, prompts[0]))
    tokens, seqs, length = logits.argmax(axis=1).tolist(), list(range(users)), args.prompt

    def step() -> float:
        nonlocal tokens, length
        began = time.process_time()
        tokens = llama.decode(tokens, [length] * users, seqs, seqs).argmax(axis=1).tolist()
        length += 1
        return time.process_time() - began

    return step


def _our_logits(name: str, prompt: list[int]) -> Any:
    from engine_adapters.reference.config import EngineConfig
    from engine_adapters.reference.executors.numpy import NumpyExecutor
    from engine_adapters.reference.request import Request
    from engine_adapters.reference.scheduler import ScheduledRequest
    from engine_adapters.reference.weights import random_weights

    executor = NumpyExecutor(MODELS[name], EngineConfig(max_model_len=1024), random_weights(MODELS[name], 0))
    request = Request("0", prompt, 1)
    request.block_ids = list(range(-(-len(prompt) // executor.block_size)))
    return executor.logits(executor.prepare([ScheduledRequest(request, len(prompt), True)]))[0]


def _check_same(theirs: Any, ours: Any) -> None:
    error = float(abs(theirs - ours).max())
    if error > MAX_LOGITS_ERROR:
        sys.exit(
            f"error: llama.cpp's logits differ from ours by {error:.2g}: it computes another model, or not in float32"
        )


def _prompts(name: str, users: int, n_prompt: int) -> list[list[int]]:
    import numpy as np

    rng = np.random.default_rng(0)
    return [rng.integers(0, MODELS[name].vocab_size, n_prompt).tolist() for _ in range(users)]


def _print(args: argparse.Namespace, rows: list[Row], ceilings: Ceilings) -> None:
    print(
        f"{args.model}, float32, one thread, decode steps behind {args.prompt} prompt tokens, {args.steps} steps a row"
    )
    print(
        f"ceilings: {ceilings.bandwidth_bps / 1e9:.1f} GB/s, {ceilings.flops / 1e9:.1f} GFLOP/s ({ceilings.source})\n"
    )
    table = [list(HEADERS), ["---:"] * len(HEADERS), *(row.cells() for row in rows)]
    n_columns = len(HEADERS) if args.llama_cpp else 5
    for cells in table:
        print("| " + " | ".join(cells[:n_columns]) + " |")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Speed of the numpy engine, and its fraction of the roofline.")
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--users", type=lambda text: [int(n) for n in text.split(",")], default=list(USERS))
    parser.add_argument("--prompt", type=int, default=128, help="prompt tokens, 512 at most (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=64, help="decode steps a row (default: %(default)s)")
    parser.add_argument("--llama-cpp", type=Path, metavar="DIR", help="a folder with libllama and libggml")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
