"""What every client is asked to do, and what one launch of a client is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROMPT_TOKENS = 64
EXTRA_EVENTS = 3  # finish reason, usage and [DONE], beside one event a token


@dataclass(frozen=True)
class Workload:
    """`users` in closed loop, or Poisson arrivals at `rate_rps` for `seconds`; each answer has `tokens` tokens."""

    name: str
    tokens: int
    ttft_ms: float = 0.0
    itl_ms: float = 0.0
    users: int | None = None
    rate_rps: float | None = None
    seconds: float = 0.0

    @property
    def events(self) -> int:
        """SSE events of one answer."""
        return self.tokens + EXTRA_EVENTS

    @property
    def conditions(self) -> str:
        """The workload in words."""
        load = f"{self.users} users, closed loop" if self.users else f"Poisson, {self.rate_rps:g} requests/s"
        timing = f"TTFT {self.ttft_ms:g} ms, ITL {self.itl_ms:g} ms" if self.itl_ms else "ITL 0: all tokens at once"
        return f"{load}; {PROMPT_TOKENS} tokens in, {self.tokens} out; {timing}"

    @property
    def n_arrivals(self) -> int:
        """Requests of an open loop, on average."""
        return round((self.rate_rps or 0) * self.seconds)


def workloads(seconds: float) -> dict[str, Workload]:
    """By the letter that the command line takes and, in open loop, the rate; `seconds` is an open loop's length."""
    paced = {"tokens": 16, "ttft_ms": 50.0, "itl_ms": 10.0, "seconds": seconds}
    listed = (
        Workload("a", 128, users=64),
        Workload("b", 128, users=256, itl_ms=10.0),
        Workload("c200", rate_rps=200.0, **paced),  # type: ignore[arg-type]
        Workload("c500", rate_rps=500.0, **paced),  # type: ignore[arg-type]
    )
    return {workload.name: workload for workload in listed}


@dataclass(frozen=True)
class Task:
    """One launch of a client: what to send where, its own scratch folder, and where programs and tokenizer are."""

    load: Workload
    n_requests: int
    url: str
    folder: Path
    programs: Path
    tokenizer: Path

    def program(self, name: str) -> str:
        """The path of one of the client's own commands."""
        return str(self.programs / name)
