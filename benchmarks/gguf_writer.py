"""Writes a model of ours as a float32 GGUF file without a vocabulary, for llama.cpp to compute the same on."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from engine_adapters.reference.config import ModelConfig
from engine_adapters.reference.weights import Weights

UINT32, FLOAT32, BOOL, STRING = 4, 6, 7, 8
ALIGNMENT = 32


def write_gguf(path: Path, model: ModelConfig, weights: Weights) -> None:
    """A dense Llama model; raises ValueError for another one. Format: ggml/docs/gguf.md, version 3."""
    if model.qk_norm or model.num_experts or model.rope_scaling:
        raise ValueError("only plain Llama models are written")
    tensors = _tensors(model, weights)
    with path.open("wb") as file:
        fields = _fields(model)
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(fields)))
        for key, (kind, value) in fields.items():
            _write_string(file, key)
            file.write(struct.pack("<I", kind))
            if isinstance(value, str):
                _write_string(file, value)
            else:
                file.write(struct.pack({UINT32: "<I", FLOAT32: "<f", BOOL: "<?"}[kind], value))
        offset = 0
        for name, array in tensors.items():
            _write_string(file, name)
            file.write(struct.pack(f"<I{array.ndim}QIQ", array.ndim, *reversed(array.shape), 0, offset))
            offset += array.nbytes + -array.nbytes % ALIGNMENT
        file.write(b"\0" * (-file.tell() % ALIGNMENT))
        for array in tensors.values():
            file.write(array.tobytes())
            file.write(b"\0" * (-array.nbytes % ALIGNMENT))


def _fields(model: ModelConfig) -> dict[str, tuple[int, str | int | float]]:
    return {
        "general.architecture": (STRING, "llama"),
        "general.name": (STRING, model.name),
        "general.file_type": (UINT32, 0),
        "llama.context_length": (UINT32, 4096),
        "llama.embedding_length": (UINT32, model.hidden_size),
        "llama.block_count": (UINT32, model.num_hidden_layers),
        "llama.feed_forward_length": (UINT32, model.intermediate_size),
        "llama.attention.head_count": (UINT32, model.num_attention_heads),
        "llama.attention.head_count_kv": (UINT32, model.num_key_value_heads),
        "llama.attention.key_length": (UINT32, model.head_dim),
        "llama.attention.value_length": (UINT32, model.head_dim),
        "llama.rope.dimension_count": (UINT32, model.head_dim),
        "llama.rope.freq_base": (FLOAT32, model.rope_theta),
        "llama.attention.layer_norm_rms_epsilon": (FLOAT32, model.rms_norm_eps),
        "llama.vocab_size": (UINT32, model.vocab_size),
        "tokenizer.ggml.model": (STRING, "no_vocab"),
    }


def _tensors(model: ModelConfig, weights: Weights) -> dict[str, np.ndarray]:
    """GGUF's names; matrices are [out, in]. A tied head is the embedding, which llama.cpp takes where none is given."""
    found = {"token_embd.weight": weights.embedding, "output_norm.weight": weights.norm}
    if not model.tie_word_embeddings:
        found["output.weight"] = weights.head.T
    for i, layer in enumerate(weights.layers):
        q, k, v = np.split(layer.qkv.T, [model.q_size, model.q_size + model.kv_size])
        gate, up = np.split(layer.gate_up.T, 2)
        parts = {
            "attn_norm": layer.attn_norm,
            "attn_q": _interleaved(q, model.num_attention_heads),
            "attn_k": _interleaved(k, model.num_key_value_heads),
            "attn_v": v,
            "attn_output": layer.o.T,
            "ffn_norm": layer.mlp_norm,
            "ffn_gate": gate,
            "ffn_up": up,
            "ffn_down": layer.down.T,
        }
        found |= {f"blk.{i}.{name}.weight": array for name, array in parts.items()}
    return {name: np.ascontiguousarray(array, np.float32) for name, array in found.items()}


def _interleaved(matrix: np.ndarray, n_heads: int) -> np.ndarray:
    """llama.cpp's rotary embedding pairs neighbours; ours pairs the halves of a head."""
    n_out, n_in = matrix.shape
    return matrix.reshape(n_heads, 2, n_out // n_heads // 2, n_in).swapaxes(1, 2).reshape(n_out, n_in)


def _write_string(file: BinaryIO, text: str) -> None:
    data = text.encode()
    file.write(struct.pack("<Q", len(data)) + data)
