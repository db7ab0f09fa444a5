"""The gate's arithmetic round its statistics: which figure is gated, and how a decision is told."""

from __future__ import annotations

import math
from typing import Any

import pytest

from engine_adapters.sockets import kernel_stamps
from engine_adapters.transport import HttpClient
from loadgen.analysis.gate import MARGINS, decide
from loadgen.commands.common import UsageProblem
from loadgen.commands.gating import figure, metric_row, smallest_margins, stamp_alike, wanted_margins

ROW: dict[str, Any] = {
    "goodput_rps": 3.5,
    "output_tps": 100.0,
    "counts": {"due": 400, "ok": 396, "failed": 3, "unfinished": 1, "shed": 0},
    "metrics": {
        "ttft": {"from_intended": {"p95": 0.25}, "from_sent": {"p95": 0.2}},
        "tpot": {"p50": 0.01, "p95": 0.02},
    },
}


@pytest.mark.parametrize(
    ("metric", "value"),
    [("ttft_p95", 0.25), ("tpot_p95", 0.02), ("goodput", 3.5), ("output_tps", 100.0), ("error_rate", 0.01)],
)
def test_gated_figures_are_those_of_the_user(metric: str, value: float) -> None:
    assert figure(ROW, metric) == pytest.approx(value)


def test_the_users_margins_stand_beside_the_default_ones() -> None:
    margins = wanted_margins(["ttft_p95=20%", "itl_p99=15%"])
    assert margins["ttft_p95"].limit == pytest.approx(0.20)
    assert margins["itl_p99"].limit == pytest.approx(0.15)
    assert "tpot_p50" in margins
    with pytest.raises(UsageProblem, match="did you mean"):
        wanted_margins(["ttft_p59=20%"])


def test_a_failed_metric_says_by_how_much() -> None:
    decision = decide({"tpot_p95": [math.log(1.3)] * 4 + [math.log(1.31)]})
    row = metric_row(decision.metrics[0], MARGINS["tpot_p95"])
    assert row["verdict"] == "FAIL"
    assert row["ratio"] == pytest.approx(1.302, abs=0.001)
    assert row["ratio_low"] < row["ratio"] < row["ratio_high"]
    assert "+30.2% where +5% is allowed" in row["text"]


def test_goodput_may_fall_and_error_rate_is_a_difference() -> None:
    good = metric_row(decide({"goodput": [0.0, 0.001, -0.001, 0.0, 0.0]}).metrics[0], MARGINS["goodput"])
    assert (good["margin"], good["verdict"]) == (-0.05, "PASS")
    errors = metric_row(decide({"error_rate": [0.0, 0.001, 0.0, 0.0, 0.0]}).metrics[0], MARGINS["error_rate"])
    assert errors["ratio"] is None
    assert "points" in errors["margin"]


def test_the_self_check_names_what_the_host_can_tell_apart() -> None:
    text = smallest_margins(decide({"tpot_p95": [0.01, -0.01, 0.02, 0.0, -0.02]}))
    assert "tpot_p95" in text
    assert "%" in text


@pytest.mark.skipif(not kernel_stamps(), reason="this system does not stamp received bytes")
def test_both_sides_of_a_gate_are_stamped_alike(capsys: pytest.CaptureFixture[str]) -> None:
    plain, other, tls = HttpClient("http://a:1"), HttpClient("http://b:1"), HttpClient("https://c:1")
    stamp_alike([plain, other])
    assert plain.kernel_stamped
    assert capsys.readouterr().err == ""
    stamp_alike([plain, tls])
    assert not plain.kernel_stamped
    assert "both sides are stamped when read" in capsys.readouterr().err
