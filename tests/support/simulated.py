"""Small simulated deployments and fleets for tests."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from engine_adapters.reference.config import EngineConfig
from engine_adapters.reference.deployment import Deployment
from engine_adapters.reference.fleet import Answer, Fleet, FleetConfig
from loadgen.roofline.hardware import find_hardware
from loadgen.roofline.model_shape import find_model

FOREVER_NS = 1 << 62


def deployment(model: str = "llama-3.1-8b", hardware: str = "h200-sxm", **changes: Any) -> Deployment:
    """One replica; any field may be changed."""
    return Deployment(find_model(model), find_hardware(hardware), **changes)


def fleet(deployed: Deployment | None = None, engine: dict[str, int] | None = None, **changes: Any) -> Fleet:
    """A fleet of replicas with 2,000 KV blocks each, unless told otherwise."""
    settings = {"max_num_seqs": 64, "max_num_batched_tokens": 512, "num_blocks": 2000, "max_model_len": 4096}
    settings |= {"num_speculative_tokens": (deployed or deployment()).speculation.n_tokens} | (engine or {})
    return Fleet(replace(FleetConfig(deployed or deployment(), EngineConfig(**settings)), **changes))


def drain(server: Fleet, until_ns: int = FOREVER_NS) -> list[Answer]:
    """All answers up to an instant."""
    found: list[Answer] = []
    while (at_ns := server.next_at_ns()) is not None and at_ns <= until_ns:
        found += server.advance(until_ns)
    return found


def serve(
    server: Fleet, n: int, rate_rps: float, seed: int = 1, abort_share: float = 0.0, n_prefixes: int = 0
) -> list[Answer]:
    """`n` requests of random length in Poisson order; the answers by number. Some are given up after a while."""
    rng, at_ns, answers = Random(seed), 0, []
    gone: list[tuple[int, int]] = []
    for number in range(n):
        at_ns += round(rng.expovariate(rate_rps) * 1e9)
        while gone and gone[0][0] <= at_ns:
            when_ns, which = gone.pop(0)
            answers += drain(server, when_ns)
            server.abort(which, when_ns)
        answers += drain(server, at_ns)
        prefix = [-1 - rng.randrange(n_prefixes)] * 64 if n_prefixes else []
        prompt = [*prefix, number, *[0] * rng.randrange(1, 900)]
        server.submit(number, at_ns, prompt, rng.randrange(1, 200))
        if rng.random() < abort_share:
            gone = sorted([*gone, (at_ns + rng.randrange(1, 10**9), number)])
    return sorted(answers + drain(server), key=lambda answer: answer.number)
