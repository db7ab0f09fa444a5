"""int8 and fp8 KV caches: codes as near as the format allows, logits near float32's, a quarter of the bytes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.numpy_models import all_logits

from engine_adapters.reference.config import MODELS, EngineConfig
from engine_adapters.reference.executors.numpy import NumpyExecutor
from engine_adapters.reference.executors.numpy_cost import kv_bytes_per_token
from engine_adapters.reference.executors.numpy_kv import FP8_VALUES, KV_STORES, Int8Store, KVCacheDtype, fp8_encode
from engine_adapters.reference.request import Request
from engine_adapters.reference.scheduler import ScheduledRequest, SchedulerOutput
from engine_adapters.reference.weights import random_weights

MODEL = dataclasses.replace(MODELS["tiny"], num_hidden_layers=3)
TOKEN_IDS = [int(i) for i in np.random.default_rng(2).integers(0, MODEL.vocab_size, 90)]
FINITE = np.sort(FP8_VALUES[np.isfinite(FP8_VALUES)].astype(np.float64))


def logits(dtype: KVCacheDtype) -> np.ndarray:
    engine = EngineConfig(max_model_len=256, num_blocks=64)
    executor = NumpyExecutor(MODEL, engine, random_weights(MODEL, 5), kv_cache_dtype=dtype)
    return all_logits(executor, TOKEN_IDS, [50, *[1] * 10, 30])


# The bound is of the root mean square error over the logits' spread: 3 layers each add an error of the cache's codes,
# which are 1/127 of the largest value apart (int8), or 1/16 of each value at most (fp8).
@pytest.mark.parametrize(("dtype", "bound", "at_least"), [("int8", 0.04, 0.001), ("fp8", 0.20, 0.01)])
def test_logits_stay_near_those_of_a_float32_cache(dtype: KVCacheDtype, bound: float, at_least: float) -> None:
    exact, coded = logits("auto"), logits(dtype)
    error = float(np.sqrt(np.mean((coded - exact) ** 2)) / exact.std())
    assert at_least < error < bound


# Random weights leave the best two logits closer than trained ones do, so fp8 changes more tokens here than elsewhere.
@pytest.mark.parametrize(("dtype", "at_least"), [("int8", 0.9), ("fp8", 0.7)])
def test_the_likeliest_tokens_are_mostly_those_of_a_float32_cache(dtype: KVCacheDtype, at_least: float) -> None:
    assert np.mean(logits("auto").argmax(axis=1) == logits(dtype).argmax(axis=1)) >= at_least


@given(st.lists(st.floats(-1000, 1000, width=32), min_size=1, max_size=50))
def test_an_fp8_code_is_the_nearest_value_there_is(values: list[float]) -> None:
    x = np.array(values, np.float32)
    decoded = FP8_VALUES[fp8_encode(x)].astype(np.float64)
    clipped = np.clip(x.astype(np.float64), -448, 448)
    nearest = np.abs(FINITE[None, :] - clipped[:, None]).min(axis=1)
    assert np.array_equal(np.abs(decoded - clipped), nearest)


def test_every_fp8_value_keeps_its_code_and_ties_go_to_the_even_one() -> None:
    codes = np.array([c for c in range(256) if c & 127 != 127], np.uint8)
    assert np.array_equal(fp8_encode(FP8_VALUES[codes]), codes)
    halfway = (FP8_VALUES[0:126] + FP8_VALUES[1:127]) / np.float32(2.0)
    assert not (fp8_encode(halfway) & 1).any()


@given(st.integers(0, 10_000), st.floats(1e-6, 1e6))
def test_an_int8_value_is_off_by_half_a_step_of_its_own_head_at_most(seed: int, scale: float) -> None:
    values = np.random.default_rng(seed).standard_normal((5, MODEL.num_key_value_heads, MODEL.head_dim))
    values = (values * scale * np.array([1, 10, 0, 1e3, 1])[:, None, None]).astype(np.float32)
    store = Int8Store(MODEL, num_blocks=2, block_size=4)
    store.write(values, np.array([0, 1, 2, 3, 7]))
    back = store.gather(np.array([[0, 1]]))[:, 0, [0, 1, 2, 3, 7]].swapaxes(0, 1)
    steps = np.abs(values).max(axis=-1, keepdims=True) / 127
    assert (np.abs(back - values) <= steps * 0.5001).all()


def step_bytes(dtype: KVCacheDtype, n_computed: int) -> float:
    executor = NumpyExecutor(MODEL, EngineConfig(num_blocks=256), random_weights(MODEL, 0), kv_cache_dtype=dtype)
    request = Request("0", [0] * (n_computed + 1), 1)
    request.num_computed_tokens = n_computed
    return executor.step_cost(SchedulerOutput([ScheduledRequest(request, 1, True)])).n_bytes


def test_a_step_reads_a_quarter_of_the_kv_bytes() -> None:
    kv_bytes = {dtype: step_bytes(dtype, 1000) - step_bytes(dtype, 0) for dtype in KV_STORES}
    assert kv_bytes["auto"] == 1000 * MODEL.kv_bytes_per_token
    assert kv_bytes["fp8"] == kv_bytes["auto"] / 4
    assert kv_bytes["int8"] == kv_bytes["auto"] * (MODEL.head_dim + 4) / (4 * MODEL.head_dim)  # one scale a head


@pytest.mark.parametrize("dtype", KV_STORES)
def test_the_bytes_a_token_are_those_that_the_arrays_have(dtype: KVCacheDtype) -> None:
    stores = [KV_STORES[dtype](MODEL, num_blocks=3, block_size=4) for _ in range(2 * MODEL.num_hidden_layers)]
    held = sum(array.nbytes for store in stores for array in vars(store).values())
    assert kv_bytes_per_token(MODEL, dtype) * 12 == held
