"""The complete plan of a load point before it runs: when each request is due, how long it is, what it says."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.collectors.records import Phase
from loadgen.scenario import arrivals, lengths
from loadgen.scenario.datasets import estimate_tokens, take
from loadgen.scenario.errors import ScenarioError
from loadgen.scenario.schema import Scenario
from loadgen.scenario.streams import stream

MAX_REQUESTS = 2_000_000  # a point beyond it is a slip of the pen, and would fill the memory
MAX_CLOSED_REQUESTS = 50_000
MAX_CLOSED_PROMPT_TOKENS = 50_000_000
MIN_OWN_TOKENS = 8  # a prompt no longer than the shared prefix still has this many of its own
_ID_REQUESTS = 4096
_AFTER_LAST_S = 1e-6


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of the schedule. `at_s` counts from the point's t0 (0 in closed loop)."""

    index: int
    at_s: float
    phase: Phase
    prompt_tokens: int  # all of the prompt, the shared prefix included
    output_tokens: int  # becomes max_tokens
    prefix_tokens: int = 0
    prefix_group: int | None = None
    text: str | None = None  # a data set's own prompt; None: the text is rendered from the content stream
    repeat: bool = False


_ROW = tuple(field.name for field in fields(PlannedRequest))


@dataclass(frozen=True, slots=True)
class PointSchedule:
    """All requests of one load point. Cool-down requests follow the measured ones, in order of time."""

    point: int
    mode: str  # "open" | "closed"
    rate_rps: float | None
    concurrency: int | None
    warmup_s: float
    duration_s: float
    requests: tuple[PlannedRequest, ...]
    cooldown_s: float = (
        0.0  # how long after the window load goes on, at most, until the last measured request has ended
    )


def plan_point(
    scenario: Scenario,
    *,
    point: int,
    rate_rps: float | None = None,
    concurrency: int | None = None,
    duration_s: float | None = None,
    warmup_s: float | None = None,
    cooldown_s: float | None = None,
    n_requests: int | None = None,
) -> PointSchedule:
    """All requests of one load point: open loop at `rate_rps`, or closed loop with `concurrency` users.

    Times left out are the scenario's. Open loop: every arrival before warm-up + duration + the longest cool-down; with
    `n_requests` the measured phase has exactly that many, and its duration ends just after the last of them.
    Closed loop: `at_s` is 0, the phase is a placeholder (the generator sets it by the clock), and the users take the
    requests in order; see `closed_loop_requests` for how many there are. With `n_requests` there are exactly that many,
    no warm-up, and `duration_s` is only an upper bound.
    ScenarioError when the load is impossible or the data set too short.
    """
    if (rate_rps is None) == (concurrency is None):
        raise ScenarioError("a load point takes either a rate or a concurrency")
    if rate_rps is not None and not (math.isfinite(rate_rps) and rate_rps > 0):
        raise ScenarioError(f"a rate must be above 0 requests/s, not {rate_rps:g}")
    if concurrency is not None and concurrency < 1:
        raise ScenarioError(f"a concurrency must be at least 1, not {concurrency}")
    if n_requests is not None and n_requests < 1:
        raise ScenarioError(f"the number of requests must be at least 1, not {n_requests}")
    load = scenario.load
    warmup = load.warmup_s if warmup_s is None else warmup_s
    duration = load.duration_s if duration_s is None else duration_s
    cooldown = load.cooldown_max_s if cooldown_s is None else cooldown_s
    if rate_rps is not None:
        return _plan_open(scenario, point, rate_rps, warmup, duration, cooldown, n_requests)
    assert concurrency is not None
    return _plan_closed(scenario, point, concurrency, warmup, duration, cooldown, n_requests)


def closed_loop_requests(scenario: Scenario, concurrency: int, busy_s: float) -> int:
    """How many requests a closed-loop point is given whose users send for `busy_s` (warm-up and window).

    Enough for users served at 1,000 output tokens/s each without any wait, but at most 50,000 requests or 50 million
    prompt tokens (their text is rendered before the start), and at least 4 a user. A faster server uses the plan up,
    and the point ends early. Of a data set that may not be repeated, no more than it has.
    """
    prompt_mean, output_mean = mean_tokens(scenario)
    n_fastest = concurrency * math.ceil(busy_s / max(output_mean / 1000, 0.001))
    n_planned = min(n_fastest, MAX_CLOSED_REQUESTS, int(MAX_CLOSED_PROMPT_TOKENS / max(1.0, prompt_mean)))
    spec, dataset = scenario.workload.prompt.dataset, scenario.dataset
    if spec is not None and dataset is not None and spec.when_short != "repeat":
        n_planned = min(n_planned, len(dataset.prompts))
    return max(4 * concurrency, n_planned)


