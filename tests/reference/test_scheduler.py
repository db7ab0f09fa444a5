"""What the scheduler promises, one promise a test; test_engine_fuzz.py shows that nothing goes wrong at random."""

from __future__ import annotations

import pytest
from support.oracle import EOS, OracleExecutor, expected_output

from engine_adapters.reference.config import EngineConfig
from engine_adapters.reference.engine import EngineCore
from engine_adapters.reference.request import Request, SamplingParams
from engine_adapters.reference.scheduler import Drafter, Scheduler, no_draft


class Bench:
    """An engine core over the oracle, and what each of its steps did."""

    def __init__(self, draft: Drafter = no_draft, **config: object) -> None:
        self.config = EngineConfig(**({"block_size": 4, "num_blocks": 64, "max_model_len": 128} | config))  # type: ignore[arg-type]
        self.executor = OracleExecutor(self.config.block_size)
        self.core = EngineCore(self.config, self.executor, draft)
        self.scheduler = self.core.scheduler

    def add(self, name: str, prompt: list[int], max_tokens: int = 20, priority: int = 0) -> Request:
        request = Request(name, prompt, max_tokens, ignore_eos=True, priority=priority)
        self.core.add(request)
        return request

    def step(self) -> list[tuple[str, int, bool]]:
        """Name, tokens and whether it samples, of all that one step computed."""
        self.core.step()
        return [(item.request.request_id, item.num_tokens, item.samples) for item in self.executor.last.scheduled]

    def running(self) -> list[str]:
        return [request.request_id for request in self.scheduler.running]

    def run(self) -> None:
        while self.scheduler.has_work:
            self.core.step()


def test_preemption_takes_the_last_admitted_and_loses_no_token() -> None:
    bench = Bench(max_num_batched_tokens=64, num_blocks=6, max_model_len=24)
    requests = [bench.add(str(i), [i] * 8, 16) for i in range(3)]
    bench.run()
    assert requests[0].num_preemptions == 0
    assert requests[2].num_preemptions > 0
    assert [r.output_token_ids for r in requests] == [expected_output([i] * 8, 16) for i in range(3)]
    assert bench.scheduler.stats.num_preemptions == sum(request.num_preemptions for request in requests)


def test_running_requests_go_before_waiting_ones_and_a_long_prompt_comes_in_chunks() -> None:
    bench = Bench(max_num_batched_tokens=10, block_size=16)
    bench.add("short", [1] * 4)
    bench.add("long", [2] * 25)
    assert [bench.step() for _ in range(5)] == [
        [("short", 4, True), ("long", 6, False)],
        [("short", 1, True), ("long", 9, False)],
        [("short", 1, True), ("long", 9, False)],
        [("short", 1, True), ("long", 1, True)],
        [("short", 1, True), ("long", 1, True)],
    ]


def test_a_threshold_lets_short_prompts_pass_through_beside_a_long_one() -> None:
    bench = Bench(max_num_batched_tokens=32, long_prefill_token_threshold=8)
    bench.add("long", [2] * 40)
    bench.add("short", [1] * 4)
    assert bench.step() == [("long", 8, False), ("short", 4, True)]
    assert bench.step() == [("long", 8, False), ("short", 1, True)]


def test_no_more_than_max_num_seqs_run_at_once() -> None:
    bench = Bench(max_num_seqs=2)
    for i in range(5):
        bench.add(str(i), [i] * 3)
    bench.step()
    assert bench.running() == ["0", "1"]
    assert len(bench.scheduler.waiting) == 3


def test_first_come_first_served_whatever_the_priority_unless_the_policy_asks_for_it() -> None:
    for policy, order in (("fcfs", ["first", "second", "third"]), ("priority", ["third", "first", "second"])):
        bench = Bench(max_num_seqs=1, policy=policy)
        requests = [bench.add("first", [1], 2, 1), bench.add("second", [2], 2, 1), bench.add("third", [3], 2, 0)]
        seen: list[str] = []
        while bench.scheduler.has_work:
            bench.core.step()
            seen += [request.request_id for request in bench.executor.last.admitted]
        assert seen == order
        assert all(request.finish_reason == "length" for request in requests)


