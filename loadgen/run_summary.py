"""A run folder becomes its summary: conditions, roofline and all that analysis derives from the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.analysis.goodput import Objective
from loadgen.analysis.summary import BoundAt, summarize_run
from loadgen.bound_spec import target_from
from loadgen.collectors.machine import machine_text
from loadgen.collectors.records import PointLog, RequestRecord
from loadgen.collectors.run_folder import SUMMARY, load_run, write_json
from loadgen.roofline import bounds
from loadgen.scenario import describe
from loadgen.scenario.schema import Scenario

Points = Sequence[tuple[PointLog, list[RequestRecord]]]
UNKNOWN = "unknown"


def summarize_folder(path: Path, save: bool = True) -> dict[str, Any]:
    """Read a run folder and derive its summary; with `save` summary.json is written beside the records.

    Raises FolderError when `path` is no run folder. A folder of an interrupted run gives what was measured.
    """
    run = load_run(path)
    summary = summarize(run.manifest, run.points)
    if save:
        write_json(path / SUMMARY, summary)
    return summary


def summarize(manifest: Mapping[str, Any], points: Points) -> dict[str, Any]:
    """The summary of a manifest and its points; pure."""
    target = target_from(manifest["roofline"])
    scenario = Scenario.model_validate(manifest["scenario"])
    return summarize_run(
        manifest,
        points,
        objectives=objectives_of(scenario),
        conditions=conditions(manifest, points),
        roofline=roofline_section(manifest, scenario, target, points),
        bound_at=bound_function(target, scenario),
        cached_share_intended=intended_cached_share(scenario, points),
    )


def objectives_of(scenario: Scenario) -> list[Objective]:
    """The scenario's SLO as analysis takes it."""
    return [Objective(metric, o.stat, o.limit_s) for metric, o in scenario.slo.objectives.items()]


def bound_function(target: bounds.Target | None, scenario: Scenario) -> BoundAt | None:
    """The bound at a concurrency for the answers that a point really got."""
    if target is None:
        return None

    def bound_at(answers: Sequence[RequestRecord], concurrency: float) -> dict[str, Any]:
        bound = bounds.bound_at(target, mix_of(answers, scenario), concurrency)
        return {
            "output_tps": bound.output_tps,
            "limiter": bound.limiter,
            "bandwidth_tps": bound.bandwidth_tps,
            "compute_tps": bound.compute_tps,
            "latency_tps": bound.latency_tps,
            "reason": bound.reason,
        }

    return bound_at


def mix_of(answers: Sequence[RequestRecord], scenario: Scenario) -> bounds.Mix:
    """The lengths of complete answers, and what of each prompt came from a cache.

    Where the server does not report cached tokens, the whole shared prefix is taken as cached: the bound must err high.
    """
    prefix = scenario.workload.shared_prefix
    shared = prefix.tokens if prefix else 0
    lengths = [
        (
            max(r.prompt_tokens or r.prompt_tokens_asked, 1),
            r.output_tokens,
            r.cached_tokens if r.cached_tokens is not None else shared,
        )
        for r in answers
    ]
    prompt, output, cached = np.array(lengths, dtype=np.float64).T
    return bounds.Mix(prompt, output, cached)


def intended_cached_share(scenario: Scenario, points: Points) -> float | None:
    """The share of prompt tokens that the scenario's shared prefix makes cacheable; 0 without one.

    None when nothing at all was cached: the server then has no prefix cache, which is its user's choice and no fault
    of the measurement.
    """
    prefix = scenario.workload.shared_prefix
    answers = [record for record in _answers(points) if record.prompt_tokens]
    if prefix is None:
        return 0.0
    if not any(record.cached_tokens for record in answers):
        return None
    return prefix.tokens * len(answers) / sum(record.prompt_tokens or 0 for record in answers)


def roofline_section(
    manifest: Mapping[str, Any], scenario: Scenario, target: bounds.Target | None, points: Points
) -> dict[str, Any]:
    """The model's curve over the run's concurrencies, for the lengths of all its requests."""
    spec = manifest["roofline"]
    complete = [r for _, records in points for r in records if r.status == "ok" and r.output_tokens]
    section: dict[str, Any] = {
        "model": None,
        "hardware": None,
        "devices": spec.get("devices", 1) * spec.get("replicas", 1),
        "precision": spec.get("precision"),
        "ceilings": None,
        "curve": [],
        "kv_wall_concurrency": None,
        "knee_concurrency": None,
        "assumptions": [],
        "reason": spec.get("reason"),
    }
    if target is None:
        return section
    section |= {"model": target.model.name, "hardware": target.hardware.name, "assumptions": bounds.assumptions(target)}
    section["ceilings"] = {
        "bandwidth_gbs": target.bandwidth_bps / 1e9,
        "tflops": target.flops / 1e12 if target.flops else None,
        "source": target.hardware.source,
    }
    if not complete:
        return section
    mix = mix_of(complete, scenario)
    top = max((log.in_flight_max for log, _ in points), default=1)
    grid = np.geomspace(1, max(2 * top, 64), 49)
    section["curve"] = [
        {
            "concurrency": bound.concurrency,
            "bandwidth_tps": bound.bandwidth_tps,
            "compute_tps": bound.compute_tps,
            "latency_tps": bound.latency_tps,
            "bound_tps": bound.output_tps,
        }
        for bound in bounds.curve(target, mix, grid)
    ]
    section["kv_wall_concurrency"] = bounds.kv_wall(target, mix)
    section["knee_concurrency"] = bounds.model_knee(target, mix)
    return section


