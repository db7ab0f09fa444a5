"""KV capacity: the worked table of the design notes, and vLLM's own token counts."""

from __future__ import annotations

import pytest

from loadgen.roofline.capacity import expected_sequences, kv_pool_upper_bytes, kv_tokens
from loadgen.roofline.hardware import GIB
from loadgen.roofline.model_shape import find_model, from_config

H100, H200 = 80 * GIB, 141 * GIB


@pytest.mark.parametrize(
    ("model", "precision", "kv", "mem", "devices", "tp", "context", "users"),
    [
        ("llama-3.1-8b", "bf16", "bf16", H100, 1, 1, 8192, 54),
        ("llama-3.1-8b", "fp8", "bf16", H100, 1, 1, 8192, 60),
        ("llama-3.1-8b", "fp8", "fp8", H100, 1, 1, 8192, 121),
        ("llama-3.1-8b", "bf16", "bf16", H100, 1, 1, 131072, 3),
        ("llama-3.1-70b", "bf16", "bf16", H100, 2, 2, 8192, 2),
        ("llama-3.1-70b", "bf16", "bf16", H100, 4, 4, 8192, 57),
        ("llama-3.1-70b", "fp8", "bf16", H100, 2, 2, 8192, 28),
        ("llama-3.1-70b", "fp8", "fp8", H100, 2, 2, 8192, 56),
        ("llama-3.1-70b", "fp8", "fp8", H100, 4, 4, 8192, 166),
        ("llama-3.1-70b", "fp8", "fp8", H100, 8, 8, 8192, 387),
        ("llama-3.1-70b", "fp8", "fp8", H100, 8, 2, 8192, 4 * 56),
        ("llama-3.1-70b", "fp8", "fp8", H200, 1, 1, 8192, 44),
    ],
)
def test_users_of_the_worked_table(
    model: str, precision: str, kv: str, mem: int, devices: int, tp: int, context: int, users: int
) -> None:
    got = expected_sequences(
        find_model(model),
        mem,
        devices=devices,
        tensor_parallel=tp,
        precision=precision,
        kv_precision=kv,
        context_tokens=context,
    )
    assert got == users


def test_data_parallel_attention_over_one_split_mlp_holds_more_than_whole_replicas() -> None:
    users = expected_sequences(
        find_model("llama-3.1-70b"),
        H100,
        devices=8,
        tensor_parallel=2,
        mlp_devices=8,
        precision="fp8",
        kv_precision="fp8",
        context_tokens=8192,
    )
    assert users == 348


def test_kv_heads_are_stored_more_than_once_when_tp_exceeds_them() -> None:
    def users(tp: int) -> int:
        return expected_sequences(
            find_model("llama-3.1-8b"),
            H100,
            devices=16,
            tensor_parallel=tp,
            precision="fp8",
            kv_precision="fp8",
            context_tokens=8192,
        )

    assert users(16) < 0.6 * users(8)


def test_weights_that_do_not_fit_leave_no_room() -> None:
    model = find_model("llama-3.1-70b")
    assert kv_pool_upper_bytes(model, H100, 1, "bf16") == 0
    assert kv_pool_upper_bytes(model, H100, 2, "bf16") == 2 * H100 - 2 * model.total_params
    assert (
        expected_sequences(
            model, H100, devices=1, tensor_parallel=1, precision="bf16", kv_precision="bf16", context_tokens=8192
        )
        == 0
    )


def test_a_split_into_unequal_replicas_is_refused() -> None:
    with pytest.raises(ValueError, match="replicas"):
        expected_sequences(
            find_model("llama-3.1-8b"),
            H100,
            devices=8,
            tensor_parallel=3,
            precision="bf16",
            kv_precision="bf16",
            context_tokens=100,
        )


def test_the_token_capacity_that_vllm_logged_is_exact() -> None:
    qwen = from_config(
        {
            "architectures": ["Qwen2ForCausalLM"],
            "hidden_size": 3584,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "intermediate_size": 18944,
            "vocab_size": 152064,
        }
    )
    assert kv_tokens(16 * GIB, qwen, "bf16") == 299_584
