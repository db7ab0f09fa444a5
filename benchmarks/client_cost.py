"""CPU that our client spends on an event and on a request, beside stock httpx. Run: `python benchmarks/client_cost.py`.

The mock server has one core and the client another. CPU is user and system time of the client's process, taken as the
slope between two numbers of requests, so that imports and start-up fall out; medians of `--repeats`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from engine_adapters.mock.process import MockServer, build

TOKENS = 128
EXTRA_EVENTS = 4  # role, finish, usage and [DONE]
CLIENTS = ("httpx", "asyncio", "uvloop")


@dataclass(frozen=True)
class Workload:
    """`users` requests at a time; CPU is compared between the two numbers of requests."""

    users: int
    itl_ms: float
    requests: tuple[int, int]
    requests_httpx: tuple[int, int]


WORKLOADS = {
    "burst": Workload(64, 0, (1000, 5000), (200, 600)),
    "paced": Workload(256, 10, (512, 2048), (256, 768)),
}


def core(which: int) -> set[int] | None:
    """One core of those that this process may use; None where it can't be chosen."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return {cores[which % len(cores)]}


def pin_client() -> None:
    if (cores := core(1)) is not None:
        os.sched_setaffinity(0, cores)


def measure(client: str, url: str, users: int, n_requests: int) -> float:
    """CPU seconds of a process of its own."""
    command = [sys.executable, __file__, "--child", client, url, str(users), str(n_requests)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, preexec_fn=pin_client)
    return float(json.loads(done.stdout)["cpu_s"])


def slope_us(client: str, url: str, load: Workload) -> float:
    """Microseconds of CPU a request."""
    few, many = load.requests_httpx if client == "httpx" else load.requests
    return (measure(client, url, load.users, many) - measure(client, url, load.users, few)) / (many - few) * 1e6


def child(client: str, url: str, users: int, n_requests: int) -> None:
    """Drive the adapter as the generator does, garbage collector off, and print what it cost."""
    if client == "uvloop":
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    gc.disable()
    failed = asyncio.run(drive(client, url, users, n_requests))
    assert not failed, failed
    print(json.dumps({"cpu_s": time.process_time()}))


async def drive(client: str, url: str, users: int, n_requests: int) -> list[str | None]:
    import httpx

    from engine_adapters.base import Request, StreamOutcome
    from engine_adapters.openai import OpenAIAdapter
    from engine_adapters.transport import HttpClient

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    transport = httpx.AsyncHTTPTransport(limits=limits) if client == "httpx" else None
    adapter = OpenAIAdapter(HttpClient(url, transport=transport), "mock")
    body = adapter.encode(Request("hello world " * 20, TOKENS))
    left = iter(range(n_requests))
    failed: list[str | None] = []

    async def user() -> None:
        for i in left:
            outcome = StreamOutcome()
            await adapter.stream(body, f"r-{i}", outcome)
            if not outcome.ok or outcome.n_token_events != TOKENS:
                failed.append(outcome.error)

    await asyncio.gather(*(user() for _ in range(users)))
    await adapter.close()
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=CLIENTS)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    args = parser.parse_args()
    how = build()
    if how.note:
        print(how.note, file=sys.stderr)
    print(f"{'workload':9}{'client':9}{'us/event':>10}{'us/request':>12}   spread of us/event")
    for name in args.workloads:
        itl_ms = WORKLOADS[name].itl_ms
        with MockServer(ttft_ms=itl_ms, itl_ms=itl_ms, phase=True, cores=core(0), how=how) as mock:
            for client in args.clients:
                costs = [slope_us(client, mock.url, WORKLOADS[name]) for _ in range(args.repeats)]
                events = [cost / (TOKENS + EXTRA_EVENTS) for cost in costs]
                middle = statistics.median(events)
                print(
                    f"{name:9}{client:9}{middle:10.2f}{statistics.median(costs):12.0f}"
                    f"   {min(events):.2f} to {max(events):.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
