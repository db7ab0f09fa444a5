"""Ceilings of this machine: the best of what was seen, in a process of one BLAS thread."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine_adapters.reference.calibrate import CalibrationError, Ceilings, best_rate, combine, measure_ceilings


def test_the_best_repeat_counts_not_the_mean() -> None:
    durations = iter([4.0, 1.0, 2.0, 8.0])
    now = 0.0

    def work() -> None:
        nonlocal now
        now += next(durations)

    assert best_rate(work, 100.0, budget_s=10.0, clock=lambda: now) == 100.0


def test_three_repeats_are_made_even_when_the_time_is_up() -> None:
    calls, now = 0, 0.0

    def work() -> None:
        nonlocal calls, now
        calls, now = calls + 1, now + 5.0

    best_rate(work, 1.0, budget_s=0.0, clock=lambda: now)
    assert calls == 3


def test_combining_takes_the_larger_of_each() -> None:
    both = combine(Ceilings(70e9, 105e9, "gemv", 1000), Ceilings(75e9, 100e9, "gemv", 1000))
    assert (both.bandwidth_bps, both.flops, both.source) == (75e9, 105e9, "gemv")
    with pytest.raises(ValueError, match="working sets"):
        combine(both, Ceilings(75e9, 100e9, "gemv", 2000))


def test_a_child_of_one_thread_measures_and_says_how() -> None:
    ceilings = measure_ceilings(2_000_000, budget_s=0.2)
    assert ceilings.working_set_bytes == 2_000_000
    assert "one BLAS thread" in ceilings.source
    assert 1e8 < ceilings.bandwidth_bps < 1e13
    assert 1e8 < ceilings.flops < 1e14


def test_importing_the_module_does_not_start_a_blas() -> None:
    code = "import sys, engine_adapters.reference.calibrate; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_child_is_told_to_use_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    def fake_run(command: list[str], *, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        seen.update(env)
        return subprocess.CompletedProcess(command, 1, "", "boom\n")

    monkeypatch.setattr(subprocess, "run", fake_run)
    with pytest.raises(CalibrationError, match="boom"):
        measure_ceilings(1_000_000)
    assert seen["OPENBLAS_NUM_THREADS"] == seen["OMP_NUM_THREADS"] == seen["MKL_NUM_THREADS"] == "1"


def test_a_working_set_below_one_row_is_refused() -> None:
    with pytest.raises(ValueError, match="weight_bytes"):
        measure_ceilings(100)
