"""No published measurement of a dense model exceeds its bound; figures that can't be true do.

Points: tests/data/roofline_points.json (aiconfigurator's rows: Apache-2.0, see its "about"); more where the design
facts lie beside the checkout.
"""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.roofline.bounds import Mix, Target, bound_at
from loadgen.roofline.hardware import find_hardware
from loadgen.roofline.model_shape import UnsupportedModel, find_model

ROOT = Path(__file__).parents[2]
POINTS = json.loads((ROOT / "tests" / "data" / "roofline_points.json").read_text())["points"]
BULK = ROOT.parent / "shared" / "facts" / "silicon_half.csv"


def _share(point: dict[str, Any]) -> float:
    """Measured output tokens/s over the bound."""
    model = replace(find_model(point["model"]), bytes_per_weight=point["bytes_per_weight"])
    hardware = find_hardware(point["hardware"])
    target = Target(model, hardware, point["devices"], point["precision"], point["kv_precision"])
    mix = Mix(np.array([point["prompt_tokens"]]), np.array([point["output_tokens"]]))
    tps: float = point["output_tps"]
    return tps / bound_at(target, mix, point["concurrency"] or 1e6).output_tps


@pytest.mark.parametrize("point", [p for p in POINTS if p["possible"]], ids=lambda p: p["id"])
def test_a_published_measurement_stays_below_the_bound(point: dict[str, Any]) -> None:
    assert 0.02 < _share(point) <= 1.0


@pytest.mark.parametrize("point", [p for p in POINTS if not p["possible"]], ids=lambda p: p["id"])
def test_a_figure_that_cannot_be_true_is_above_the_bound(point: dict[str, Any]) -> None:
    assert _share(point) > 3


def test_the_best_published_points_come_near_enough_for_the_bound_to_mean_something() -> None:
    shares = sorted(_share(p) for p in POINTS if p["possible"])
    assert shares[-1] > 0.75
    assert shares[len(shares) // 2] > 0.3


def _bulk_share(row: dict[str, str]) -> float:
    """A row of the aiconfigurator sample; lengths drawn in 0.8..1 x nominal count 0.9 x."""
    source = row["silicon_data_source"]
    drawn = 0.9 if re.search(r"db-dump|source_file=2026", source) else 1.0
    ranks = max(1, int(row["attention_dp_size"] or 1))
    found = re.search(r"silicon_concurrency=(\d+)", source)
    concurrency = int(found[1]) if found else int(row["batch_size"]) * ranks
    prompt, output = drawn * float(row["isl"]), drawn * float(row["osl"])
    residence_s = (float(row["silicon_ttft_ms"]) + (output - 1) * float(row["silicon_tpot_ms"])) / 1e3
    devices = int(row["tp_size"]) * int(row["pp_size"]) * ranks
    target = Target(find_model(row["model_path"]), find_hardware(row["system"]), devices, row["precision"] or "bf16")
    bound = bound_at(target, Mix(np.array([prompt]), np.array([output])), concurrency)
    return concurrency * output / residence_s / bound.output_tps


def test_no_dense_row_of_the_bulk_sample_exceeds_the_bound() -> None:
    if not BULK.exists():
        pytest.skip("the design facts (shared/facts/silicon_half.csv) are not beside this checkout")
    shares = []
    for row in csv.DictReader(BULK.read_text().splitlines()):
        try:
            shares.append(_bulk_share(row))
        except UnsupportedModel:
            continue
    assert len(shares) > 500
    assert max(shares) <= 1.0
    assert float(np.median(shares)) == pytest.approx(0.28, abs=0.05)
