"""The gate: its statistics against scipy, its looks, its margins, and its error rates by simulation."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from loadgen.analysis.gate import ALPHA, LOOKS, MARGINS, GateDecision, Margin, decide, effect, holm, parse_margin

METRICS = ("ttft_p95", "tpot_p50", "e2e_p50", "e2e_p95", "goodput", "error_rate")


def test_the_interval_is_students_t_on_log_ratios() -> None:
    ratios = [1.02, 1.05, 0.99, 1.04, 1.01]
    logs = np.log(ratios)
    decision = decide({"e2e_p95": logs.tolist()}).metrics[0]
    low, high = stats.t.interval(1 - ALPHA, 4, logs.mean(), stats.sem(logs))
    assert decision.interval == pytest.approx((math.expm1(low), math.expm1(high)))
    assert decision.change == pytest.approx(math.expm1(logs.mean()))
    reference = stats.ttest_1samp(logs, math.log(1.05), alternative="greater").pvalue
    assert decision.p_regression == pytest.approx(reference)


def test_fail_pass_extend_and_inconclusive() -> None:
    slower, same = [0.26, 0.27, 0.25, 0.26, 0.28], [0.001, -0.002, 0.0, 0.003, -0.001]
    torn = [0.30, -0.25, 0.1, 0.2, -0.1]
    assert decide({"e2e_p95": slower, "tpot_p50": same}).verdict == "FAIL"
    assert decide({"e2e_p95": same, "tpot_p50": same}).verdict == "PASS"
    extend = decide({"e2e_p95": torn, "tpot_p50": same})
    assert (extend.verdict, extend.next_look) == ("EXTEND", 8)
    assert decide({"e2e_p95": (torn * 2)[:8]}).next_look == 12
    last = decide({"e2e_p95": (torn * 3)[:12]})
    assert (last.verdict, last.next_look) == ("INCONCLUSIVE", None)
    assert (decide({"e2e_p95": slower[:4]}).verdict, decide({"e2e_p95": slower[:4]}).next_look) == ("EXTEND", 5)


def test_lower_goodput_is_worse_and_the_error_rate_is_a_difference_in_points() -> None:
    assert decide({"goodput": [math.log(0.9) + d for d in (0, 0.001, -0.001, 0.002, 0)]}).verdict == "FAIL"
    assert decide({"goodput": [math.log(1.3) + d for d in (0, 0.001, -0.001, 0.002, 0)]}).verdict == "PASS"
    assert decide({"error_rate": [0.0] * 5}).verdict == "PASS"
    assert decide({"error_rate": [0.02, 0.021, 0.02, 0.019, 0.02]}).verdict == "FAIL"
    assert effect("error_rate", 0.01, 0.03) == pytest.approx(0.02)
    assert effect("ttft_p95", 0.2, 0.3) == pytest.approx(math.log(1.5))
    assert effect("ttft_p95", None, 0.3) is None
    assert effect("goodput", 0.0, 0.3) is None


def test_the_default_margins_are_those_of_the_design() -> None:
    limits = {name: MARGINS[name].limit for name in MARGINS}
    assert limits["tpot_p50"] == limits["tpot_p95"] == limits["e2e_p50"] == limits["e2e_p95"] == 0.05
    assert limits["ttft_p95"] == limits["e2e_p99"] == limits["itl_p99"] == limits["tpot_p99"] == 0.10
    assert (limits["goodput"], limits["error_rate"]) == (0.05, 0.01)


def test_margins_are_read_as_people_write_them() -> None:
    assert parse_margin("ttft_p95=10%") == ("ttft_p95", Margin(0.10))
    assert parse_margin("goodput = -5%")[1] == Margin(0.05, higher_is_better=True)
    assert parse_margin("error_rate=2")[1] == Margin(0.02, difference=True)


@pytest.mark.parametrize(
    "text", ["ttft_p96=10%", "ttft_p95", "ttft_p95=ten%", "ttft_p95=0.1", "ttft_p95=-3%", "goodput=-100%"]
)
def test_a_wrong_margin_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match=text.split("=")[0]):
        parse_margin(text)


def test_holm_is_the_step_down_adjustment() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})


def test_undefined_effects_are_refused() -> None:
    with pytest.raises(ValueError, match="left out"):
        decide({"e2e_p95": [0.1, math.nan, 0.1, 0.1, 0.1]})
    with pytest.raises(ValueError, match="metric"):
        decide({})


def _gate(rng: np.random.Generator, slowdown: float, noise: float) -> GateDecision:
    """Run a gate to its end: latencies share half of a pair's noise, as quantiles of the same run do."""
    common, own = rng.normal(0, noise, 12), rng.normal(0, noise, (len(METRICS), 12))
    for look in LOOKS:
        pairs = {}
        for row, name in enumerate(METRICS):
            log_ratios = math.log(slowdown) + math.sqrt(0.5) * (common + own[row])
            sign = {"goodput": -1.0, "error_rate": 0.0}.get(name, 1.0)
            pairs[name] = (sign * log_ratios[:look]).tolist()
        decision = decide(pairs)
        if decision.verdict != "EXTEND":
            return decision
    return decision


@pytest.mark.parametrize("noise", [0.01, 0.04, 0.10])
def test_identical_builds_hardly_ever_fail(noise: float) -> None:
    # A margin of 5% stands between equality and FAIL. Noise of 4% (10%): true rate < 0.3% (< 1%); 3 of 150 allows 2%.
    rng = np.random.default_rng(round(1000 * noise))
    seen = Counter(_gate(rng, 1.0, noise).verdict for _ in range(150))
    assert seen["FAIL"] <= 3
    assert noise > 0.01 or seen["PASS"] == 150


@pytest.mark.parametrize("noise", [0.01, 0.04])
def test_a_build_that_is_30_percent_slower_always_fails(noise: float) -> None:
    # 100 of 100: at 4% noise the margins lie more than 9 standard errors away after five pairs.
    rng = np.random.default_rng(7)
    assert all(_gate(rng, 1.3, noise).verdict == "FAIL" for _ in range(100))


def test_a_change_exactly_at_the_margin_fails_at_the_stated_rate() -> None:
    # One metric whose true change is its margin: three looks at .011 one-sided give about 2.5%. 600 gates: at most 5%.
    rng = np.random.default_rng(8)
    fails = 0
    for _ in range(600):
        effects = rng.normal(math.log(1.05), 0.03, 12)
        for look in LOOKS:
            verdict = decide({"e2e_p95": effects[:look].tolist()}).verdict
            if verdict != "EXTEND":
                break
        fails += verdict == "FAIL"
    assert 0 < fails <= 0.05 * 600
