"""Owns what a device can do at most: memory, bandwidth and peak FLOP/s, from the shipped table or measured here."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any, Protocol

GIB = 1024**3

# Operand formats whose peak may apply to weights of a precision, any of which the engine may use: the largest counts.
_OPERANDS: dict[str, tuple[str, ...]] = {
    "fp32": ("fp32", "bf16"),
    "bf16": ("bf16", "fp32"),
    "fp16": ("fp16", "bf16", "fp32"),
    "fp8": ("fp8", "bf16", "fp32"),
    "int8": ("int8", "fp8", "bf16", "fp32"),
    "fp4": ("fp4", "fp8", "bf16", "fp32"),
    "int4": ("fp4", "int8", "fp8", "bf16", "fp32"),
}
_NOISE = ("nvidia", "amd", "intel", "apple", "google")


class UnknownHardware(ValueError):
    """No device of that name, or several; the text names the nearest ones."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device.

    `mem_bytes` is what the device itself reports where that is known, else its nominal size; infinite where memory
    is no limit. `peak_flops` are dense datasheet FLOP/s by operand format; `roof_flops` holds the higher figures
    that have been reached or that the clock allows, with their basis in `roof_basis`. Datasheets are not a strict
    roof: boosting cards pass them (RTX 5090: 254 against 209.5 TFLOP/s bf16).
    """

    name: str
    mem_bytes: float
    bandwidth_bps: float
    peak_flops: Mapping[str, float]
    source: str
    confirmed: bool
    note: str = ""
    roof_flops: Mapping[str, float] = field(default_factory=dict)
    roof_basis: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Peak:
    """FLOP/s of one device with the operand format and the basis of the figure ("datasheet", "clock headroom"...)."""

    flops: float
    operands: str
    basis: str


class MeasuredCeilings(Protocol):
    """What a calibration of a machine found: read bytes/s at that working set, and FLOP/s in single precision."""

    @property
    def bandwidth_bps(self) -> float: ...
    @property
    def flops(self) -> float: ...
    @property
    def source(self) -> str: ...


def datasheet_peak(hardware: Hardware, precision: str | None) -> Peak | None:
    """Largest datasheet peak that could apply to weights of `precision` (None = unknown: any); None when no figure.

    int8 and 4-bit weights may run on int8 units at twice the bf16 rate, where a table has no figure of its own.
    """
    return _largest(dict(hardware.peak_flops), precision, {})


def strict_peak(hardware: Hardware, precision: str | None) -> Peak | None:
    """As `datasheet_peak`, but for a bound that must not be violated: the larger of datasheet and known roof."""
    peaks = {k: max(hardware.peak_flops.get(k, 0.0), hardware.roof_flops.get(k, 0.0)) for k in _formats(hardware)}
    basis = {k: hardware.roof_basis[k] for k, v in hardware.roof_flops.items() if v > hardware.peak_flops.get(k, 0.0)}
    return _largest(peaks, precision, basis)


def this_machine(ceilings: MeasuredCeilings, mem_bytes: float = float("inf")) -> Hardware:
    """The machine that `ceilings` were measured on, as one device; its FLOP/s hold for every operand format."""
    return Hardware(
        name="this machine",
        mem_bytes=mem_bytes,
        bandwidth_bps=ceilings.bandwidth_bps,
        peak_flops={"fp32": ceilings.flops},
        source=ceilings.source,
        confirmed=True,
    )


def known_hardware() -> tuple[str, ...]:
    """Names in the shipped table."""
    return tuple(_table())


def find_hardware(name: str) -> Hardware:
    """The device called `name`; case, separators and the vendor's name don't matter ("h100-sxm", "NVIDIA H100 SXM").

    A name that begins exactly one known name is enough ("b200"). Raises UnknownHardware, naming the nearest.
    """
    wanted = _squash(name)
    by_key = {_squash(known): device for known, device in _table().items()}
    if wanted in by_key:
        return by_key[wanted]
    begins = [key for key in by_key if wanted and key.startswith(wanted)]
    if len(begins) == 1:
        return by_key[begins[0]]
    near = begins or difflib.get_close_matches(wanted, by_key, n=4, cutoff=0.5)
    names = ", ".join(by_key[key].name for key in near) or ", ".join(known_hardware())
    raise UnknownHardware(f"unknown hardware {name!r}: {'which of' if begins else 'did you mean one of'} {names}?")


def _formats(hardware: Hardware) -> set[str]:
    return set(hardware.peak_flops) | set(hardware.roof_flops)


def _largest(peaks: dict[str, float], precision: str | None, basis: Mapping[str, str]) -> Peak | None:
    """The largest peak among the operand formats that may serve `precision`."""
    if "bf16" in peaks:
        peaks.setdefault("int8", 2 * peaks["bf16"])
    if precision is not None and precision not in _OPERANDS:
        raise ValueError(f"unknown precision {precision!r}: use one of {', '.join(_OPERANDS)}")
    allowed = peaks if precision is None else [k for k in _OPERANDS[precision] if k in peaks]
    if not allowed:
        return None
    best = max(allowed, key=lambda k: peaks[k])
    return Peak(peaks[best], best, basis.get(best, "datasheet"))


def _squash(name: str) -> str:
    words = [w for w in re.split(r"[^a-z0-9]+", name.lower()) if w and w not in _NOISE]
    return "".join(words)


@lru_cache(maxsize=1)
def _table() -> dict[str, Hardware]:
    text = resources.files(__package__).joinpath("hardware.json").read_text(encoding="utf-8")
    return {row["name"]: _from_row(row) for row in json.loads(text)["devices"]}


def _from_row(row: Mapping[str, Any]) -> Hardware:
    mem_bytes = row["smi_mib"] * 1024**2 if row["smi_mib"] else row["mem_gib"] * GIB
    return Hardware(
        name=row["name"],
        mem_bytes=float(mem_bytes),
        bandwidth_bps=row["bandwidth_gbs"] * 1e9,
        peak_flops={k: v * 1e12 for k, v in row["tflops"].items()},
        source=row["source"],
        confirmed=row["confirmed"],
        note=row["note"] or "",
        roof_flops={k: v[0] * 1e12 for k, v in row["roof_tflops"].items()},
        roof_basis={k: v[1] for k, v in row["roof_tflops"].items()},
    )
