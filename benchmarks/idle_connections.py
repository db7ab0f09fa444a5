"""What a request costs the client while many connections are idle: `python benchmarks/idle_connections.py`.

Prints CPU of the client's process per request, its own and the kernel's for it, one request after another against the
mock server, with 10, 1,000 and 10,000 idle connections. Goal: a cost of ours that does not grow; what the kernel needs
to find one of many sockets is not ours. Needs as many open files.
"""

from __future__ import annotations

import os

import anyio

from engine_adapters.base import PreflightError, Request, StreamOutcome
from engine_adapters.dialect import Asking, DialectAdapter
from engine_adapters.mock.process import MockServer
from engine_adapters.network import allow_descriptors
from engine_adapters.openai import CHAT
from engine_adapters.transport import HttpClient
from loadgen.commands.measuring import uvloop_is_there
from loadgen.generator.point import quiet_runtime

LEVELS = (10, 1_000, 10_000)
N_ROUNDS, N_REQUESTS, N_SETTLE = 3, 3_000, 100  # a level's cost is the least of its rounds
FORMAT = "{:>8} {:>18} {:>18}"


async def cost_us(url: str, n_idle: int) -> tuple[float, float]:
    """(user, system) microseconds of CPU per request, with the runtime as it is while a point runs."""
    adapter = DialectAdapter(HttpClient(url), CHAT, Asking("m"))
    await adapter.warm(n_idle)
    body = adapter.encode(Request("hi", 1))
    with quiet_runtime():
        await ask(adapter, body, N_SETTLE)
        before = os.times()
        await ask(adapter, body, N_REQUESTS)
        after = os.times()
    await adapter.close()
    return (after.user - before.user) / N_REQUESTS * 1e6, (after.system - before.system) / N_REQUESTS * 1e6


async def ask(adapter: DialectAdapter, body: bytes, n: int) -> None:
    """So many requests in turn, each on a connection that is open."""
    for i in range(n):
        outcome = StreamOutcome()
        await adapter.stream(body, f"r{i}", outcome)
        assert outcome.ok, outcome.error
        assert outcome.connected_at_ns is None, "it opened a connection"


def main() -> None:
    """Print the table."""
    print(FORMAT.format("idle", "user us/request", "kernel us/request"))
    with MockServer() as mock:
        options = {"use_uvloop": uvloop_is_there()}
        for n_idle in LEVELS:
            try:
                allow_descriptors(n_idle)
            except PreflightError as error:
                print(f"{n_idle:>8,}  {error}")
                continue
            rounds = [anyio.run(cost_us, mock.url, n_idle, backend_options=options) for _ in range(N_ROUNDS)]
            print(FORMAT.format(f"{n_idle:,}", *(f"{min(column):.0f}" for column in zip(*rounds, strict=True))))


if __name__ == "__main__":
    main()