def test_under_priority_the_least_urgent_is_preempted_also_if_it_came_first() -> None:
    bench = Bench(policy="priority", num_blocks=6, max_model_len=24)
    lazy, urgent = bench.add("lazy", [1] * 8, 16, priority=5), bench.add("urgent", [2] * 8, 16, priority=1)
    bench.run()
    assert urgent.num_preemptions == 0
    assert lazy.num_preemptions > 0


def test_a_preempted_request_is_admitted_before_those_that_came_after_it() -> None:
    bench = Bench(num_blocks=6, max_model_len=24, max_num_seqs=2)
    first, second = bench.add("first", [1] * 8, 16), bench.add("second", [2] * 8, 16)
    bench.add("third", [3] * 4, 1)
    while not second.num_preemptions:
        bench.step()
    assert [request.request_id for request in bench.scheduler.waiting] == ["second", "third"]
    assert first.num_preemptions == 0


def test_a_shared_prefix_is_computed_once_and_counted() -> None:
    bench = Bench()
    stem = list(range(10))
    bench.add("one", [*stem, 50], 1)
    bench.step()
    two = bench.add("two", [*stem, 60, 61], 3)
    assert bench.step() == [("two", 4, True)], "two full blocks of four are found, the rest is computed"
    assert two.num_cached_tokens == 8
    assert bench.scheduler.stats.prefix_cache_queries == 11 + 12
    assert bench.scheduler.stats.prefix_cache_hits == 8
    bench.run()
    assert two.output_token_ids == expected_output([*stem, 60, 61], 3)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    bench = Bench()
    bench.add("one", [7] * 8, 1)
    bench.step()
    bench.add("two", [7] * 8, 1)
    assert bench.step() == [("two", 4, True)], "both blocks are known, but the second gives the first token"


def test_an_answer_is_found_by_the_next_turn_of_its_conversation() -> None:
    bench = Bench()
    one = bench.add("one", [3] * 6, 10)
    bench.run()
    two = bench.add("two", [*one.token_ids, 1, 2], 1)
    bench.step()
    assert two.num_cached_tokens == 12, "of 15 computed tokens three blocks of four were full"


def test_nothing_is_shared_without_prefix_caching() -> None:
    bench = Bench(enable_prefix_caching=False)
    for name in ("one", "two"):
        bench.add(name, [7] * 20, 1)
        assert bench.step() == [(name, 20, True)]
    assert bench.scheduler.pool.num_cached_blocks == 0


def test_what_a_failed_step_computed_is_not_found_later(capfd: pytest.CaptureFixture[str]) -> None:
    bench = Bench()
    failed = bench.add("one", [7] * 8, 1)
    bench.executor.fails = True
    bench.core.step()
    assert (failed.finish_reason, failed.error) == ("error", "RuntimeError: a worker fails on purpose")
    bench.executor.fails = False
    bench.add("two", [7] * 8, 1)
    assert bench.step() == [("two", 8, True)]
    assert "a worker fails on purpose" in capfd.readouterr().err


def test_reserving_holds_the_longest_answer_for_everyone_so_a_lower_limit_lets_more_run() -> None:
    n_running = {}
    for limit in (128, 32):
        bench = Bench(admission="reserve", max_model_len=limit)
        for i in range(20):
            bench.add(str(i), [i] * 4, 8)
        bench.step()
        n_running[limit] = len(bench.running())
        assert bench.scheduler.pool.num_free_blocks == 64 - n_running[limit] * limit // 4
        bench.run()
        assert bench.scheduler.stats.num_preemptions == 0
    assert n_running == {128: 2, 32: 8}


def guess_half_right(request: Request, n_tokens: int) -> list[int]:
    return [*expected_output(request.token_ids, 2)[:n_tokens], 99, 99][:n_tokens]


