"""Holds the requests that wait, in the order in which they are to be admitted."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from engine_adapters.reference.request import Rank, Request


class RequestQueue:
    """Requests by their rank; adding and taking are O(log n). One that was preempted finds its old place again."""

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, Request]] = []
        self._gone: set[Rank] = set()  # ranks of those that were taken out of the middle and are still in the heap

    def __len__(self) -> int:
        return len(self._heap) - len(self._gone)

    def __iter__(self) -> Iterator[Request]:
        return (request for rank, request in sorted(self._heap) if rank not in self._gone)

    def push(self, request: Request) -> None:
        """Add a request, whose rank no other one here has."""
        heappush(self._heap, (request.rank, request))

    def peek(self) -> Request:
        """The next request; raises IndexError when there is none."""
        while self._heap[0][0] in self._gone:
            self._gone.remove(heappop(self._heap)[0])
        return self._heap[0][1]

    def pop(self) -> Request:
        """Take the next request out; raises IndexError when there is none."""
        request = self.peek()
        heappop(self._heap)
        return request

    def discard(self, request: Request) -> None:
        """Take out a request that is in the queue, wherever it stands."""
        self._gone.add(request.rank)