def schedule_id(scenario: Scenario) -> str:
    """16 hex digits over all that determines the stream of requests at unit rate.

    Seed, API, ignore_eos, arrival process, length distributions, prefix and data set, and the first 4,096 unit arrivals
    (to a billionth), lengths and groups themselves. Not the rates and durations: two runs of one scenario have the same
    id, and at the same rate the same requests.
    """
    workload = scenario.as_json()["workload"]
    dataset = scenario.dataset
    if dataset is not None:
        workload["prompt"]["dataset"] |= {"path": "", "sha256": dataset.sha256}
    described = {
        "version": 1,
        "seed": scenario.seed,
        "api": scenario.api,
        "workload": workload,
        "mode": scenario.load.mode,
        "arrivals": scenario.as_json()["load"]["arrivals"] if scenario.load.mode == "open" else None,
    }
    digest = sha256(json.dumps(described, sort_keys=True).encode())
    if scenario.load.mode == "open":
        unit = arrivals.unit_arrivals(scenario.load.arrivals, stream(scenario.seed, "arrivals"), _ID_REQUESTS)
        digest.update(np.rint(unit * 1e9).astype("<i8").tobytes())
    for column in (_prompt_lengths(scenario, _ID_REQUESTS), _output_lengths(scenario, _ID_REQUESTS)):
        digest.update(column.astype("<i8").tobytes())
    digest.update(_prefix_groups(scenario, _ID_REQUESTS).astype("<i8").tobytes())
    return digest.hexdigest()[:16]


def schedule_rows(schedule: PointSchedule) -> Iterator[dict[str, Any]]:
    """The requests as JSON objects, for schedule.jsonl and `--dry-run`; `text` only for a data set's prompts."""
    for request in schedule.requests:
        row = {"point": schedule.point, "rate_rps": schedule.rate_rps, "concurrency": schedule.concurrency}
        row |= {name: getattr(request, name) for name in _ROW} | {"at_s": round(request.at_s, 9)}
        if row["text"] is None:
            del row["text"]
        yield row


def n_tokens(schedule: PointSchedule) -> tuple[int, int]:
    """(prompt tokens, output tokens) asked for by all requests of the plan, the cool-down's included."""
    requests = schedule.requests
    return sum(r.prompt_tokens for r in requests), sum(r.output_tokens for r in requests)


def mean_tokens(scenario: Scenario) -> tuple[float, float]:
    """(prompt, output) tokens of the mean request; a data set's prompts by `estimate_tokens`."""
    output = lengths.mean(scenario.workload.output.tokens)
    if scenario.workload.prompt.tokens is not None:
        return lengths.mean(scenario.workload.prompt.tokens), output
    prompts = scenario.dataset.prompts if scenario.dataset else ()
    return sum(map(estimate_tokens, prompts)) / max(1, len(prompts)), output


def _plan_open(
    scenario: Scenario, point: int, rate_rps: float, warmup: float, duration: float, cooldown: float, n: int | None
) -> PointSchedule:
    if n is not None:
        duration = _duration_for(scenario, rate_rps, warmup, n)
    at_s = _arrivals_before(scenario, rate_rps, warmup + duration + cooldown)
    n_warmup = int(np.searchsorted(at_s, warmup))
    # With n given its end is counted, not timed: in a burst the next request may be due within the same microsecond.
    n_measured = n if n is not None else int(np.searchsorted(at_s, warmup + duration)) - n_warmup
    phases: list[Phase] = ["warmup"] * n_warmup
    phases += ["measured"] * n_measured
    phases += ["cooldown"] * (at_s.size - len(phases))
    return PointSchedule(
        point, "open", rate_rps, None, warmup, duration, _requests(scenario, at_s, phases), cooldown_s=cooldown
    )


