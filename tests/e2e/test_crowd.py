"""Hundreds of requests at one instant over real sockets; benchmarks/crowd.py does the same with 5,000."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from engine_adapters.reference.process import EngineProcess

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from crowd import crowd, engine_counts, outcomes


@pytest.mark.e2e
def test_a_crowd_ends_as_200_or_429_who_comes_back_as_told_is_served_and_the_engine_counts_the_same() -> None:
    with EngineProcess(extra_args=["--max-num-seqs", "16", "--max-waiting", "64"]) as engine:
        first, second = asyncio.run(crowd(engine.url, 400, patience_s=3.0))
        counted = engine_counts(engine.url)
    assert first.ends["200"] >= 80
    assert first.ends["200"] + first.ends["429"] == 400
    assert len(first.retry_after_s) == first.ends["429"] > 200
    assert second.ends.total() > 4
    assert second.ends["200"] >= 0.9 * second.ends.total()
    assert counted == outcomes(first, second)
