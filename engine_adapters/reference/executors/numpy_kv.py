"""Owns the numpy executor's KV cache arrays: float32, int8 or emulated fp8, a scale for each token and head or none."""

from __future__ import annotations

from typing import Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine_adapters.reference.config import ModelConfig
from engine_adapters.reference.safetensors import Array

Ints = NDArray[np.intp]
T = TypeVar("T", bound=np.generic)
KVCacheDtype = Literal["auto", "int8", "fp8"]  # vLLM's names; auto is that of the weights: float32
FP8_MAX = 448.0  # largest e4m3 value; larger ones saturate


class KVStore(Protocol):
    """The keys, or the values, of one layer in blocks."""

    def write(self, values: Array, slots: Ints) -> None:
        """Store `values` [rows, kv heads, head_dim]; a slot is block x block_size + offset."""
        ...

    def gather(self, block_table: Ints) -> Array:
        """The blocks of each sequence [seqs, blocks] side by side: [kv heads, seqs, keys, head_dim], as float32."""
        ...


class FloatStore:
    """Exact: float32."""

    def __init__(self, model: ModelConfig, num_blocks: int, block_size: int) -> None:
        self.data = np.zeros((model.num_key_value_heads, num_blocks, block_size, model.head_dim), np.float32)

    def write(self, values: Array, slots: Ints) -> None:
        """See KVStore."""
        _flat(self.data)[:, slots] = values.swapaxes(0, 1)

    def gather(self, block_table: Ints) -> Array:
        """See KVStore."""
        return _gather(self.data, block_table)


class Int8Store:
    """round(x / scale) with scale = max|x| / 127 over each token's head: off by at most half a scale."""

    def __init__(self, model: ModelConfig, num_blocks: int, block_size: int) -> None:
        shape = (model.num_key_value_heads, num_blocks, block_size, model.head_dim)
        self.data, self.scales = np.zeros(shape, np.int8), np.zeros((*shape[:3], 1), np.float32)

    def write(self, values: Array, slots: Ints) -> None:
        """See KVStore."""
        scales = np.abs(values).max(axis=-1, keepdims=True) / np.float32(127.0)
        codes = np.rint(values / np.maximum(scales, np.float32(1e-30)))
        _flat(self.data)[:, slots] = codes.swapaxes(0, 1)
        _flat(self.scales)[:, slots] = scales.swapaxes(0, 1)

    def gather(self, block_table: Ints) -> Array:
        """See KVStore."""
        return _gather(self.data, block_table) * _gather(self.scales, block_table)


class Fp8Store:
    """e4m3 codes of the values as they are, without a scale: off by at most 1/16 of the value, and 448 at most."""

    def __init__(self, model: ModelConfig, num_blocks: int, block_size: int) -> None:
        self.data = np.zeros((model.num_key_value_heads, num_blocks, block_size, model.head_dim), np.uint8)

    def write(self, values: Array, slots: Ints) -> None:
        """See KVStore."""
        _flat(self.data)[:, slots] = fp8_encode(values).swapaxes(0, 1)

    def gather(self, block_table: Ints) -> Array:
        """See KVStore."""
        return FP8_VALUES.take(_gather(self.data, block_table))


KV_STORES: dict[KVCacheDtype, type[FloatStore] | type[Int8Store] | type[Fp8Store]] = {
    "auto": FloatStore,
    "int8": Int8Store,
    "fp8": Fp8Store,
}


def fp8_encode(x: Array) -> NDArray[np.uint8]:
    """The e4m3 code (OCP "E4M3", no infinities) nearest to each value, ties to even; beyond 448 it saturates."""
    size = np.minimum(np.abs(x), np.float32(FP8_MAX))
    bits = size.view(np.uint32)
    # Float32 has 23 bits of mantissa and a bias of 127, e4m3 has 3 and 7: drop 20 bits, rounded, and 120 of the bias.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    subnormal = np.rint(size * np.float32(2**9)).astype(np.uint32)
    code = np.where(size < np.float32(2**-6), subnormal, normal)
    signed: NDArray[np.uint8] = (code | (np.signbit(x).astype(np.uint32) << 7)).astype(np.uint8)
    return signed


def _fp8_values() -> Array:
    """The value of each of the 256 codes."""
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    size[(code & 127) == 127] = np.nan
    return np.where(code < 128, size, -size).astype(np.float32)


FP8_VALUES = _fp8_values()


def _flat(cache: NDArray[T]) -> NDArray[T]:
    return cache.reshape(cache.shape[0], -1, cache.shape[-1])


def _gather(cache: NDArray[T], block_table: Ints) -> NDArray[T]:
    n_kv, _, _, width = cache.shape
    return cache.take(block_table, axis=1).reshape(n_kv, len(block_table), -1, width)
