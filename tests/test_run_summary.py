"""A manifest and its records become a summary: conditions say only what is known, bounds know what was cached."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest

from engine_adapters.reference.calibrate import Ceilings
from engine_adapters.reference.config import reference_model_shape
from loadgen.bound_spec import spec_for_bundled
from loadgen.collectors.records import PointLog, RequestRecord
from loadgen.run_summary import intended_cached_share, mix_of, summarize
from loadgen.scenario.loader import load_scenario

S = 1_000_000_000
SMOKE, RAG = load_scenario("smoke"), load_scenario("rag")


def answer(index: int, **values: Any) -> RequestRecord:
    """A complete answer of 16 tokens, 10 ms apart, to a prompt of 32."""
    at = 10 * S + index * S // 4
    record = RequestRecord(0, index, "measured", "ok", at, 1.7e9 + at / 1e9, at, at + 1000)
    record.first_token_at_ns = record.first_answer_at_ns = at + S // 20
    record.last_token_at_ns = record.first_token_at_ns + 15 * S // 100
    record.stream_end_at_ns = record.last_token_at_ns + 1000
    record.prompt_tokens_asked = record.prompt_tokens = 32
    record.output_tokens_asked = record.output_tokens = record.n_token_events = 16
    record.output_tokens_source, record.cached_tokens = "usage", 0
    record.gap_ns, record.gap_events, record.gap_bytes = (
        array("q", [0] + [S // 100] * 15),
        array("i", [1] * 16),
        array("i", [100] * 16),
    )
    record.reads_total = record.reads_kernel_stamped = 18
    for name, value in values.items():
        setattr(record, name, value)
    return record


def a_log() -> PointLog:
    bins = [0.8] * 120
    return PointLog(
        0, "open", 4.0, None, 9 * S, 1.7e9, 10 * S, 20 * S, 21 * S, 40, 0.8, 2, 0.1, bins, 0.001, 0.1, 1, 5000, 0.0
    )


def manifest(**changes: Any) -> dict[str, Any]:
    machine = {"cpu": "a CPU", "cores": 2, "memory_gib": 4.0, "system": "Linux 6", "python": "3.11"}
    base = {
        "scenario": SMOKE.as_json(),
        "server": {"model": "m", "engine": "e 1.0", "url": "http://h:1", "flags": None},
        "client": {"machine": machine, "loop": "uvloop"},
        "roofline": {"reason": "bound unknown: tell me the hardware"},
        "finished": True,
        "schedule_id": "0" * 16,
    }
    return base | changes


def test_what_is_not_known_is_the_word_unknown() -> None:
    conditions = summarize(manifest(), [(a_log(), [answer(i) for i in range(40)])])["conditions"]
    assert conditions["engine_flags"] == conditions["hardware"] == conditions["precision"] == "unknown"
    assert conditions["model"] == "m"
    assert conditions["token_source"] == "usage (100%)"
    assert conditions["receive_stamps"] == "by the kernel"
    assert "poisson" in conditions["load"]
    assert all(isinstance(value, str) and value for value in conditions.values())


def test_the_bundled_engine_has_a_bound_and_every_point_a_share_of_it() -> None:
    ceilings = Ceilings(70e9, 100e9, "measured", 13_600_000)
    spec = spec_for_bundled(reference_model_shape("tiny"), ceilings, 24e9)
    summary = summarize(manifest(roofline=spec), [(a_log(), [answer(i) for i in range(40)])])
    [point] = summary["points"]
    assert point["bound"]["limiter"] in ("bandwidth", "compute", "latency", "kv capacity")
    assert point["bound_fraction"] == pytest.approx(point["output_tps"] / point["bound"]["output_tps"])
    curve = summary["roofline"]["curve"]
    assert np.all(np.diff([row["bound_tps"] for row in curve]) >= -1e-9)
    assert summary["roofline"]["kv_wall_concurrency"] > 0


def test_an_unknown_bound_says_what_to_tell() -> None:
    summary = summarize(manifest(), [(a_log(), [answer(i) for i in range(40)])])
    assert summary["roofline"]["reason"] == "bound unknown: tell me the hardware"
    assert summary["points"][0]["bound"]["output_tps"] is None


def test_unreported_cache_hits_are_taken_as_the_whole_shared_prefix() -> None:
    silent, told = answer(0, cached_tokens=None, prompt_tokens=600), answer(1, cached_tokens=100, prompt_tokens=600)
    mix = mix_of([silent, told], RAG)
    assert mix.cached_tokens is not None
    assert mix.cached_tokens.tolist() == [512, 100]
    assert mix_of([silent], SMOKE).cached_tokens.tolist() == [0]  # type: ignore[union-attr]


def test_the_intended_cache_share_is_the_prefixs_and_unknown_without_a_prefix_cache() -> None:
    cached = [answer(i, prompt_tokens=1024, cached_tokens=512) for i in range(4)]
    cold = [answer(i, prompt_tokens=1024, cached_tokens=0) for i in range(4)]
    assert intended_cached_share(RAG, [(a_log(), cached)]) == pytest.approx(0.5)
    assert intended_cached_share(RAG, [(a_log(), cold)]) is None
    assert intended_cached_share(SMOKE, [(a_log(), cold)]) == 0.0


def test_an_interrupted_run_is_not_called_finished() -> None:
    log = a_log()
    log.interrupted = True
    assert not summarize(manifest(), [(log, [answer(i) for i in range(10)])])["finished"]
    assert not summarize(manifest(finished=False), [(a_log(), [answer(i) for i in range(40)])])["finished"]
