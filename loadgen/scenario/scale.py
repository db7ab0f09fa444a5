"""Shrinks a scenario written for a GPU to what the bundled CPU engine serves, and says by how much."""

from __future__ import annotations

from typing import Any

from loadgen.scenario import lengths
from loadgen.scenario.fields import format_duration
from loadgen.scenario.lengths import LengthDist
from loadgen.scenario.schema import Scenario

MEASURED_S = 16.0
WARMUP_S = 3.0
MAX_POINTS = 10  # with the above, an automatic ladder stays under five minutes
COOLDOWN_S = 10.0


def scale_for_cpu(
    scenario: Scenario, prompt_median: int = 256, output_median: int = 32, keep_times: bool = False
) -> tuple[Scenario, str]:
    """The scenario with a typical (median) prompt and output of at most the given tokens, and one sentence about it.

    All lengths of a distribution, its limits and the shared prefix are multiplied by one factor: the shape stays.
    Smaller workloads keep their lengths. Durations become at most 16 s measured, 3 s warm-up and 10 s cool-down. The
    roofline is cleared (the bundled engine supplies its own); SLO, rates and seed stay, and with `keep_times` (the user
    named them) the durations too. A data set's prompts are sent as they are.
    """
    workload = scenario.workload
    prompt_factor = _factor(workload.prompt.tokens, prompt_median)
    output_factor = _factor(workload.output.tokens, output_median)
    tree = scenario.as_json()
    _scale_key(tree["workload"]["prompt"], "tokens", prompt_factor)
    _scale_key(tree["workload"]["output"], "tokens", output_factor)
    if workload.shared_prefix is not None:
        _scale_key(tree["workload"]["shared_prefix"], "tokens", prompt_factor)
    if not keep_times:
        tree["load"] |= _durations(scenario)
    tree["roofline"] = {}
    scaled = Scenario.model_validate(tree)
    scaled._dataset = scenario.dataset
    return scaled, _sentence(scenario, scaled, prompt_factor, output_factor)


def _factor(dist: LengthDist | None, wanted_median: int) -> float:
    return 1.0 if dist is None else min(1.0, wanted_median / lengths.median(dist))


def _durations(scenario: Scenario) -> dict[str, Any]:
    load = scenario.load
    return {
        "max_points": min(load.max_points, MAX_POINTS) if load.rates == "auto" else load.max_points,
        "duration": format_duration(min(load.duration_s, MEASURED_S)),
        "warmup": format_duration(min(load.warmup_s, WARMUP_S)),
        "cooldown": format_duration(min(load.cooldown_max_s, COOLDOWN_S)),
    }


def _scale_key(parent: dict[str, Any], key: str, factor: float) -> None:
    if key in parent and factor < 1:
        parent[key] = _scaled(key, parent[key], factor)


def _scaled(key: str, value: Any, factor: float) -> Any:
    """Every token count below `value` times the factor; sigma and weights have no unit and stay."""
    if key in ("sigma", "weights"):
        return value
    if isinstance(value, dict):
        return {name: _scaled(name, below, factor) for name, below in value.items()}
    if key == "bins":
        return _ascending([_scaled("edge", edge, factor) for edge in value])
    if isinstance(value, list):
        return [_scaled(key, item, factor) for item in value]
    if key in ("median", "mean", "p95", "std"):
        return value * factor
    return max(1, round(value * factor))


def _ascending(edges: list[int]) -> list[int]:
    for i in range(1, len(edges)):
        edges[i] = max(edges[i], edges[i - 1] + 1)
    return edges


def _sentence(before: Scenario, after: Scenario, prompt_factor: float, output_factor: float) -> str:
    parts = [
        _length_text("prompts", before.workload.prompt.tokens, after.workload.prompt.tokens, prompt_factor),
        _length_text("outputs", before.workload.output.tokens, after.workload.output.tokens, output_factor),
        f"{format_duration(after.load.duration_s)} measured after {format_duration(after.load.warmup_s)} of warm-up",
    ]
    return f"Scaled to what a CPU serves: {'; '.join(parts)}."


def _length_text(name: str, before: LengthDist | None, after: LengthDist | None, factor: float) -> str:
    if before is None or after is None:
        return f"{name} of the data set as they are"
    if factor == 1:
        return f"{name} as written (median {lengths.median(before):,} tokens)"
    return f"{name} x {factor:.3g} (median {lengths.median(before):,} -> {lengths.median(after):,} tokens)"
