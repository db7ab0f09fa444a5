"""The complete plan of a load point before it runs: when each request is due, how long it is, what it says."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.collectors.records import Phase


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
    cooldown_s: float = 0.0  # how long after the window load goes on, at most, until the last measured request has ended
