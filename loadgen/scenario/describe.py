"""The four variables of a scenario as text: what stands on every figure and table."""

from __future__ import annotations

from loadgen.scenario import arrivals, lengths
from loadgen.scenario.schema import Scenario


def input_lengths(scenario: Scenario) -> str:
    """Prompt lengths and shared prefix, in tokens."""
    prompt, prefix = scenario.workload.prompt, scenario.workload.shared_prefix
    if prompt.tokens is None:
        return f"data set {prompt.dataset.path if prompt.dataset else ''}"
    shared = f"; the first {prefix.tokens:,} shared ({_groups_text(prefix.groups)})" if prefix else ""
    return f"{lengths.describe(prompt.tokens)} tokens{shared}"


def output_lengths(scenario: Scenario) -> str:
    """Asked output lengths, in tokens, and whether the model may stop before."""
    ends = "" if scenario.workload.ignore_eos else " at most (the model may stop)"
    return f"{lengths.describe(scenario.workload.output.tokens)} tokens{ends}"


def load(scenario: Scenario) -> str:
    """Arrival process and ladder of rates, or closed loop and its concurrencies; and what may hold requests back."""
    spec = scenario.load
    if spec.concurrency is not None:
        return f"closed loop, concurrency {', '.join(f'{level:,}' for level in spec.concurrency)}{_held_back(scenario)}"
    rates = ", ".join(f"{rate:g}" for rate in spec.rates or ()) if spec.rates != "auto" else ""
    ladder = f"{rates} requests/s" if rates else "rates found from light load to saturation"
    return f"open loop, {arrivals.describe(spec.arrivals)}, {ladder}{_held_back(scenario)}"


def _held_back(scenario: Scenario) -> str:
    limit = scenario.limit
    text = f", the client's own limit {limit.rate_rps:g}/s with bursts of {limit.burst}" if limit else ""
    return text + (", a rejected request waits as advised" if scenario.on_429 == "wait" else "")


def latency_target(scenario: Scenario) -> str:
    """All objectives, or `none`."""
    texts = (f"{metric.upper()} {objective}" for metric, objective in scenario.slo.objectives.items())
    return ", ".join(texts) or "none"


def _groups_text(n_groups: int) -> str:
    return "one text" if n_groups == 1 else f"{n_groups:,} texts"