def test_accepted_guesses_come_as_several_tokens_of_one_step_and_are_counted() -> None:
    bench = Bench(guess_half_right, num_speculative_tokens=4)
    request = bench.add("0", [5] * 3, 12)
    sizes = []
    while bench.scheduler.has_work:
        sizes += [len(output.token_ids) for output in bench.core.step()]
    assert sizes == [1, 3, 3, 3, 2], "the prompt's token, two right guesses and the correction, the rest"
    assert request.output_token_ids == expected_output([5] * 3, 12)
    assert (request.num_draft_tokens, request.num_accepted_tokens) == (4 + 4 + 4 + 1, 2 + 2 + 2 + 1)
    assert bench.scheduler.stats.num_drafts == 4


def test_guesses_never_cost_a_request_its_place() -> None:
    # Four blocks: the first holds two until it ends, just before the second needs its third. With a guess it would
    # need it at once.
    bench = Bench(lambda request, n_tokens: [99] * n_tokens, num_speculative_tokens=4, num_blocks=4, max_model_len=16)
    bench.add("first", [1] * 4, 5)
    bench.add("second", [2] * 4, 9)
    bench.run()
    assert bench.scheduler.stats.num_draft_tokens > 0
    assert bench.scheduler.stats.num_preemptions == 0


def test_a_request_that_could_never_fit_is_refused() -> None:
    scheduler = Scheduler(EngineConfig(max_model_len=32), frozenset({EOS}))
    for request in (Request("0", [1] * 20, 13), Request("0", [], 13), Request("0", [1], 0)):
        with pytest.raises(ValueError, match="max_"):
            scheduler.add(request)
    assert not scheduler.has_work


def test_min_tokens_holds_back_the_end_of_sequence_and_stop_tokens() -> None:
    for end in (EOS, 77):
        scheduler = Scheduler(EngineConfig(), frozenset({EOS}))
        request = Request("0", [1], 10, min_tokens=2, sampling=SamplingParams(stop_token_ids=frozenset({77})))
        scheduler.add(request)
        ends = []
        for _ in range(3):
            output = scheduler.schedule()
            sampled = end if request.eos_allowed else 5
            ends += [result.finish_reason for result in scheduler.update_from_output(output, [[sampled]])]
        assert ends == [None, None, "stop"]
        assert request.output_token_ids == [5, 5]


def test_what_is_sampled_behind_the_end_is_no_part_of_the_answer() -> None:
    for sampled, reason in (([4, EOS, 9], "stop"), ([4, 5, 6], "length")):
        scheduler = Scheduler(EngineConfig(), frozenset({EOS}))
        request = Request("0", [1], 2)
        scheduler.add(request)
        (result,) = scheduler.update_from_output(scheduler.schedule(), [sampled])
        assert (result.finish_reason, result.token_ids) == (reason, [4] if reason == "stop" else [4, 5])


def test_each_request_carries_the_instants_of_its_life() -> None:
    scheduler = Scheduler(EngineConfig(max_num_seqs=1), frozenset({EOS}))
    first, second = Request("0", [1], 2, ignore_eos=True), Request("1", [1], 5)
    scheduler.add(first, 1.0)
    scheduler.add(second, 2.0)
    for now_s in (3.0, 5.0):
        scheduler.update_from_output(scheduler.schedule(now_s), [[7]], now_s + 1.0)
    scheduler.abort("1", now_s=9.0)
    stamps = [(r.arrived_at_s, r.first_scheduled_at_s, r.first_token_at_s, r.finished_at_s) for r in (first, second)]
    assert stamps == [(1.0, 3.0, 4.0, 6.0), (2.0, None, None, 9.0)]


def test_a_worker_that_samples_nothing_where_it_must_is_found_out() -> None:
    scheduler = Scheduler(EngineConfig(), frozenset({EOS}))
    scheduler.add(Request("0", [1], 5))
    with pytest.raises(ValueError, match="no token was sampled"):
        scheduler.update_from_output(scheduler.schedule(), [[]])
