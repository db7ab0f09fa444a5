"""How many connections a load point needs: before it starts, and at once while it runs."""

from __future__ import annotations

from bisect import bisect

from loadgen.scenario.schedule import PointSchedule

WARM_S = 0.1


def at_start(schedule: PointSchedule) -> int:
    """Connections to open before the start: one for each user, or for the busiest tenth of a second of the arrivals.

    The warm-up opens the rest. Many more than are needed would harm servers that give each connection a thread.
    """
    if schedule.mode != "open":
        return min(schedule.concurrency or 0, len(schedule.requests))
    return busiest(schedule, WARM_S)


def at_once(schedule: PointSchedule, max_in_flight: int, total_s: float) -> tuple[int, int]:
    """(surely, possibly): connections that the point needs in any case, and when the server is slow.

    A user has one connection. In open loop a request stays a second at least, and `total_s` at most.
    """
    if schedule.mode != "open":
        users = schedule.concurrency or 0
        return users, users
    return min(busiest(schedule, 1.0), max_in_flight), min(busiest(schedule, total_s), max_in_flight)


def busiest(schedule: PointSchedule, seconds: float) -> int:
    """Most arrivals within so many seconds."""
    at_s = [planned.at_s for planned in schedule.requests]
    return max((bisect(at_s, start_s + seconds) - i for i, start_s in enumerate(at_s)), default=0)
