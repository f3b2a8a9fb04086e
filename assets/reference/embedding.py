"""Tables that torch.ao.nn.quantized.Embedding.from_float makes, and the rows that it answers with.

Makes:   embedding.safetensors
Command: python embedding.py
Pinned:  torch==2.9.1 numpy==2.4.6 safetensors==0.8.0, Python 3.11, engine x86

float_qparams_weight_only_qconfig: PerChannelMinMaxObserver, quint8, per_channel_affine_float_qparams,
ch_axis 0. Tables [n, k] are not stored: generator.py makes them from the case list, a JSON array in
the metadata under "cases" with name, n, k, kind, seed, exponent, constant. Per case:

    <name>.scale        f32 [n]
    <name>.zero_point   f32 [n]
    <name>.codes        u8  [n, k]
    <name>.output       f32 [n, k]     what the layer answers to the indexes 0, 1, .., n - 1

Every case is computed a second time with the formula below: a row's answer is
fma(code, scale, -zero_point * scale), the product of the last two rounded to f32.
"""

import numpy as np
import torch
from torch.ao.nn.quantized import Embedding
from torch.ao.quantization import float_qparams_weight_only_qconfig

import fixture
import generator

SEED = 20_260_009
f32 = np.float32

#   n, k, kind, exponent, constant
SPECS = [
    *[(n, k, "normal", -15, 0) for n, k in (
        (1, 1), (1, 2), (2, 1), (1, 7), (3, 8), (5, 9), (2, 15), (7, 16), (3, 17), (4, 31), (4, 32), (4, 33), (2, 64), (3, 65),
        (2, 255), (2, 256), (2, 257), (40, 5))],
    *[(6, 21, "normal", exponent, 0) for exponent in (-30, -24, -20, -5, 4, 40, 100)],
    *[(6, 21, kind, -15, 0) for kind in ("outlier", "relu", "positive", "negative", "shifted", "zero_rows")],
    (10, 21, "rows", -34, 0),
    (3, 7, "zeros", 0, 0),
    (3, 7, "constant", -14, 81920),           # 5: the scale is 1, every code 0
    (3, 7, "constant", -14, -81920),
    (5, 30, "symmetric_ties", -9, 0),
    (4, 40, "affine_ties", -9, 255),
    (5, 15, "normal", -149, 0),               # all subnormal
    (5, 15, "normal", 109, 0),                # about 1e38: the range is nearly f32::MAX
]


def quantize(weight):
    """The layer that torch makes of a table."""
    layer = torch.nn.Embedding(*weight.shape)
    layer.weight = torch.nn.Parameter(torch.from_numpy(weight.copy()))
    layer.qconfig = float_qparams_weight_only_qconfig
    return Embedding.from_float(layer)


def narrow(wide):
    """f32 of scales or zero points, which torch may have widened; that must be exact."""
    wide = wide.numpy()
    assert (wide.astype(f32).astype(wide.dtype) == wide).all(), "not exact in f32"
    return wide.astype(f32)


def fma(a, b, c):
    """a * b + c in one rounding: a is a code, so the product is exact in f64, and so is every sum but a rare one."""
    total = a.astype(np.float64) * b.astype(np.float64)
    high = total + c
    error = np.where(np.abs(total) >= np.abs(c), (total - high) + c, (c - high) + total)
    # Round to odd, so that rounding to f32 sees whether anything was lost.
    bits = high.view(np.int64)
    away = np.where((error > 0) == (high > 0), 1, -1)
    odd = np.where((error != 0) & (bits & 1 == 0) & (away > 0), bits + 1, np.where((error != 0) & (bits & 1 == 0), bits - 1, bits))
    return odd.view(np.float64).astype(f32)


def formula(weight):
    """Scale, zero point, codes and rows, written out."""
    low, high = weight.min(axis=1), weight.max(axis=1)
    scale = ((high - low) / f32(255)).astype(f32)
    scale = np.where(scale > f32(2**-23), scale, f32(1)).astype(f32)
    zero_point = (-low / scale).astype(f32)
    inverse = (f32(1) / scale).astype(f32)
    steps = (weight * inverse[:, None]).astype(f32) + zero_point[:, None]
    codes = np.clip(np.rint(steps.astype(f32)), 0, 255).astype(np.uint8)
    offset = (-zero_point * scale).astype(f32)
    rows = fma(codes, scale[:, None], np.broadcast_to(offset[:, None].astype(np.float64), codes.shape))
    return scale, zero_point, codes, rows


def main():
    tensors, cases, different = {}, [], []
    for index, (n, k, kind, exponent, constant) in enumerate(SPECS):
        name = f"e{index:02}"
        case = {"name": name, "n": n, "k": k, "kind": kind, "seed": SEED * 100 + index, "exponent": exponent, "constant": constant}
        weight = generator.tensor((n, k), kind, case["seed"], exponent, constant)
        layer = quantize(weight)
        quantized = layer.weight()
        made = (
            narrow(quantized.q_per_channel_scales()),
            narrow(quantized.q_per_channel_zero_points()),
            quantized.int_repr().numpy(),
            layer(torch.arange(n)).numpy(),
        )
        for part, ours, theirs in zip(("scale", "zero_point", "codes", "output"), formula(weight), made):
            if not fixture.same_bits(ours, theirs):
                different.append((case, part))
            tensors[f"{name}.{part}"] = theirs
        cases.append(case)
    fixture.save("embedding", "embedding.py", SEED, tensors, cases=cases)
    print(f"{len(cases)} tables, {len(different)} differ from the formula", *different, sep="\n")


if __name__ == "__main__":
    main()
