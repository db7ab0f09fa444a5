"""llama.cpp as a library, by ctypes: decode steps of some sequences on one thread, float32 throughout.

Takes a folder with libllama and libggml, as bins/linux-x64 of the npm package @node-llama-cpp/linux-x64, whose files
are Release builds with kernels for each kind of CPU. The layout of its structs is that of b11434; others are refused.
"""

from __future__ import annotations

import ctypes as c
from pathlib import Path

import numpy as np

F32 = 0
SILENT = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)(lambda level, text, data: None)


class ModelParams(c.Structure):
    _fields_ = [
        ("devices", c.c_void_p),
        ("tensor_buft_overrides", c.c_void_p),
        ("n_gpu_layers", c.c_int32),
        ("enums", c.c_int32 * 3),
        ("main_gpu", c.c_int32),
        ("tensor_split", c.c_void_p),
        ("progress_callback", c.c_void_p),
        ("progress_callback_user_data", c.c_void_p),
        ("kv_overrides", c.c_void_p),
        ("flags", c.c_bool * 6),
    ]


class ContextParams(c.Structure):
    _fields_ = [
        ("n_ctx", c.c_uint32),
        ("n_batch", c.c_uint32),
        ("n_ubatch", c.c_uint32),
        ("n_seq_max", c.c_uint32),
        ("n_rs_seq", c.c_uint32),
        ("n_outputs_max", c.c_uint32),
        ("n_outputs_max_per_seq", c.c_uint32),
        ("n_threads", c.c_int32),
        ("n_threads_batch", c.c_int32),
        ("enums", c.c_int32 * 5),
        ("rope", c.c_float * 6),
        ("yarn_orig_ctx", c.c_uint32),
        ("defrag_thold", c.c_float),
        ("cb_eval", c.c_void_p),
        ("cb_eval_user_data", c.c_void_p),
        ("type_k", c.c_int32),
        ("type_v", c.c_int32),
        ("abort_callback", c.c_void_p),
        ("abort_callback_data", c.c_void_p),
        ("flags", c.c_bool * 6),
        ("samplers", c.c_void_p),
        ("n_samplers", c.c_size_t),
        ("ctx_other", c.c_void_p),
    ]


class Batch(c.Structure):
    _fields_ = [
        ("n_tokens", c.c_int32),
        ("token", c.POINTER(c.c_int32)),
        ("embd", c.c_void_p),
        ("pos", c.POINTER(c.c_int32)),
        ("n_seq_id", c.POINTER(c.c_int32)),
        ("seq_id", c.POINTER(c.POINTER(c.c_int32))),
        ("logits", c.POINTER(c.c_int8)),
    ]


class LlamaCpp:
    """A model and the KV cache of `n_seqs` sequences of up to `n_ctx` tokens each."""

    def __init__(self, folder: Path, gguf: Path, n_seqs: int, n_ctx: int) -> None:
        self.lib = _load(folder)
        model_params, params = self.lib.llama_model_default_params(), self.lib.llama_context_default_params()
        _check_layout(params)
        params.n_ctx, params.n_seq_max = n_seqs * n_ctx, n_seqs
        params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = F32
        params.enums[4] = 0  # no flash attention: it rounds to float16 on the way, and is slower at these sizes
        params.flags[5] = False  # kv_unified: sequences that share nothing are faster apart
        self.model = self.lib.llama_model_load_from_file(str(gguf).encode(), model_params)
        self.context = self.lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp did not load {gguf}")
        self.n_vocab = self.lib.llama_vocab_n_tokens(self.lib.llama_model_get_vocab(self.model))
        self.batch = self.lib.llama_batch_init(512, 0, 1)

    def decode(self, tokens: list[int], positions: list[int], seqs: list[int], wanted: list[int]) -> np.ndarray:
        """One llama_decode; the logits of the rows `wanted`."""
        batch, batch.n_tokens = self.batch, len(tokens)
        for i, (token, position, seq) in enumerate(zip(tokens, positions, seqs, strict=True)):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, position, 1, seq
            batch.logits[i] = 0
        for i in wanted:
            batch.logits[i] = 1
        if self.lib.llama_decode(self.context, batch):
            raise RuntimeError("llama_decode failed")
        rows = [np.ctypeslib.as_array(self.lib.llama_get_logits_ith(self.context, i), (self.n_vocab,)) for i in wanted]
        return np.stack(rows)

    def prefill(self, prompts: list[list[int]]) -> np.ndarray:
        """Compute prompts of at most 512 tokens, one after another; the last logits of each."""
        rows = [self.decode(p, list(range(len(p))), [i] * len(p), [len(p) - 1]) for i, p in enumerate(prompts)]
        return np.concatenate(rows)

    def close(self) -> None:
        """Free everything."""
        self.lib.llama_batch_free(self.batch)
        self.lib.llama_free(self.context)
        self.lib.llama_model_free(self.model)


def _load(folder: Path) -> c.CDLL:
    for name in ("libggml-base", "libggml", "libllama"):
        path = min((p for p in folder.glob(f"{name}*.so*") if p.name.startswith(f"{name}.")), key=lambda p: len(p.name))
        lib = c.CDLL(str(path), c.RTLD_GLOBAL)
        if name == "libggml":
            lib.ggml_backend_load_all_from_path(c.c_char_p(str(folder).encode()))
    for function, result, arguments in (
        ("llama_model_default_params", ModelParams, []),
        ("llama_context_default_params", ContextParams, []),
        ("llama_model_load_from_file", c.c_void_p, [c.c_char_p, ModelParams]),
        ("llama_init_from_model", c.c_void_p, [c.c_void_p, ContextParams]),
        ("llama_model_get_vocab", c.c_void_p, [c.c_void_p]),
        ("llama_vocab_n_tokens", c.c_int32, [c.c_void_p]),
        ("llama_batch_init", Batch, [c.c_int32, c.c_int32, c.c_int32]),
        ("llama_decode", c.c_int32, [c.c_void_p, Batch]),
        ("llama_get_logits_ith", c.POINTER(c.c_float), [c.c_void_p, c.c_int32]),
        ("llama_batch_free", None, [Batch]),
        ("llama_free", None, [c.c_void_p]),
        ("llama_model_free", None, [c.c_void_p]),
    ):
        getattr(lib, function).restype, getattr(lib, function).argtypes = result, arguments
    lib.llama_log_set(SILENT, None)
    return lib


def _check_layout(params: ContextParams) -> None:
    """Defaults at the places where they must lie; anything else is a llama.cpp with other structs."""
    seen = (params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads, params.type_k, params.type_v)
    if seen != (512, 2048, 512, 4, 1, 1) or params.n_samplers != 0:
        raise RuntimeError(f"this llama.cpp has other structs than b11434: its defaults read as {seen}")
