"""Faults on purpose: what `--fault` may say, and which request meets which fault. Deterministic, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

GRAMMAR = """\
  stall=after:N,seconds:S[,every:K]            N tokens leave, then nothing for S seconds, then the rest
  cut=after:N[,every:K]                        N tokens leave, then the connection closes without an end
  error-in-stream=after:N[,every:K]            N tokens leave, then an error event and [DONE]
  slow-first-byte=seconds:S[,every:K]          nothing, not even headers, for S seconds after the request came
  429=after:N,count:M[,retry-after:S,every:P]  N requests are served, the next M are answered 429
Requests are counted from 1 as they reach a generating endpoint. every:K picks the K-th, the 2K-th and so on (without
it all of them); for 429 it repeats the storm every P requests. retry-after is 1 second by default. An answer that is
not streamed meets a stall, a cut or an error as a whole."""

NEEDED: Mapping[str, tuple[str, ...]] = {
    "stall": ("after", "seconds"),
    "cut": ("after",),
    "error-in-stream": ("after",),
    "slow-first-byte": ("seconds",),
    "429": ("after", "count"),
}
OPTIONAL: Mapping[str, tuple[str, ...]] = dict.fromkeys(NEEDED, ("every",)) | {"429": ("retry-after", "every")}
LARGEST = {"seconds": 3600.0, "retry-after": 3600.0}


@dataclass(frozen=True, slots=True)
class Fault:
    """One `--fault`. `after` and `count` are tokens, or requests for a 429 storm; `every` 0 is a storm that ends."""

    name: str
    after: int = 0
    seconds: float = 0.0
    count: int = 0
    retry_after_s: int = 1
    every: int = 1

    def meets(self, number: int) -> bool:
        """Whether the request `number` (from 1) has this fault."""
        if self.name != "429":
            return number % self.every == 0
        place = number - 1 if self.every == 0 else (number - 1) % self.every
        return self.after <= place < self.after + self.count


@dataclass(slots=True)
class Faults:
    """All faults of a server, and the count of requests that decides who meets them."""

    faults: tuple[Fault, ...] = ()
    n_requests: int = 0
    n_met: dict[str, int] = field(default_factory=dict)

    def next_request(self) -> dict[str, Fault]:
        """Count one more request; the faults that it meets, by name."""
        self.n_requests += 1
        met = {fault.name: fault for fault in self.faults if fault.meets(self.n_requests)}
        for name in met:
            self.n_met[name] = self.n_met.get(name, 0) + 1
        return met


def parse_faults(texts: Iterable[str]) -> Faults:
    """The faults of several `--fault` options; raises ValueError that names the option and what it may say."""
    faults = [parse_fault(text) for text in texts]
    names = [fault.name for fault in faults]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--fault {name} is given twice")
    return Faults(tuple(faults))


def parse_fault(text: str) -> Fault:
    """One `--fault`, as the module's grammar has it; raises ValueError."""
    name, _, rest = text.partition("=")
    if name not in NEEDED:
        raise ValueError(f"--fault {text}: unknown fault {name!r}; there are {', '.join(NEEDED)}")
    values = dict(_pair(text, part) for part in rest.split(",") if part)
    allowed = NEEDED[name] + OPTIONAL[name]
    for key in values:
        if key not in allowed:
            raise ValueError(f"--fault {text}: unknown key {key!r}; {name} takes {', '.join(allowed)}")
    for key in NEEDED[name]:
        if key not in values:
            raise ValueError(f"--fault {text}: {key} is missing; write {_example(name)}")
    default_every = 0 if name == "429" else 1
    every = _whole(text, "every", values.get("every", str(default_every)), at_least=default_every)
    return Fault(
        name,
        after=_whole(text, "after", values.get("after", "0"), at_least=0),
        seconds=_duration(text, "seconds", values.get("seconds", "0")),
        count=_whole(text, "count", values.get("count", "0"), at_least=0),
        retry_after_s=_whole(text, "retry-after", values.get("retry-after", "1"), at_least=0),
        every=every,
    )


def _pair(text: str, part: str) -> tuple[str, str]:
    key, colon, value = part.partition(":")
    if not colon:
        raise ValueError(f"--fault {text}: {part!r} must read key:value")
    return key, value


def _whole(text: str, key: str, value: str, at_least: int) -> int:
    if not value.isdecimal() or int(value) < at_least:
        raise ValueError(f"--fault {text}: {key} must be a whole number from {at_least} up, not {value!r}")
    return int(value)


def _duration(text: str, key: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= LARGEST[key]:  # NaN fails too
        raise ValueError(f"--fault {text}: {key} must be from 0 to {LARGEST[key]:.0f} seconds, not {value!r}")
    return seconds


def _example(name: str) -> str:
    shown = {"after": "after:8", "seconds": "seconds:2", "count": "count:50"}
    return name + "=" + ",".join(shown[key] for key in NEEDED[name])