def conditions(manifest: Mapping[str, Any], points: Points) -> dict[str, str]:
    """The four variables that an expert fixes and the identity that they hold for; what is not known is "unknown"."""
    scenario = Scenario.model_validate(manifest["scenario"])
    server = manifest["server"]
    spec = manifest["roofline"]
    simulated = manifest.get("simulated") or {"conditions": {}}
    return {
        "input_lengths": describe.input_lengths(scenario),
        "output_lengths": describe.output_lengths(scenario),
        "load": _load_text(scenario),
        "latency_target": describe.latency_target(scenario),
        "model": server["model"],
        "precision": spec.get("precision") or UNKNOWN,
        "engine": server["engine"],
        "engine_flags": server.get("flags") or UNKNOWN,
        "kv_dtype": spec.get("kv_precision") or UNKNOWN,
        "speculation": _speculation(points),
        "cache_state": _cache_state(scenario, points),
        "hardware": (spec.get("hardware") or {}).get("name", UNKNOWN),
        "split": f"{spec['devices']} device{'s' * (spec['devices'] > 1)}" if "devices" in spec else UNKNOWN,
        "power_and_clocks": UNKNOWN,
        "client_machine": f"{machine_text(manifest['client']['machine'])}, {manifest['client']['loop']}",
        "connections": _connections(manifest, scenario),
        "receive_stamps": _receive_stamps(points),
        "token_source": _token_source(points),
        "seed": str(scenario.seed),
        "url": server["url"],
        **simulated["conditions"],
    }


def _load_text(scenario: Scenario) -> str:
    """The asked load; the rates that were driven stand with the points, since two runs may find different ones."""
    window_s, warmup_s = scenario.load.duration_s, scenario.load.warmup_s
    return f"{describe.load(scenario)}, {window_s:g} s measured after {warmup_s:g} s of warm-up"


def _connections(manifest: Mapping[str, Any], scenario: Scenario) -> str:
    """What carried the streams, and who opened the connections."""
    opened = "opened before the load" if scenario.connections == "warm" else "opened by the load (cold)"
    return f"{manifest['client'].get('via', UNKNOWN)}; {opened}"


def _receive_stamps(points: Points) -> str:
    """Where the instants of reads come from; they are the kernel's for nearly all reads, or for none."""
    answers = _answers(points)
    total, stamped = sum(r.reads_total for r in answers), sum(r.reads_kernel_stamped for r in answers)
    if not total:
        return UNKNOWN
    return "by the kernel" if stamped > 0.99 * total else "when read" if stamped < 0.01 * total else "mixed"


def _answers(points: Points) -> list[RequestRecord]:
    return [record for _, records in points for record in records if record.status == "ok" and record.output_tokens]


def _token_source(points: Points) -> str:
    sources = Counter(record.output_tokens_source for record in _answers(points))
    total = sum(sources.values())
    return ", ".join(f"{name} ({n / total:.0%})" for name, n in sources.most_common()) or UNKNOWN


def _speculation(points: Points) -> str:
    """Off can't be seen from a client; several tokens an event hint at it."""
    answers = _answers(points)
    tokens, events = sum(r.output_tokens or 0 for r in answers), sum(r.n_token_events for r in answers)
    if events and tokens / events > 1.2:
        return f"unknown ({tokens / events:.2f} tokens an event)"
    return UNKNOWN


def _cache_state(scenario: Scenario, points: Points) -> str:
    prefix = scenario.workload.shared_prefix
    asked = f"prefix of {prefix.tokens} tokens shared by {prefix.groups} groups" if prefix else "no shared prefix"
    reported = [r for r in _answers(points) if r.cached_tokens is not None and r.prompt_tokens]
    if not reported:
        return f"{asked}; hits not reported"
    share = sum(r.cached_tokens or 0 for r in reported) / sum(r.prompt_tokens or 0 for r in reported)
    return f"{asked}; {share:.0%} of prompt tokens cached"
