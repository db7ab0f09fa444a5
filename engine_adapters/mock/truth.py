"""The mock server's log as arrays: when each request arrived, and when each of its events was sent."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Instants = npt.NDArray[np.int64]
INSTANTS_SUFFIX = ".i64"


@dataclass(frozen=True)
class Truth:
    """One entry a request, in the order in which they were received; instants are monotonic nanoseconds.

    `request_id` is the client's x-request-id ("" without one), `answer_id` the `id` of the answer's events.
    `accepted_at_ns` is when the request's connection was accepted, `received_at_ns` when its last byte had been read.
    `tokens` is what was sent of `tokens_asked`; fewer when the client went away. Request i has
    `n_events[i]` events, whose instants (just before the send) are `event_at_ns[first_event[i]:][:n_events[i]]`.
    """

    request_id: list[str]
    answer_id: list[str]
    accepted_at_ns: Instants
    received_at_ns: Instants
    tokens_asked: Instants
    tokens: Instants
    first_event: Instants
    n_events: Instants
    event_at_ns: Instants

    def __len__(self) -> int:
        return len(self.request_id)

    def events(self, i: int) -> Instants:
        """The instants of request i's events."""
        first = self.first_event[i]
        return self.event_at_ns[first : first + self.n_events[i]]

    def entries(self) -> Iterator[dict[str, Any]]:
        """Each request as the bundled engine's log has it: `id`, `arrived_at_ns`, `token_at_ns`, one an event."""
        for i, request_id in enumerate(self.request_id):
            arrived_at_ns = int(self.received_at_ns[i])
            yield {"id": request_id, "arrived_at_ns": arrived_at_ns, "token_at_ns": self.events(i)}


def read_truth(path: Path) -> Truth:
    """Read the log at `path` and the instants beside it (`path` + ".i64", little-endian).

    Raises OSError when one of them is missing, ValueError when they don't belong together.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    event_at_ns = np.fromfile(f"{path}{INSTANTS_SUFFIX}", dtype="<i8")
    numbers = {
        name: np.array([int(row[name]) for row in rows], dtype=np.int64)
        for name in ("accepted_at_ns", "received_at_ns", "tokens_asked", "tokens", "first_event", "n_events")
    }
    if int(numbers["n_events"].sum()) != len(event_at_ns):
        raise ValueError(f"{path} counts {int(numbers['n_events'].sum())} events and has {len(event_at_ns)} instants")
    return Truth(
        request_id=[row["request_id"] for row in rows],
        answer_id=[row["answer_id"] for row in rows],
        event_at_ns=event_at_ns,
        **numbers,
    )