def _plan_closed(
    scenario: Scenario, point: int, concurrency: int, warmup: float, duration: float, cooldown: float, n: int | None
) -> PointSchedule:
    if n is not None:
        warmup, duration = 0.0, math.ceil(n / concurrency) * scenario.timeouts.total_s
    n_planned = n if n is not None else closed_loop_requests(scenario, concurrency, warmup + duration)
    at_s = np.zeros(n_planned)
    requests = _requests(scenario, at_s, ["measured"] * n_planned)
    return PointSchedule(point, "closed", None, concurrency, warmup, duration, requests, cooldown_s=cooldown)


def _arrivals_before(scenario: Scenario, rate_rps: float, horizon_s: float) -> npt.NDArray[np.float64]:
    if rate_rps * horizon_s > MAX_REQUESTS:
        raise ScenarioError(
            f"{rate_rps:g} requests/s for {horizon_s:g} s are {rate_rps * horizon_s:,.0f} requests, "
            f"more than {MAX_REQUESTS:,}: lower the rate or the duration"
        )
    rng = stream(scenario.seed, "arrivals")
    return arrivals.unit_arrivals_before(scenario.load.arrivals, rng, rate_rps * horizon_s) / rate_rps


def _duration_for(scenario: Scenario, rate_rps: float, warmup: float, n: int) -> float:
    """The window that holds exactly the first `n` arrivals after the warm-up: it closes 1 us after the last."""
    horizon_s = warmup + n / rate_rps
    while True:
        at_s = _arrivals_before(scenario, rate_rps, horizon_s)
        first = int(np.searchsorted(at_s, warmup))
        if at_s.size >= first + n:
            return float(at_s[first + n - 1]) - warmup + _AFTER_LAST_S
        horizon_s *= 1.5


def _requests(scenario: Scenario, at_s: npt.NDArray[np.float64], phases: list[Phase]) -> tuple[PlannedRequest, ...]:
    n = len(phases)
    outputs = _output_lengths(scenario, n).tolist()
    texts = _texts(scenario, n)
    if texts is not None:
        return tuple(
            PlannedRequest(i, at, phase, estimate_tokens(text), output, text=text, repeat=repeat)
            for i, (at, phase, output, (text, repeat)) in enumerate(
                zip(at_s.tolist(), phases, outputs, texts, strict=False)
            )
        )
    prompts = _prompt_lengths(scenario, n)
    prefixes, groups = _prefix_tokens(scenario, prompts), _prefix_groups(scenario, n)
    shared = scenario.workload.shared_prefix is not None
    columns = zip(at_s.tolist(), phases, prompts.tolist(), outputs, prefixes.tolist(), groups.tolist(), strict=True)
    return tuple(
        PlannedRequest(i, at, phase, prompt, output, prefix, group if shared else None)
        for i, (at, phase, prompt, output, prefix, group) in enumerate(columns)
    )


def _texts(scenario: Scenario, n: int) -> list[tuple[str, bool]] | None:
    spec = scenario.workload.prompt.dataset
    if spec is None:
        return None
    if scenario.dataset is None:
        raise ScenarioError(f"{spec.path}: the data set was not read; use load_scenario")
    return take(scenario.dataset, n, spec.when_short)


def _prompt_lengths(scenario: Scenario, n: int) -> lengths.Ints:
    dist = scenario.workload.prompt.tokens
    return np.zeros(n, np.int64) if dist is None else lengths.sample(dist, stream(scenario.seed, "prompt lengths"), n)


def _output_lengths(scenario: Scenario, n: int) -> lengths.Ints:
    return lengths.sample(scenario.workload.output.tokens, stream(scenario.seed, "output lengths"), n)


def _prefix_groups(scenario: Scenario, n: int) -> lengths.Ints:
    prefix = scenario.workload.shared_prefix
    n_groups = prefix.groups if prefix else 1
    return np.floor(stream(scenario.seed, "prefix").random(n) * n_groups).astype(np.int64)


def _prefix_tokens(scenario: Scenario, prompt_tokens: lengths.Ints) -> lengths.Ints:
    prefix = scenario.workload.shared_prefix
    n_shared = prefix.tokens if prefix else 0
    return np.clip(prompt_tokens - MIN_OWN_TOKENS, 0, n_shared)
