"""llama.cpp itself: the library inside PyPI's xllamacpp, by its C interface.

The structs are those of llama.h at the pinned build; library() looks whether the one it finds
fills them in as that build does.
"""

import ctypes
from ctypes import (POINTER, Structure, c_bool, c_char_p, c_float, c_int8, c_int32, c_size_t,
                    c_uint32, c_void_p)
from importlib import metadata
from pathlib import Path

VERSION = "2026.10.11549"  # llama.cpp b11549
F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, BF16 = 0, 1, 2, 3, 6, 7, 8, 20, 30
MAX_TOKENS = 16384


class ModelParams(Structure):
    _fields_ = [("devices", c_void_p), ("tensor_buft_overrides", c_void_p),
                ("n_gpu_layers", c_int32), ("rest", c_int8 * 256)]


class ContextParams(Structure):
    _fields_ = [
        *((name, c_uint32) for name in (
            "n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "n_outputs_max",
            "n_outputs_max_per_seq")),
        *((name, c_int32) for name in (
            "n_threads", "n_threads_batch", "ctx_type", "rope_scaling_type", "pooling_type",
            "attention_type", "flash_attn_type")),
        *((name, c_float) for name in (
            "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor",
            "yarn_beta_fast", "yarn_beta_slow")),
        ("yarn_orig_ctx", c_uint32), ("defrag_thold", c_float),
        ("cb_eval", c_void_p), ("cb_eval_user_data", c_void_p),
        ("type_k", c_int32), ("type_v", c_int32), ("moe_cache_size", c_size_t),
        ("abort_callback", c_void_p), ("abort_callback_data", c_void_p),
        *((name, c_bool) for name in (
            "embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified")),
        ("rest", c_int8 * 256)]


class Batch(Structure):
    _fields_ = [("n_tokens", c_int32), ("token", POINTER(c_int32)), ("embd", c_void_p),
                ("pos", POINTER(c_int32)), ("n_seq_id", POINTER(c_int32)),
                ("seq_id", POINTER(POINTER(c_int32))), ("logits", POINTER(c_int8))]


LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, c_char_p, c_void_p)
_log_lines = []


@LogCallback
def _keep_log(_level, text, _user_data):
    _log_lines.append(text.decode(errors="replace"))


_SIGNATURES = {
    "llama_log_set": (None, LogCallback, c_void_p),
    "llama_backend_init": (None,),
    "llama_model_default_params": (ModelParams,),
    "llama_context_default_params": (ContextParams,),
    "llama_model_load_from_file": (c_void_p, c_char_p, ModelParams),
    "llama_model_get_vocab": (c_void_p, c_void_p),
    "llama_vocab_n_tokens": (c_int32, c_void_p),
    "llama_tokenize": (
        c_int32, c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool),
    "llama_init_from_model": (c_void_p, c_void_p, ContextParams),
    "llama_free": (None, c_void_p),
    "llama_batch_init": (Batch, c_int32, c_int32, c_int32),
    "llama_batch_free": (None, Batch),
    "llama_decode": (c_int32, c_void_p, Batch),
    "llama_get_logits_ith": (POINTER(c_float), c_void_p, c_int32),
    "llama_get_memory": (c_void_p, c_void_p),
    "llama_memory_seq_pos_max": (c_int32, c_void_p, c_int32),
    "llama_state_save_file": (c_bool, c_void_p, c_char_p, POINTER(c_int32), c_size_t),
    "llama_state_load_file": (
        c_bool, c_void_p, c_char_p, POINTER(c_int32), c_size_t, POINTER(c_size_t)),
    "llama_state_seq_save_file": (
        c_size_t, c_void_p, c_char_p, c_int32, POINTER(c_int32), c_size_t),
    "llama_state_seq_load_file": (
        c_size_t, c_void_p, c_char_p, c_int32, POINTER(c_int32), c_size_t, POINTER(c_size_t)),
}


