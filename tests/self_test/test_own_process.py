"""The doctor borrows cores and open files, and gives them back."""

from __future__ import annotations

import os
import resource

import pytest

from loadgen.self_test.own_process import busy_s, core_busy_s, open_files, parse_cores, pinned_apart, rss_bytes


def test_the_limit_of_open_files_is_raised_for_the_block_only() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    try:
        with open_files(400) as allowed:
            assert allowed == 400
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 400
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300
        with open_files(200) as allowed:
            assert allowed == 200
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300
        if hard != resource.RLIM_INFINITY:
            with open_files(hard + 1) as allowed:
                assert allowed == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_client_and_server_get_different_cores_for_the_block_only() -> None:
    if not hasattr(os, "sched_getaffinity"):
        return
    before = os.sched_getaffinity(0)
    with pinned_apart() as cores:
        if len(before) == 1:
            assert cores is None
        else:
            assert cores is not None
            assert os.sched_getaffinity(0) == {cores[0]}
            assert cores[1] in before - {cores[0]}
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(("text", "cores"), [("0\n", {0}), ("0,4", {0, 4}), ("1-3,7", {1, 2, 3, 7})])
def test_sets_of_cores_are_read_as_the_kernel_writes_them(text: str, cores: set[int]) -> None:
    assert parse_cores(text) == cores


def test_idle_time_is_not_busy_and_stolen_time_is() -> None:
    tick = os.sysconf("SC_CLK_TCK")
    assert busy_s("cpu1 1 2 3 1000 500 4 5 6 0 0") == pytest.approx(21 / tick)


def test_what_linux_tells_is_read() -> None:
    if os.path.exists("/proc/self/statm"):
        assert (rss_bytes() or 0) > 1_000_000
        assert (core_busy_s(min(os.sched_getaffinity(0))) or 0) > 0
