"""What the roofline was told about a server: written into the manifest before a run, read back for every report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadgen.roofline.bounds import Target, describe_unknown
from loadgen.roofline.hardware import Hardware, MeasuredCeilings, UnknownHardware, find_hardware, this_machine
from loadgen.roofline.model_shape import (
    WEIGHT_BYTES,
    ModelShape,
    UnknownModel,
    UnsupportedModel,
    find_model,
    from_config,
)
from loadgen.scenario.schema import Roofline

Spec = dict[str, Any]
SHAPE_FIELDS = ("n_layers", "hidden", "n_q_heads", "n_kv_heads", "head_dim", "ffn", "vocab")


class BoundProblem(Exception):
    """An option names hardware, a model or a file that can't be used; the text tells the user why."""


def spec_for_server(roofline: Roofline, served_model: str, hardware_from_user: bool) -> Spec:
    """The bound of the user's server, or the reason why there is none.

    The model is the given config.json, else what the server says it serves. The scenario's hardware is only believed
    when its model is the one served, or when the user named it for this run: a shipped scenario knows nothing of the
    user's machine.
    """
    shape, reason = _shape(roofline, served_model)
    hardware = _hardware(roofline.hardware) if roofline.hardware else None
    if not hardware_from_user and roofline.model and shape != _known_shape(roofline.model):
        hardware = None
    if shape is None or hardware is None:
        why = reason or describe_unknown(model_known=shape is not None, hardware_known=hardware is not None)
        return {"reason": why}
    return {
        "shape": asdict(shape),
        "hardware": asdict(hardware),
        "devices": roofline.devices,
        "precision": roofline.precision,
        "kv_precision": roofline.kv_precision,
        "kv_pool_bytes": None,
        "reason": None,
    }


def check_roofline(roofline: Roofline) -> None:
    """Refuse an unknown device, precision or unreadable config before any server is asked; raises BoundProblem."""
    if roofline.hardware:
        _hardware(roofline.hardware)
    if roofline.model_config_path:
        _read_config(Path(roofline.model_config_path))
    for name in (roofline.precision, roofline.kv_precision):
        if name is not None and name not in WEIGHT_BYTES:
            raise BoundProblem(f"unknown precision '{name}': one of {', '.join(WEIGHT_BYTES)}")


def model_named(roofline: Roofline) -> ModelShape:
    """The model that a roofline section names; raises BoundProblem when there is none, or none that can be counted."""
    if not roofline.model and not roofline.model_config_path:
        raise BoundProblem("no model: name one of the table (--model, roofline.model) or give --model-config")
    shape, reason = _shape(roofline, roofline.model or "")
    if shape is None:
        raise BoundProblem(reason or _unknown(roofline.model or ""))
    return shape


def _unknown(name: str) -> str:
    try:
        find_model(name)
    except UnknownModel as error:
        return str(error)
    return ""


def spec_for_bundled(shape: Mapping[str, Any], ceilings: MeasuredCeilings | None, memory_bytes: float) -> Spec:
    """The bound of the bundled engine on this machine's measured ceilings; None = calibration was not possible."""
    if ceilings is None:
        return {"reason": "bound unknown: this machine could not be calibrated"}
    hardware = this_machine(ceilings, mem_bytes=memory_bytes)
    return {
        "shape": asdict(ModelShape(shape["model"], **{name: shape[name] for name in SHAPE_FIELDS}, tied=True)),
        "hardware": asdict(hardware),
        "devices": 1,
        "precision": "fp32",
        "kv_precision": "fp32",
        "kv_pool_bytes": shape["kv_capacity_tokens"] * shape["kv_bytes_per_token"],
        "reason": None,
    }


def target_from(spec: Mapping[str, Any]) -> Target | None:
    """The target of a spec; None when the spec has a reason instead."""
    if spec.get("reason") or "shape" not in spec:
        return None
    return Target(
        model=ModelShape(**spec["shape"]),
        hardware=Hardware(**spec["hardware"]),
        devices=spec["devices"],
        precision=spec["precision"],
        kv_precision=spec["kv_precision"],
        kv_pool_bytes=spec["kv_pool_bytes"],
        replicas=spec.get("replicas", 1),
    )


def _shape(roofline: Roofline, served_model: str) -> tuple[ModelShape | None, str | None]:
    """The model's shape, or None with the reason when it is known but beyond the arithmetic."""
    try:
        if roofline.model_config_path:
            return from_config(_read_config(Path(roofline.model_config_path)), served_model), None
        return find_model(served_model), None
    except UnknownModel:
        return None, None
    except UnsupportedModel as error:
        return None, f"bound unknown: {error}"


def _known_shape(name: str) -> ModelShape | None:
    try:
        return find_model(name)
    except (UnknownModel, UnsupportedModel):
        return None


def _hardware(name: str) -> Hardware:
    try:
        return find_hardware(name)
    except UnknownHardware as error:
        raise BoundProblem(str(error)) from None


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BoundProblem(f"--model-config {path}: {error.strerror}") from None
    except ValueError as error:
        raise BoundProblem(f"--model-config {path}: not JSON ({error})") from None
    if not isinstance(config, dict):
        raise BoundProblem(f"--model-config {path}: a config.json holds an object")
    return config
