"""Owns reading safetensors: tensors by name as float32, out of one file or of the shards that an index names.

The format: 8 bytes of header length, little endian, a JSON header {name: {dtype, shape, data_offsets}}, then the data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_adapters.reference.hf_config import ModelError, read_json

Array = NDArray[np.float32]
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}
MAX_HEADER_BYTES = 100 << 20  # the limit of the reference implementation


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies: `offset` counts bytes from the start of `path`."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int


class Checkpoint:
    """The tensors of a model folder. Nothing but headers is read before a tensor is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries = {name: entry for path in _files(folder) for name, entry in _read_header(path).items()}

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def read(self, name: str, *shape: int) -> Array:
        """A tensor of exactly this shape, as float32. Raises ModelError if it is missing, or is something else."""
        entry = self.entries.get(name)
        if entry is None:
            raise ModelError(f"{self.folder}: the weights have no tensor {name}")
        if entry.shape != shape:
            raise ModelError(f"{entry.path}: {name} is {list(entry.shape)}, and config.json asks for {list(shape)}")
        raw = np.memmap(entry.path, np.uint8, "r", entry.offset, (math.prod(shape) * ITEM_BYTES[entry.dtype],))
        return to_float32(raw, entry.dtype).reshape(shape)


def to_float32(raw: NDArray[np.uint8], dtype: str) -> Array:
    """A tensor's bytes as float32; bfloat16 is the upper half of one."""
    if dtype == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return raw.view({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]).astype(np.float32)


def _files(folder: Path) -> Iterable[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return [folder / "model.safetensors"]
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelError(f"{index}: no usable weight_map")
    names = sorted(set(weight_map.values()))
    if any(Path(name).name != name for name in names):
        raise ModelError(f"{index}: a shard outside of the folder")
    return [folder / name for name in names]


def _read_header(path: Path) -> dict[str, TensorEntry]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            n_header = int.from_bytes(file.read(8), "little")
            if not 2 <= n_header <= min(size - 8, MAX_HEADER_BYTES):
                raise ModelError(f"{path}: not a safetensors file")
            header = json.loads(file.read(n_header))
        header.pop("__metadata__", None)
        return {name: _entry(path, name, fields, 8 + n_header, size) for name, fields in header.items()}
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        known = isinstance(error, ModelError)
        raise error if known else ModelError(f"{path}: not a safetensors file: {error}") from None


def _entry(path: Path, name: str, fields: dict[str, Any], data_start: int, size: int) -> TensorEntry:
    dtype, shape, (begin, end) = fields["dtype"], tuple(fields["shape"]), fields["data_offsets"]
    if dtype not in ITEM_BYTES:
        raise ModelError(f"{path}: {name} is {dtype}; known are {', '.join(ITEM_BYTES)}")
    if begin < 0 or data_start + end > size or end - begin != math.prod(shape) * ITEM_BYTES[dtype]:
        raise ModelError(f"{path}: {name} lies outside of the file, or is not as long as its shape says: cut short?")
    return TensorEntry(path, dtype, shape, data_start + begin)
