#!/usr/bin/env python3
"""The names of gguf's keys and tensors, and blocks of its types with their elements.

    python gguf_tables.py

Needs gguf==0.19.0. Writes, in decoders/, gguf_keys.json: all keys but those of images and sounds, of adapters and of
other architectures' parts, and the tensors of each architecture; and gguf_types.gguf: two rows of random blocks of
each type, NAME.weight, and beside those that are read what gguf makes of them, NAME.floats. Q8_K, which it does not, is by the
formula of ggml-quants.c.
"""

import json
import os

import gguf
import numpy as np
from gguf.constants import Keys

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "decoders")
CLASSES = [Keys.General, Keys.LLM, Keys.Attention, Keys.Rope, Keys.Split, Keys.Tokenizer]
ARCHITECTURES = ["LLAMA", "QWEN2", "QWEN3", "GEMMA3"]
# Where scales of a block are whose bytes by chance would be infinite or NaN, if not in the first two.
SCALES = {"Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "Q4_1": [0, 2], "Q5_1": [0, 2]}
SCALES |= {"MXFP4": []}
# Those that are listed, but not read.
UNREAD = ["Q8_1", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0", "NVFP4", "Q1_0"]


def keys():
    found = [value for own in CLASSES for name, value in vars(own).items() if isinstance(value, str) and name[0] != "_"]
    names = {"id": 0, "name": "tool_use", "dense": "dense_2", "arch": "{arch}"}
    tensors = {}
    for name in ARCHITECTURES:
        arch = gguf.MODEL_ARCH[name]
        own = [gguf.TENSOR_NAMES[tensor].format(bid=0) for tensor in gguf.MODEL_TENSORS[arch]]
        tensors[gguf.MODEL_ARCH_NAMES[arch]] = own
    with open(os.path.join(HERE, "gguf_keys.json"), "w") as f:
        json.dump({"keys": [key.format(**names) for key in found if "." in key], "tensors": tensors}, f)
        f.write("\n")


def blocks(kind, random):
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    rows = random.integers(0, 256, (2, 256 // elements, size), dtype=np.uint8)
    if kind.name == "Q8_K":
        rows[..., :4] = random.standard_normal(rows.shape[:-1], dtype=np.float32)[..., None].view(np.uint8)
    for place in SCALES.get(kind.name, [0]):
        rows[..., place + 1] &= 0xBB
    return rows


def types():
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(os.path.join(HERE, "gguf_types.gguf"), "none")
    for kind, (elements, _) in gguf.GGML_QUANT_SIZES.items():
        if elements == 1:
            continue
        rows = blocks(kind, random)
        writer.add_tensor(f"{kind.name}.weight", rows.reshape(2, -1), raw_dtype=kind)
        if kind.name in UNREAD:
            continue
        if kind.name == "Q8_K":
            floats = rows[..., :4].copy().view(np.float32) * rows[..., 4:260].view(np.int8).astype(np.float32)
        else:
            floats = gguf.dequantize(rows.reshape(2, -1), kind)
        writer.add_tensor(f"{kind.name}.floats", floats.reshape(2, 256).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    keys()
    types()
