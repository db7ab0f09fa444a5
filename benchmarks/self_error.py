"""How far our stamps are from what the bundled engine logged itself: `python benchmarks/self_error.py`.

Prints a table with one row a load: error of TTFT and of ITL (client - server, the same monotonic clock), lateness of
sends, and the arrivals as the receiver stamped them. Goal: median error under 1 ms at light load.
"""

from __future__ import annotations

import json
from urllib.request import urlopen

import anyio
import numpy as np

from engine_adapters.dialect import Asking, DialectAdapter
from engine_adapters.openai import CHAT
from engine_adapters.reference.process import EngineProcess
from engine_adapters.transport import HttpClient
from loadgen.analysis.self_error import SelfError, self_error
from loadgen.collectors.records import RequestRecord
from loadgen.scenario.loader import load_scenario
from loadgen.scenario.prompts import TextUnit
from loadgen.scenario.schedule import plan_point
from loadgen.session import Session

# (label, requests/s, arrivals, requests): 32 tokens in, 16 out
LOADS = (
    ("light, constant", 5.0, "constant", 100),
    ("light, poisson", 5.0, "poisson", 100),
    ("moderate, poisson", 20.0, "poisson", 400),
    ("moderate, constant", 20.0, "constant", 400),
    ("heavy, poisson", 40.0, "poisson", 400),
)
FORMAT = "{:20} {:>6} {:>5} {:>18} {:>18} {:>16} {:>9} {:>7}"
HEAD = FORMAT.format("load", "req/s", "n", "TTFT error ms", "ITL error ms", "late ms", "achieved", "gap CV")
BELOW = FORMAT.format("", "", "", "p50 / p99", "p50 / p99", "p50 / p99", "/ asked", "")


async def drive(url: str, label: str, rate: float, arrivals: str, n: int) -> tuple[str, list[RequestRecord]]:
    """One load point; returns its run id and the records of its measured requests."""
    client = HttpClient(url)
    scenario = load_scenario("smoke", [f"load.arrivals={arrivals}", "load.warmup=1s", "load.cooldown=2s"])
    run_id = label.replace(" ", "-").replace(",", "")
    session = Session(
        scenario, DialectAdapter(client, CHAT, Asking("tiny")), TextUnit("char", 1.0, 3.0), run_id, run_id
    )
    _, records = await session.measure(plan_point(scenario, point=0, rate_rps=rate, n_requests=n))
    await client.close()
    return run_id, [record for record in records if record.phase == "measured"]


def two(values: np.ndarray) -> str:
    """Median and 99th percentile in milliseconds."""
    return f"{np.median(values) * 1e3:.3f} / {np.percentile(values, 99) * 1e3:.3f}" if len(values) else "n/a"


def row(label: str, rate: float, records: list[RequestRecord], error: SelfError) -> str:
    """One line of the table."""
    late = np.array([(r.sent_at_ns - r.intended_at_ns) / 1e9 for r in records if r.sent_at_ns])
    gaps = error.arrival_gaps_s
    achieved, gap_cv = f"{1 / gaps.mean() / rate:.3f}", f"{gaps.std() / gaps.mean():.3f}"
    errors = (two(error.ttft_s), two(np.abs(error.itl_s)), two(late))
    return FORMAT.format(label, f"{rate:g}", error.n, *errors, achieved, gap_cv)


def main() -> None:
    """Start the engine, drive the loads, print the table."""
    print(HEAD)
    print(BELOW)
    with EngineProcess(model="tiny") as engine:
        for label, rate, arrivals, n in LOADS:
            run_id, records = anyio.run(drive, engine.url, label, rate, arrivals, n)
            with urlopen(f"{engine.url}/truth") as reply:
                truth = json.load(reply)["requests"]
            print(row(label, rate, records, self_error(records, run_id, truth)), flush=True)


if __name__ == "__main__":
    main()
