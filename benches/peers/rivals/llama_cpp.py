"""llama.cpp: GGUF files, by the fastest of its prebuilt libraries for the CPU.

Keys and values are float16, its default. Attention is tried in one pass ("flash") and as products.
"""

# /// script
# dependencies = []
# [tool.peers]
# npm = ["@node-llama-cpp/linux-x64@3.22.1"]
# ///

import ctypes
import os
import sys
from ctypes import POINTER, c_bool, c_char_p, c_int8, c_int32, c_uint32, c_void_p
from functools import lru_cache
from pathlib import Path

import numpy as np

FOLDER = Path(sys.prefix) / "node_modules/@node-llama-cpp/linux-x64/bins/linux-x64"
THREADS = int(os.environ["OMP_NUM_THREADS"])
ATTENTION = {"flash": 1, "products": 0}


# llama.h's `struct llama_model_params`, or more bytes than it has.
class ModelParams(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint64 * 32)]


# The first members of `struct llama_context_params`, and more bytes than the others have.
class ContextParams(ctypes.Structure):
    _fields_ = [
        ("n_ctx", c_uint32), ("n_batch", c_uint32), ("n_ubatch", c_uint32), ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32), ("n_outputs_max", c_uint32), ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32), ("n_threads_batch", c_int32), ("ctx_type", c_int32),
        ("rope_scaling_type", c_int32), ("pooling_type", c_int32), ("attention_type", c_int32),
        ("flash_attn_type", c_int32),
        ("bytes", ctypes.c_uint64 * 32),
    ]


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", c_int32), ("token", POINTER(c_int32)), ("embd", c_void_p),
        ("pos", POINTER(c_int32)), ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))), ("logits", POINTER(c_int8)),
    ]


SIGNATURES = {
    "llama_log_set": (None, c_void_p, c_void_p),
    "llama_model_default_params": (ModelParams,),
    "llama_model_load_from_file": (c_void_p, c_char_p, ModelParams),
    "llama_model_free": (None, c_void_p),
    "llama_model_get_vocab": (c_void_p, c_void_p),
    "llama_vocab_n_tokens": (c_int32, c_void_p),
    "llama_context_default_params": (ContextParams,),
    "llama_init_from_model": (c_void_p, c_void_p, ContextParams),
    "llama_free": (None, c_void_p),
    "llama_get_memory": (c_void_p, c_void_p),
    "llama_memory_seq_rm": (c_bool, c_void_p, c_int32, c_int32, c_int32),
    "llama_batch_init": (Batch, c_int32, c_int32, c_int32),
    "llama_batch_free": (None, Batch),
    "llama_decode": (c_int32, c_void_p, Batch),
    "llama_get_logits": (POINTER(ctypes.c_float), c_void_p),
}


def library():
    ctypes.CDLL(FOLDER / "libggml-base.so", ctypes.RTLD_GLOBAL)
    (ggml,), (llama,) = FOLDER.glob("libggml.v*.so"), FOLDER.glob("libllama.v*.so")
    ggml, llama = ctypes.CDLL(ggml), ctypes.CDLL(llama)
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(llama, name)
        function.restype, function.argtypes = result, arguments
    llama.llama_log_set(QUIET, None)
    ggml.ggml_backend_load_all_from_path(bytes(FOLDER))
    return llama


QUIET = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)(lambda *_: None)
LLAMA = library()


class Model:
    def __init__(self, path):
        params = LLAMA.llama_model_default_params()
        self.pointer = LLAMA.llama_model_load_from_file(os.fsencode(path), params)
        if not self.pointer:
            raise ValueError(f"{path}: llama.cpp cannot load it")
        self.vocabulary = LLAMA.llama_vocab_n_tokens(LLAMA.llama_model_get_vocab(self.pointer))

    def __del__(self):
        if self.pointer:
            LLAMA.llama_model_free(self.pointer)


class Reader:
    """Reads `ids` after `before`, `[sequences, tokens]`: logits of the last token, or of all."""

    def __init__(self, model, attention, before, ids, every=False, write=0):
        self.model, self.start = model, before.shape[1]
        params = LLAMA.llama_context_default_params()
        params.n_seq_max = len(ids)
        params.n_ctx = len(ids) * (-(-(self.start + ids.shape[1] + write) // 256) * 256)
        params.n_batch = max(before.size, ids.size)
        params.n_threads = params.n_threads_batch = THREADS
        params.flash_attn_type = ATTENTION[attention]
        self.context = LLAMA.llama_init_from_model(model.pointer, params)
        if not self.context:
            raise ValueError(f"llama.cpp cannot make a context of {params.n_ctx} tokens")
        self.memory = LLAMA.llama_get_memory(self.context)
        if self.start:
            self.decode(self.batch(before, 0))
        self.shape = (len(ids), ids.shape[1] if every else 1, model.vocabulary)
        self.own = self.batch(ids, self.start, every)

    @staticmethod
    def batch(ids, start, every=False):
        batch = LLAMA.llama_batch_init(ids.size, 0, 1)
        batch.n_tokens = ids.size
        last = ids.shape[1] - 1
        for index, ((sequence, position), token) in enumerate(np.ndenumerate(ids)):
            batch.token[index], batch.pos[index] = token, start + position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
            batch.logits[index] = every or position == last
        return batch

    def decode(self, batch):
        if code := LLAMA.llama_decode(self.context, batch):
            raise ValueError(f"llama_decode returned {code}")

    def __call__(self):
        self.decode(self.own)
        logits = LLAMA.llama_get_logits(self.context)
        LLAMA.llama_memory_seq_rm(self.memory, -1, self.start, -1)
        return np.ctypeslib.as_array(logits, self.shape)

    def __del__(self):
        if getattr(self, "context", None):
            LLAMA.llama_free(self.context)


class Writer(Reader):
    """The most likely tokens behind `ids`, of one sequence."""

    def __init__(self, model, attention, ids, count):
        super().__init__(model, attention, ids[:, :0], ids, write=count)
        self.count, self.shape = count, (model.vocabulary,)
        self.next = self.batch(ids[:, :1], ids.shape[1])

    def __call__(self):
        batch, tokens = self.own, []
        for position in range(self.own.n_tokens, self.own.n_tokens + self.count):
            self.decode(batch)
            tokens.append(np.ctypeslib.as_array(LLAMA.llama_get_logits(self.context), self.shape).argmax())
            batch = self.next
            batch.token[0], batch.pos[0] = tokens[-1], position
        LLAMA.llama_memory_seq_rm(self.memory, -1, 0, -1)
        return np.array(tokens, np.float32)


# Of one folder, or of one file.
@lru_cache(3)
def model(path):
    return Model(path)


def decoder(case, tensors):
    ids = tensors["ids"]
    before = tensors.get("before", ids[:, :0])
    if case["write"]:
        return {
            f"llama.cpp {name}/{attention}": Writer(model(path), attention, ids, case["write"])
            for name, path in case["files"].items() for attention in ATTENTION
        }
    return {
        f"llama.cpp {name}/{attention}": Reader(model(path), attention, before, ids, case["every"])
        for name, path in case["files"].items() for attention in ATTENTION
    }
