"""The hardware table: lookup by the names people write, and peaks that a measurement can't pass."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from loadgen.roofline.hardware import (
    UnknownHardware,
    datasheet_peak,
    find_hardware,
    known_hardware,
    strict_peak,
    this_machine,
)


@pytest.mark.parametrize("written", ["h100-sxm", "H100_SXM", "h100 sxm", "NVIDIA H100-SXM", "h100sxm"])
def test_case_separators_and_vendor_do_not_matter(written: str) -> None:
    assert find_hardware(written).name == "H100-SXM"


def test_a_name_that_begins_exactly_one_device_is_enough() -> None:
    assert find_hardware("b200").name == "B200-SXM"
    with pytest.raises(UnknownHardware, match=r"H200-SXM.*H200-NVL"):
        find_hardware("h200")


@pytest.mark.parametrize(("written", "near"), [("h100-smx", "H100-SXM"), ("MI305X", "MI300X"), ("rtx4080", "RTX4090")])
def test_an_unknown_name_is_an_error_that_names_the_nearest(written: str, near: str) -> None:
    with pytest.raises(UnknownHardware, match=near):
        find_hardware(written)


@pytest.mark.parametrize("written", ["", "toaster", "h"])
def test_nonsense_is_never_matched(written: str) -> None:
    with pytest.raises(UnknownHardware):
        find_hardware(written)


def test_all_forty_devices_carry_source_bandwidth_and_memory() -> None:
    devices = [find_hardware(name) for name in known_hardware()]
    assert len(devices) == 40
    for device in devices:
        assert device.source
        assert 100e9 < device.bandwidth_bps < 20e12
        assert device.mem_bytes > 10 * 2**30
        assert all(1e12 < flops < 20e15 for flops in device.peak_flops.values())
    assert {d.name for d in devices if not d.confirmed} >= {"H100-PCIe", "Grace-72c"}


def test_memory_is_what_the_device_itself_reports() -> None:
    assert find_hardware("h100-sxm").mem_bytes == 81559 * 2**20
    assert find_hardware("a100-40-sxm").mem_bytes == 40 * 2**30


def test_corrected_figures_stay_corrected() -> None:
    assert find_hardware("h100-sxm").bandwidth_bps == 3350e9
    assert find_hardware("rtx5090").peak_flops["fp8"] == pytest.approx(838e12)
    assert find_hardware("rtx4090").peak_flops["bf16"] == pytest.approx(165.2e12)
    assert find_hardware("RTX-PRO-6000-BW-Server").bandwidth_bps == 1597e9


@pytest.mark.parametrize(
    ("device", "precision", "measured_tflops"),
    [("rtx5090", "bf16", 254.0), ("rtx4090", "bf16", 179.2), ("rtx4090", "fp8", 354.3), ("h200-nvl", "bf16", 853.3)],
)
def test_the_strict_peak_is_not_below_the_best_measurement_and_says_why(
    device: str, precision: str, measured_tflops: float
) -> None:
    peak = strict_peak(find_hardware(device), precision)
    sheet = datasheet_peak(find_hardware(device), precision)
    assert peak is not None
    assert sheet is not None
    assert peak.flops >= measured_tflops * 1e12 > sheet.flops
    assert peak.basis == "best measurement"
    assert sheet.basis == "datasheet"


@pytest.mark.parametrize("name", known_hardware())
def test_an_unknown_precision_takes_the_largest_peak(name: str) -> None:
    device = find_hardware(name)
    unknown = strict_peak(device, None)
    for precision in ("fp32", "bf16", "fp16", "fp8", "int8", "fp4", "int4"):
        known = strict_peak(device, precision)
        assert (known is None) == (unknown is None)
        assert known is None or unknown is None or known.flops <= unknown.flops


def test_narrow_weights_without_units_of_their_own_use_wider_ones() -> None:
    a100 = find_hardware("a100-80-sxm")
    fp8, int8 = strict_peak(a100, "fp8"), strict_peak(a100, "int8")
    assert fp8 is not None
    assert fp8.flops == 312e12
    assert int8 is not None
    assert int8.flops == 624e12


def test_a_device_without_a_peak_has_none() -> None:
    assert strict_peak(find_hardware("m4-max"), "bf16") is None


@dataclass(frozen=True)
class _Measured:
    bandwidth_bps: float = 75e9
    flops: float = 100e9
    source: str = "gemv and sgemm"


def test_this_machine_is_what_was_measured() -> None:
    machine = this_machine(_Measured())
    peak = strict_peak(machine, "fp32")
    assert machine.bandwidth_bps == 75e9
    assert machine.source == "gemv and sgemm"
    assert peak is not None
    assert peak.flops == 100e9
