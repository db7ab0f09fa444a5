"""How fast a simulation is, and how near to the same engine in real time: `python benchmarks/simulate.py`.

Three tables: one replica against real time, with decode steps computed together and one by one; a fleet of 64 replicas,
with what 10^6 requests would take at that speed; and the simulated engine behind HTTP beside the same in virtual time.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from engine_adapters.reference.process import EngineProcess

BENCH = str(Path(sys.executable).parent / "bench")
MACHINE = ("--model", "llama-3.1-8b", "--hardware", "h200-sxm")
MILLION = 1_000_000


def cpu_s() -> float:
    """CPU time of all children so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def bench(*args: str) -> tuple[dict[str, Any], float, float]:
    """The summary that a command leaves, and how long it took: on the clock, and of CPU, which other work disturbs
    less. A simulation keeps one core busy, so on a free machine the two are the same."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "r"
        begun_s, before_s = time.perf_counter(), cpu_s()
        done = subprocess.run([BENCH, *args, "--out", str(out)], capture_output=True, text=True)
        took_s = time.perf_counter() - begun_s
        if done.returncode not in (0, 4):
            sys.exit(done.stderr)
        return json.loads((out / "summary.json").read_text()), took_s, cpu_s() - before_s


def load(rate: float, duration_s: int, scenario_s: int = 5) -> list[str]:
    """Settings of one open-loop point."""
    settings = [f"load.rates=[{rate:g}]", f"load.duration={duration_s}s", f"load.warmup={scenario_s}s"]
    settings += ["load.cooldown=20s", "load.max_in_flight=1000000"]
    return [word for setting in settings for word in ("--set", setting)]


def one_replica(duration_s: int) -> None:
    """Virtual seconds a second, from the command's start to its page."""
    print(f"one replica, chat on H200 / Llama-3.1-8B, {duration_s} s of load a point")
    print(f"{'req/s':>6} {'mode':>13} {'in flight':>10} {'took s':>7} {'CPU s':>7} {'times real (CPU)':>17}")
    for rate in (4, 16, 32):
        for mode in ((), ("--step-by-step",)):
            summary, took_s, busy_s = bench("simulate", "chat", *MACHINE, *load(rate, duration_s), *mode)
            in_flight = summary["points"][0]["concurrency_mean"]
            name = "step by step" if mode else "together"
            print(f"{rate:>6} {name:>13} {in_flight:>10.1f} {took_s:>7.1f} {busy_s:>7.1f} {duration_s / busy_s:>17.0f}")


def fleet(n_requests: int, replicas: int) -> None:
    """Requests/s of a fleet at a load that it bears, from the command's start to its page."""
    print(f"\n{replicas} replicas, about {n_requests:,} requests")
    print(f"{'workload':>12} {'router':>13} {'requests':>9} {'took s':>7} {'CPU s':>7} {'req/s CPU':>10}  10^6 take")
    fixed = ("--set", "workload.prompt.tokens=512", "--set", "workload.output.tokens=128")
    for name, each_rps, shape in (("512 / 128", 24, fixed), ("chat", 16, ())):
        for router in ("round_robin", "least_loaded", "prefix_aware"):
            rate = each_rps * replicas
            more = ("--replicas", str(replicas), "--router", router, *shape)
            _, took_s, busy_s = bench(
                "simulate", "chat", *MACHINE, *load(rate, max(1, round(n_requests / rate)), 1), *more
            )
            # Load goes on through the cool-down until the last measured request has ended: those were computed too.
            n = max(1, round(n_requests / rate) + 1) * rate
            print(
                f"{name:>12} {router:>13} {n:>9,} {took_s:>7.1f} {busy_s:>7.1f} {n / busy_s:>10.0f} "
                f"{MILLION / n * busy_s / 60:>6.1f} min"
            )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20:.2f} GiB")


def agreement(duration_s: int) -> None:
    """Throughput and TTFT p50 of the engine behind HTTP and in virtual time, the same schedule."""
    print(f"\nreal time beside virtual time, 1,000 tokens in, 64 out, {duration_s} s a point")
    print(f"{'req/s':>6} {'tok/s real':>11} {'virtual':>9} {'off':>7} {'TTFT p50 real':>14} {'virtual':>9} {'off':>7}")
    lengths = ["workload.prompt.tokens=1000", "workload.output.tokens=64", "workload.shared_prefix=null"]
    shape = [word for text in ("api=completions", *lengths) for word in ("--set", text)]
    with EngineProcess("llama-3.1-8b", extra_args=["--executor", "simulated", *MACHINE[2:]]) as engine:
        for rate in (2, 6, 12):
            args = [*load(rate, duration_s), *shape]
            real, *_ = bench("sweep", "chat", "--url", engine.url, *args)
            virtual, *_ = bench("simulate", "chat", *MACHINE, *args)
            rows = [summary["points"][0] for summary in (real, virtual)]
            tps = [row["output_tps"] for row in rows]
            ttft = [row["metrics"]["ttft"]["from_sent"]["p50"] * 1e3 for row in rows]
            print(
                f"{rate:>6} {tps[0]:>11.1f} {tps[1]:>9.1f} {tps[0] / tps[1] - 1:>+7.1%} "
                f"{ttft[0]:>11.2f} ms {ttft[1]:>6.2f} ms {ttft[0] / ttft[1] - 1:>+7.1%}"
            )


def main() -> None:
    """All three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--duration", type=int, default=300, help="virtual seconds of a point for one replica")
    parser.add_argument("--requests", type=int, default=40_000, help="of the fleet")
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--real", type=int, default=20, help="seconds of a point in real time")
    args = parser.parse_args()
    one_replica(args.duration)
    fleet(args.requests, args.replicas)
    agreement(args.real)


if __name__ == "__main__":
    main()