def library():
    """The library, ready. ImportError: it is not there, or not of the pinned build."""
    import xllamacpp

    version = metadata.version("xllamacpp")
    if version != VERSION:
        raise ImportError(f"xllamacpp {version}; llama.cpp's structs are known of {VERSION} alone")
    lib = ctypes.CDLL(str(Path(xllamacpp.__file__).parent / "xllamacpp.abi3.so"))
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    p = lib.llama_context_default_params()
    found = (p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max, p.flash_attn_type, p.yarn_beta_slow,
             p.type_k, p.type_v, p.offload_kqv, p.kv_unified)
    if found != (512, 2048, 512, 1, -1, -1.0, F16, F16, True, False):
        raise ImportError(f"llama.cpp's structs are not as expected: {found}")
    lib.llama_log_set(_keep_log, None)
    lib.llama_backend_init()
    return lib


class Model:
    def __init__(self, lib, path):
        self.lib = lib
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self.handle = lib.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            raise RuntimeError(f"llama.cpp does not load {path}: {last_log()}")
        self.n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.handle))


    def tokenize(self, text):
        """The ids of a text that may spell out special tokens, with what the file adds at its ends."""
        data = text.encode()
        ids = (c_int32 * (len(data) + 16))()
        vocab = self.lib.llama_model_get_vocab(self.handle)
        n = self.lib.llama_tokenize(vocab, data, len(data), ids, len(ids), True, True)
        if n < 0:
            raise RuntimeError(f"llama_tokenize: {n}")
        return list(ids[:n])


class Context:
    """`flash` decides as well whether values are stored by rows or by columns."""

    def __init__(self, model, kv_type=F16, flash=True, slots=1, unified=False, n_ctx=1024):
        self.model, self.lib = model, model.lib
        params = self.lib.llama_context_default_params()
        params.n_ctx, params.n_batch = n_ctx * slots, 1024
        params.n_seq_max, params.kv_unified = slots, unified
        # With more its threads wait for each other by spinning, for minutes where cores are busy.
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = kv_type
        params.flash_attn_type = int(flash)
        params.offload_kqv = False
        self.handle = self.lib.llama_init_from_model(model.handle, params)
        if not self.handle:
            raise RuntimeError(f"llama.cpp makes no such context: {last_log()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lib.llama_free(self.handle)

    def decode(self, tokens, start, seq=0):
        """Logits after the last of the tokens, which stand at positions from `start` on."""
        batch = self.lib.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, start + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, seq
            batch.logits[i] = i == len(tokens) - 1
        status = self.lib.llama_decode(self.handle, batch)
        self.lib.llama_batch_free(batch)
        if status != 0:
            raise RuntimeError(f"llama_decode: {status}")
        return self.lib.llama_get_logits_ith(self.handle, -1)[:self.model.n_vocab]

    def save_session(self, path, tokens):
        ids = (c_int32 * len(tokens))(*tokens)
        if not self.lib.llama_state_save_file(self.handle, str(path).encode(), ids, len(tokens)):
            raise RuntimeError(f"llama_state_save_file: {last_log()}")

    def save_sequence(self, path, tokens, seq=0):
        ids = (c_int32 * len(tokens))(*tokens)
        if not self.lib.llama_state_seq_save_file(
                self.handle, str(path).encode(), seq, ids, len(tokens)):
            raise RuntimeError(f"llama_state_seq_save_file: {last_log()}")

    def load_session(self, path):
        """The file's token ids. RuntimeError when llama.cpp refuses it."""
        return self._load(self.lib.llama_state_load_file, path)

    def load_sequence(self, path, seq=0):
        return self._load(self.lib.llama_state_seq_load_file, path, seq)

    def _load(self, function, path, *seq):
        ids, count = (c_int32 * MAX_TOKENS)(), c_size_t()
        if not function(self.handle, str(path).encode(), *seq, ids, MAX_TOKENS,
                        ctypes.byref(count)):
            raise RuntimeError(f"llama.cpp refuses {Path(path).name}: {last_log()}")
        return list(ids[:count.value])

    def n_positions(self, seq=0):
        return self.lib.llama_memory_seq_pos_max(self.lib.llama_get_memory(self.handle), seq) + 1


def last_log():
    return "".join(_log_lines[-4:]).strip()
