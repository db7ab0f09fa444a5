"""Where our client's CPU goes: the same load through more and more of it. Run: `python benchmarks/client/layers.py`.

Each of our layers contains the one before, so the difference between two rows is what one layer costs: our sockets
(kernel stamps, batches); HTTP; decoding of events and counting of tokens; the generator, records, metrics, certificate
and report of `bench run`. The C floor stands beside them. CPU of the whole process, as the slope between two numbers of
requests.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from measure import measured
from ours import FLOOR, OURS, build_floor
from workloads import Task, Workload, workloads

from engine_adapters.mock.process import MockServer
from loadgen.collectors.machine import client_machine, machine_text

LAYERS = ("C floor", "sockets", "HTTP", "decoding", "bench run")
MEANING = {
    "C floor": "epoll, recv, a stamp a read, in C",
    "sockets": "recvmsg with the kernel's stamp, in batches, in Python",
    "HTTP": "the connection pool, chunks, the end of each answer",
    "decoding": "SSE, JSON, token events, usage, errors",
    "bench run": "schedule, records, run folder, metrics, certificate, report",
}
BODY = (
    b'{"model":"mock","stream":true,"stream_options":{"include_usage":true},"max_tokens":%d,'
    b'"messages":[{"role":"user","content":"hello"}]}'
)


@dataclass(frozen=True)
class Place:
    """Cores, and a folder for what is built and written."""

    server_core: int
    client_core: int
    folder: Path


def main() -> int:
    """Measure every layer under workloads a and b and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("the server and the client need a core each", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        place = Place(cores[0], cores[-1], Path(folder))
        if problem := build_floor(place.folder):
            print(problem, file=sys.stderr)
            return 2
        loads = workloads(1.0)
        rounds = [
            {(name, layer): slope_us(place, layer, loads[name]) for name in "ab" for layer in LAYERS}
            for _ in range(options.repeats)
        ]
    text = page(rounds, place)
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"layers-{datetime.now(UTC):%Y-%m-%d-%H%M}.md").write_text(text + "\n", encoding="utf-8")
    return 0


def page(rounds: list[dict[tuple[str, str], float]], place: Place) -> str:
    """The table with its conditions."""
    lines = [
        f"# Where our client's CPU goes, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "",
        f"{machine_text(client_machine())}; server on core {place.server_core}, client on core {place.client_core}. "
        f"Median of {len(rounds)} (smallest to largest), microseconds of CPU an event.",
        "",
        "| layer | a: us/event | of it | b: us/event | of it | what it adds |",
        "|---|---|---|---|---|---|",
    ]
    for layer in LAYERS:
        lines.append(f"| {layer} | {cell(rounds, 'a', layer)} | {cell(rounds, 'b', layer)} | {MEANING[layer]} |")
    return "\n".join(lines)


def cell(rounds: list[dict[tuple[str, str], float]], load: str, layer: str) -> str:
    """Median and range of a layer, and what it adds to the one before."""
    values = [each[load, layer] for each in rounds]
    at = LAYERS.index(layer)
    added = [each[load, layer] - (each[load, LAYERS[at - 1]] if at > 1 else 0.0) for each in rounds]
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f}) | {statistics.median(added):+.2f}"


def slope_us(place: Place, layer: str, load: Workload) -> float:
    """Microseconds of CPU an event: more requests minus fewer, so that imports and start-up fall out."""
    few, many = OURS.requests[load.name]
    with MockServer(itl_ms=load.itl_ms, phase=load.itl_ms > 0, cores={place.server_core}) as server:
        costs = [cost_s(place, layer, load, n, server.url) for n in (few, many)]
    print(f"{load.name} {layer}: {costs}", file=sys.stderr, flush=True)
    return (costs[1] - costs[0]) / (many - few) / load.events * 1e6


def cost_s(place: Place, layer: str, load: Workload, n_requests: int, url: str) -> float:
    """CPU seconds of a process that drives `n_requests` through a layer."""
    scratch = Path(tempfile.mkdtemp(dir=place.folder))
    task = Task(
        load, n_requests, url, scratch, place.folder if layer == "C floor" else Path(sys.executable).parent, scratch
    )
    command = [sys.executable, __file__, "--child", layer, url, str(load.users), str(n_requests), str(load.tokens)]
    if layer in ("C floor", "bench run"):
        command = (FLOOR if layer == "C floor" else OURS).command(task)
    found = measured(
        command,
        client_core=place.client_core,
        server_core=place.server_core,
        env=os.environ,
        folder=scratch,
        timeout_s=240,
        exit_codes=(0, 4),
    )
    shutil.rmtree(scratch)
    return found.cpu_s


# --- the child: one layer, driven as the generator drives it ------------------------------------------------------


def child(layer: str, url: str, users: int, n_requests: int, n_tokens: int) -> None:
    """Drive a layer with the event loop of `bench run`, the garbage collector off."""
    import uvloop

    gc.disable()
    port = int(url.rpartition(":")[2])
    body = BODY % n_tokens
    payload = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    drive = {"sockets": sockets, "HTTP": http, "decoding": decoding}[layer]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(drive(port, url, payload, body, users, n_requests))


async def sockets(port: int, _url: str, payload: bytes, _body: bytes, users: int, n_requests: int) -> None:
    import socket

    from engine_adapters.sockets import StampedSockets

    all_sockets, done = StampedSockets(), asyncio.Event()
    left = [n_requests - users, n_requests]  # to send, to end

    class User:
        """Sends again when the body's last bytes have come."""

        def received(self, instant_ns: int, lag_ns: int, data: bytes) -> None:
            if data.endswith(b"\r\n0\r\n\r\n"):
                left[1] -= 1
                if left[0] > 0:
                    left[0] -= 1
                    self.link.write(payload)
                elif not left[1]:
                    done.set()

        def lost(self, at_ns: int, error: Exception | None) -> None: ...

        def __init__(self) -> None:
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            self.link = all_sockets.add(sock, self)
            self.link.write(payload)

    everyone = [User() for _ in range(users)]
    await done.wait()
    assert len(everyone) == users


async def http(port: int, _url: str, payload: bytes, _body: bytes, users: int, n_requests: int) -> None:
    from engine_adapters.base import StreamOutcome
    from engine_adapters.wire import Wire

    wire = Wire("127.0.0.1", port, None, 10.0, 60.0, 4.0)
    left = iter(range(n_requests))

    async def user() -> None:
        for _ in left:
            await wire.request(payload, StreamOutcome(), nothing)

    await asyncio.gather(*(user() for _ in range(users)))
    await wire.close()


def nothing(_instant_ns: int, _data: bytes) -> None: ...


async def decoding(_port: int, url: str, _payload: bytes, body: bytes, users: int, n_requests: int) -> None:
    from engine_adapters.base import StreamOutcome
    from engine_adapters.dialect import Asking, DialectAdapter
    from engine_adapters.openai import CHAT
    from engine_adapters.transport import HttpClient

    adapter = DialectAdapter(HttpClient(url), CHAT, Asking("mock"))
    left = iter(range(n_requests))

    async def user() -> None:
        for i in left:
            outcome = StreamOutcome()
            await adapter.stream(body, f"r-{i}", outcome)
            assert outcome.ok, outcome.error

    await asyncio.gather(*(user() for _ in range(users)))
    await adapter.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], *(int(number) for number in sys.argv[4:7]))
    else:
        sys.exit(main())
