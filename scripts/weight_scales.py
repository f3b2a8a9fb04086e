#!/usr/bin/env python3
"""SQNR of int8 weights by the scale of a channel: its maximum over 127.5, as in PyTorch, or over 127.

    scripts/weight_scales.py FILE.safetensors ...

Prints, for each float matrix but tables, the number of inputs, both figures in dB and their difference,
and the mean difference. Needs numpy.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np

DTYPES = {"F32": "<f4", "F16": "<f2"}


def matrices(path):
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    for name, entry in sorted(header.items()):
        is_table = "embed" in name
        if len(entry["shape"]) == 2 and entry["dtype"] in DTYPES and not is_table:
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            values = np.frombuffer(data[start:end], DTYPES[entry["dtype"]])
            yield name, values.reshape(entry["shape"]).astype(np.float32)


def sqnr_db(weight, steps):
    scale = np.abs(weight).max(axis=1, keepdims=True) / np.float32(steps)
    scale = np.maximum(scale, np.finfo(np.float32).tiny)
    codes = np.clip(np.rint(weight * (np.float32(1) / scale)), -128, 127)
    noise = (codes * scale).astype(np.float64) - weight
    return 10 * np.log10((weight.astype(np.float64) ** 2).sum() / (noise**2).sum())


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for path in sys.argv[1:]:
        differences = []
        for name, weight in matrices(path):
            half, whole = sqnr_db(weight, 127.5), sqnr_db(weight, 127)
            differences.append(whole - half)
            print(f"{weight.shape[1]:>6} {half:7.3f} {whole:7.3f} {whole - half:+.3f}  {name}")
        print(f"{path}: {np.mean(differences):+.3f} dB by max / 127, {len(differences)} matrices")


if __name__ == "__main__":
    main()
