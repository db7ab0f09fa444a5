"""Arrivals are the process that was asked for, by the receiver's stamps (cases B51 and B53's kind)."""

from __future__ import annotations

import math

import anyio
import numpy as np
import pytest
from support.instant_server import instant_server

from engine_adapters.dialect import Asking, DialectAdapter
from engine_adapters.openai import CHAT
from engine_adapters.transport import HttpClient
from loadgen.collectors.records import RequestRecord
from loadgen.scenario.loader import load_scenario
from loadgen.scenario.prompts import TextUnit
from loadgen.scenario.schedule import plan_point
from loadgen.session import Session

pytestmark = pytest.mark.e2e
RATE = 200.0


def drive(arrivals: str, n: int) -> tuple[np.ndarray, list[RequestRecord], list[float]]:
    """Gaps between arrivals at the server in seconds, the records, and the planned instants."""
    scenario = load_scenario(
        "smoke", [f"load.arrivals={arrivals}", "workload.prompt.tokens=8", "workload.output.tokens=1", "seed=11"]
    )
    plan = plan_point(scenario, point=0, rate_rps=RATE, warmup_s=0.0, cooldown_s=1.0, n_requests=n)

    async def main(url: str) -> list[RequestRecord]:
        client = HttpClient(url)
        session = Session(scenario, DialectAdapter(client, CHAT, Asking("m")), TextUnit("char", 1.0, 0.0), "s", "r")
        _, records = await session.measure(plan)
        await client.close()
        return records

    with instant_server() as (url, log):
        records = anyio.run(main, url)
        measured = [record for record in records if record.phase == "measured"]
        return np.diff(np.sort(log())[:n]) / 1e9, measured, [request.at_s for request in plan.requests[:n]]


def test_constant_arrivals_keep_the_asked_rate_case_b51() -> None:
    gaps, records, _ = drive("constant", 2000)
    assert len(gaps) == 1999
    assert 198.0 < 1 / gaps.mean() < 202.0
    lag_s = [(record.sent_at_ns - record.intended_at_ns) / 1e9 for record in records if record.sent_at_ns]
    assert len(lag_s) == 2000
    assert np.mean(lag_s) < 0.005 * 10  # the case asks for 5 ms; ten times that on a machine that is not ours alone


def test_poisson_arrivals_are_poisson() -> None:
    gaps, records, planned = drive("poisson", 1000)
    # The seed fixes the plan: what is tested is that the wire has the plan's own statistics, and those are Poisson's.
    asked = np.diff(planned)
    assert asked.std() / asked.mean() == pytest.approx(1.0, abs=4 / math.sqrt(len(asked)))
    assert gaps.mean() == pytest.approx(asked.mean(), rel=0.01)
    assert gaps.std() / gaps.mean() == pytest.approx(asked.std() / asked.mean(), abs=0.1)
    counts = np.histogram(np.cumsum(gaps), bins=np.arange(0, gaps.sum(), 0.1))[0]
    # Index of dispersion: 1 within 4 standard errors, sqrt(2/n).
    assert counts.var(ddof=1) / counts.mean() == pytest.approx(1.0, abs=4 * math.sqrt(2 / len(counts)))
    assert {record.status for record in records} == {"ok"}
