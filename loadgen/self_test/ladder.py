"""The three ladders of loads that a client is tried with, and which load comes next. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol, TypeVar

from loadgen.scenario.schedule import PlannedRequest, PointSchedule, plan_point
from loadgen.scenario.schema import Scenario

PROMPT_TOKENS = 32
SEED = 1
LATE_S = 1.0  # beyond a stream's own length, for the last answers
REFINE_RATIO = 1.3  # neighbours further apart than this get one load between them
HOPELESS_CPU = 1.3  # cores that a load would need, by the last one's: it is not tried
SPARE_FILES = 128  # open files beside the connections
GOLDEN = (math.sqrt(5) - 1) / 2

Name = Literal["requests", "events", "streams"]


@dataclass(frozen=True)
class Part:
    """One ladder. `loads` are requests/s in open loop, else streams at a time.

    TTFT and ITL are the mock server's. `running_tokens` is the length of the streams that run when a closed loop
    begins; the requests that follow have `output_tokens`, fewer where waiting for their ends would take too long.
    """

    name: Name
    mode: Literal["open", "closed"]
    loads: tuple[int, ...]
    output_tokens: int
    ttft_ms: float
    itl_ms: float
    warmup_s: float
    duration_s: float
    running_tokens: int = 0
    refine: bool = True  # try one load more, between the best one and the lowest that failed

    @property
    def stream_s(self) -> float:
        """Seconds from a request to its last token."""
        return (self.ttft_ms + self.output_tokens * self.itl_ms) / 1e3

    @property
    def unit(self) -> str:
        """What a load counts."""
        return "requests/s" if self.mode == "open" else "streams"


PARTS = (
    Part("requests", "open", (200, 500, 1000, 1500, 2000, 3000, 4000), 16, 50.0, 10.0, 0.5, 2.0),
    Part("events", "closed", (128, 256, 384, 512, 768, 1024, 1536), 128, 10.0, 10.0, 0.5, 2.0, 128),
    Part("streams", "closed", (1000, 2000, 5000, 10_000), 32, 100.0, 100.0, 1.5, 3.0, 128),
)
QUICK = (
    replace(PARTS[0], loads=(500, 1000, 2000), duration_s=1.0, refine=False),
    replace(PARTS[1], loads=(256, 512), output_tokens=64, duration_s=1.0, refine=False),
    replace(PARTS[2], loads=(1000, 5000), output_tokens=16, warmup_s=0.8, duration_s=1.2, refine=False),
)


class Tried(Protocol):
    """What the ladder looks at of a load that was tried."""

    @property
    def load(self) -> int:
        """As in `Part.loads`, or one between them."""
        ...

    @property
    def offered(self) -> bool:
        """Whether the client could offer it."""
        ...

    @property
    def cpu_share(self) -> float:
        """The client's CPU, in cores."""
        ...


TriedT = TypeVar("TriedT", bound=Tried)


def next_load(part: Part, tried: Sequence[Tried]) -> int | None:
    """The load to try next, or None when the ladder is done.

    Upwards until a load can't be offered, or would need more than a core by far. One that failed is tried a second
    time, since a busy moment of the machine is no limit of it; then, where the part asks for it, one load between the
    best and the failed one.
    """
    if not tried:
        return part.loads[0] if part.loads else None
    last = tried[-1]
    if last.load not in part.loads:  # the one in between
        return None
    if last.offered:
        higher = next((load for load in part.loads if load > last.load), None)
        return None if higher and is_hopeless(last, higher) else higher
    if [each.load for each in tried].count(last.load) == 1:
        return last.load
    return between(tried) if part.refine else None


def is_hopeless(last: Tried, load: int) -> bool:
    """Whether a load would need far more than one core, if CPU grew with it."""
    return last.cpu_share * load / last.load > HOPELESS_CPU


def between(tried: Sequence[Tried]) -> int | None:
    """A load between the best one and the lowest that failed, to two digits; None where they are close."""
    best, worst = best_of(tried), min(each.load for each in failed_of(tried))
    if best is None or worst / best.load < REFINE_RATIO:
        return None
    return int(float(f"{math.sqrt(best.load * worst):.2g}"))


def failed_of(tried: Sequence[TriedT]) -> list[TriedT]:
    """Those that failed, without the loads that a second try offered."""
    offered = {each.load for each in tried if each.offered}
    return [each for each in tried if each.load not in offered]


def best_of(tried: Sequence[TriedT]) -> TriedT | None:
    """The highest load that could be offered."""
    return max((each for each in tried if each.offered), key=lambda each: each.load, default=None)


def files_wanted(part: Part, load: int) -> int:
    """Open files that a load needs: a connection a stream, and what else a process has open."""
    at_once = load if part.mode == "closed" else math.ceil(2 * load * part.stream_s)
    return at_once + SPARE_FILES


def affordable(part: Part, max_files: int) -> tuple[Part, str | None]:
    """The part without loads that need more open files than are allowed, and what to do about those."""
    left = tuple(load for load in part.loads if files_wanted(part, load) <= max_files)
    if left == part.loads:
        return part, None
    out = [load for load in part.loads if load not in left]
    return replace(part, loads=left), (
        f"{' and '.join(f'{load:,}' for load in out)} {part.unit} left out: they need up to "
        f"{files_wanted(part, out[-1]):,} open files and the hard limit is {max_files:,} (ulimit -Hn); raise it as root"
    )


def scenario_of(part: Part) -> Scenario:
    """The part as a scenario, for the same path that `bench run` takes."""
    return Scenario.model_validate(
        {
            "name": f"doctor-{part.name}",
            "workload": {
                "prompt": {"tokens": {"fixed": PROMPT_TOKENS}},
                "output": {"tokens": {"fixed": part.output_tokens}},
            },
            "load": {"arrivals": "poisson", "max_in_flight": 100_000},
            "seed": SEED,
        }
    )


def plan_of(part: Part, load: int, point: int) -> PointSchedule:
    """The schedule of one load; closed loop begins as if it had always run."""
    scenario = scenario_of(part)
    plan = partial(plan_point, scenario, point=point, warmup_s=part.warmup_s, duration_s=part.duration_s)
    if part.mode == "open":
        # Load goes on until the last measured request has ended: a stream's length, and some for lateness.
        return plan(rate_rps=float(load), cooldown_s=part.stream_s + LATE_S)
    closed = plan(concurrency=load, cooldown_s=part.stream_s + LATE_S)
    n_turns = math.ceil((part.warmup_s + part.duration_s) / part.stream_s) + 1
    return replace(closed, requests=in_full_swing(closed.requests[: load * n_turns], load, part.running_tokens))


def in_full_swing(requests: Sequence[PlannedRequest], users: int, running_tokens: int) -> tuple[PlannedRequest, ...]:
    """The first request of each user with 1 to `running_tokens` tokens, evenly spread over the users.

    What is left of streams that run at some moment is uniform; without this all users would send in step.
    """
    first = [
        replace(each, output_tokens=1 + int(running_tokens * (i * GOLDEN % 1)))
        for i, each in enumerate(requests[:users])
    ]
    return (*first, *requests[users:])
