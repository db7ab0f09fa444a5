"""Logs when each request reached the server and when each of its tokens left: what a measurement is checked against."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import Any

MAX_REQUESTS = 4096


@dataclass(slots=True)
class TruthRecord:
    """One accepted request. Instants are CLOCK_MONOTONIC nanoseconds (`time.monotonic_ns`) in the server's process.

    arrived_at_ns: its handler started. token_at_ns: just before the write that carried each token's event
    (of a non-streamed answer: of the whole body, once for each token).
    """

    number: int
    request_id: str
    arrived_at_ns: int
    token_at_ns: array[int] = field(default_factory=lambda: array("q"))
    done: bool = False

    def as_json(self) -> dict[str, Any]:
        """The record as a JSON object."""
        return {
            "number": self.number,
            "id": self.request_id,
            "arrived_at_ns": self.arrived_at_ns,
            "token_at_ns": self.token_at_ns.tolist(),
            "done": self.done,
        }


class TruthLog:
    """The last `max_requests` accepted requests, numbered from 0."""

    def __init__(self, max_requests: int = MAX_REQUESTS) -> None:
        self._records: deque[TruthRecord] = deque(maxlen=max_requests)
        self._next = 0

    def open(self, request_id: str | None, arrived_at_ns: int) -> TruthRecord:
        """Begin the record of one request; without an id of its own it goes by its number."""
        record = TruthRecord(self._next, request_id or str(self._next), arrived_at_ns)
        self._next += 1
        self._records.append(record)
        return record

    def since(self, number: int) -> dict[str, Any]:
        """Records from `number` on; `next` is what to ask for to get only later ones.

        A record that is not `done` is still growing. `first` is the oldest number kept: older ones are forgotten.
        """
        records = [record.as_json() for record in self._records if record.number >= number]
        first = self._records[0].number if self._records else 0
        return {"clock": "CLOCK_MONOTONIC", "unit": "ns", "first": first, "next": self._next, "requests": records}
