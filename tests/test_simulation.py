"""Virtual time for the generator: exact sends, aborts that reach the server, and a jump to whatever happens next."""

from __future__ import annotations

from array import array
from typing import Any

import anyio
import pytest

from engine_adapters.base import StreamOutcome
from loadgen.collectors.records import PointLog, RequestRecord
from loadgen.scenario.loader import load_scenario
from loadgen.scenario.prompts import TextUnit
from loadgen.scenario.schedule import PlannedRequest, PointSchedule, plan_point
from loadgen.session import Session
from loadgen.simulation import SimulatedAdapter, World, bodies, loop_factory, prompt_tokens

SERVICE_NS = 200_000_000


class Answer:
    def __init__(self, number: int, end_ns: int) -> None:
        self.number, self.cached_tokens = number, 0
        self.token_at_ns = array("q", [end_ns - SERVICE_NS // 2, end_ns])
        self.counts = array("i")


class Queue:
    """Serves one request after the other, each in 0.2 s; remembers when each came."""

    max_model_len = 100

    def __init__(self) -> None:
        self.came_ns: list[int] = []
        self.aborted: list[int] = []
        self.ends: list[tuple[int, int]] = []

    def next_at_ns(self) -> int | None:
        return self.ends[0][0] if self.ends else None

    def submit(self, number: int, at_ns: int, prompt_token_ids: list[int], max_tokens: int) -> None:
        self.came_ns.append(at_ns)
        self.ends.append((max([at_ns, *(end for end, _ in self.ends)]) + SERVICE_NS, number))

    def abort(self, number: int, at_ns: int) -> None:
        self.aborted.append(number)
        self.ends = [end for end in self.ends if end[1] != number]

    def advance(self, until_ns: int) -> list[Answer]:
        if not self.ends or self.ends[0][0] > until_ns:
            return []
        end_ns, number = self.ends.pop(0)
        return [Answer(number, end_ns)]


def measured(server: Queue, *settings: str, **plan: Any) -> tuple[PointSchedule, PointLog, list[RequestRecord]]:
    """One point of the smoke scenario in virtual time."""
    world = World(server)
    scenario = load_scenario("smoke", ["load.warmup=0s", "load.cooldown=3s", *settings])
    session = Session(scenario, SimulatedAdapter(world), TextUnit("word", 1, 0), "", "r", None, world, bodies)
    planned = plan_point(scenario, point=0, **plan)
    log, records = anyio.run(session.measure, planned, backend_options={"loop_factory": loop_factory(world)})
    return planned, log, records


def test_open_loop_sends_are_due_to_the_nanosecond_and_minutes_pass_at_once() -> None:
    server = Queue()
    plan, log, records = measured(server, "load.duration=600s", rate_rps=2.0)
    due_ns = [log.t0_ns + round(r.at_s * 1e9) for r in plan.requests]
    assert server.came_ns == due_ns[: len(server.came_ns)]
    assert len(server.came_ns) >= sum(r.phase == "measured" for r in plan.requests) > 1000
    assert all(r.sent_at_ns == r.intended_at_ns for r in records)
    assert log.window_end_ns - log.window_start_ns == 600 * 10**9


def test_in_flight_and_latencies_are_those_of_the_server() -> None:
    _, log, records = measured(Queue(), "load.duration=300s", "load.arrivals=constant", rate_rps=4.0)
    assert {(r.last_token_at_ns or 0) - (r.sent_at_ns or 0) for r in records} == {SERVICE_NS}
    assert log.in_flight_mean == pytest.approx(0.8, abs=0.002)


def test_closed_loop_users_send_when_their_answer_has_ended() -> None:
    server = Queue()
    _, log, records = measured(server, "load.duration=20s", concurrency=3)
    assert log.in_flight_max == 3
    ends = {r.last_token_at_ns for r in records}
    assert set(server.came_ns[3:]) <= ends
    assert sum(r.phase == "measured" for r in records) == pytest.approx(100, abs=3)


def test_requests_that_are_in_flight_at_the_end_are_aborted_on_the_server() -> None:
    server = Queue()
    _, _, records = measured(server, "load.duration=10s", rate_rps=20.0)
    unfinished = [r for r in records if r.status == "unfinished"]
    assert len(unfinished) == len(server.aborted) > 50
    assert not server.ends


def test_a_request_that_no_replica_takes_fails_and_does_not_end_the_run() -> None:
    _, _, records = measured(
        Queue(), "load.duration=5s", "workload.prompt.tokens=99", "workload.output.tokens=2", rate_rps=2.0
    )
    assert {(r.status, r.error_class, r.http_status) for r in records} == {("failed", "http_status", 400)}


def test_a_simulation_in_which_nothing_can_happen_says_so() -> None:
    async def wait() -> None:
        await SimulatedAdapter(world).stream(b"1 1 0 0 0", "x", StreamOutcome())

    class Silent(Queue):
        def submit(self, number: int, at_ns: int, prompt_token_ids: list[int], max_tokens: int) -> None: ...

    world = World(Silent())
    with pytest.raises(RuntimeError, match="nothing is going to happen"):
        anyio.run(wait, backend_options={"loop_factory": loop_factory(world)})


def test_prompts_share_exactly_the_tokens_that_the_plan_says() -> None:
    def tokens(index: int, group: int) -> list[int]:
        plan = PlannedRequest(index, 0.0, "measured", 20, 5, prefix_tokens=8, prefix_group=group)
        (body,) = bodies(PointSchedule(1, "open", 1.0, None, 0, 1, (plan,)))
        n_prompt, _, n_prefix, which, content = map(int, body.split())
        return prompt_tokens(n_prompt, n_prefix, which, content)

    first, same, other = tokens(0, 3), tokens(1, 3), tokens(2, 4)
    assert len(first) == 20
    assert first[:8] == same[:8] != other[:8]
    assert first[8] != same[8]
