"""Scales and int8 codes that torch.ao.nn.quantized.dynamic.Linear.from_float makes of a weight.

Makes:   weight_codes.safetensors
Command: python weight_codes.py
Pinned:  torch==2.9.1 numpy==2.4.6 safetensors==0.8.0, Python 3.11, engine x86

Weights [n, k] are not stored: generator.py makes them from the case list, a JSON array in the
metadata under "cases" with name, n, k, kind, seed, exponent, constant. Per case:

    <name>.tensor.scale        f32 [1]      default_dynamic_qconfig: MinMaxObserver, qint8, symmetric
    <name>.tensor.codes        i8  [n, k]
    <name>.channel.scale       f32 [n]      per_channel_dynamic_qconfig: the same per row (ch_axis 0)
    <name>.channel.codes       i8  [n, k]
    <name>.tensor.zero_point   i32 [1], <name>.channel.zero_point i32 [n]: all 0

The observers calculate f32 scales. torch widens them to double when it builds the quantized tensor
(q_scale(), q_per_channel_scales()) and the kernels narrow them to f32 again; both steps are exact
here, which this script asserts, so the f32 stored is what the kernels use.
"""

import numpy as np
import torch
from torch.ao.nn.quantized.dynamic import Linear
from torch.ao.quantization import default_dynamic_qconfig, per_channel_dynamic_qconfig

import fixture
import generator

SEED = 20_260_002

#   n, k, kind, exponent, constant
SPECS = [
    *[(n, k, "normal", -18, 0) for n, k in (
        (1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (1, 31), (1, 32), (1, 33), (1, 64), (1, 70), (40, 1), (2, 2), (3, 5), (5, 3), (7, 8),
        (8, 7), (15, 16), (16, 15), (16, 16), (17, 17), (31, 33), (33, 31), (32, 64), (40, 70))],
    *[(9, 23, "normal", e, 0) for e in (-15, -17, -25, -30)],
    (12, 40, "outlier", -18, 0),
    (5, 97, "outlier", -22, 0),
    (40, 70, "outlier", -16, 0),
    (11, 13, "relu", -18, 0),
    (11, 13, "positive", -18, 0),
    (11, 13, "negative", -18, 0),
    (11, 13, "shifted", -18, 0),
    (1, 1, "zeros", 0, 0),
    (6, 10, "zeros", 0, 0),
    (4, 9, "constant", -16, 77777),
    (4, 9, "constant", -16, -77777),
    (1, 1, "constant", 0, 1),
    (1, 1, "constant", 0, -1),
    (3, 3, "constant", -149, 1),
    (2, 5, "constant", 104, (1 << 24) - 1),   # f32::MAX
    (2, 5, "constant", 104, 1 - (1 << 24)),
    (7, 12, "zero_rows", -18, 0),
    (40, 33, "zero_rows", -20, 0),
    (10, 21, "rows", -34, 0),
    (40, 70, "rows", -30, 0),
    (15, 16, "rows", -60, 0),
    (8, 15, "normal", -149, 0),               # all subnormal: the scale is eps and every code 0
    (8, 15, "normal", -143, 0),               # around the smallest normal number
    (8, 15, "normal", -115, 0),               # about 1e-30
    (8, 15, "normal", -38, 0),                # about 1e-7: the scale is eps
    (8, 15, "normal", -32, 0),                # the scale is near eps, on both sides by row
    (8, 15, "rows", -44, 0),
    (8, 15, "normal", 85, 0),                 # about 1e30
    (8, 15, "normal", 111, 0),                # up to f32::MAX
    (8, 15, "outlier", 106, 0),
    (6, 50, "symmetric_ties", -9, 0),
    (6, 50, "symmetric_ties", -16, 0),
    (40, 70, "symmetric_ties", -20, 0),
    (3, 31, "symmetric_ties", 100, 0),
]


def convert(weight, qconfig):
    """The weight inside the dynamic Linear that torch makes of `weight`."""
    n, k = weight.shape
    layer = torch.nn.Linear(k, n, bias=False)
    layer.weight = torch.nn.Parameter(torch.from_numpy(weight.copy()))
    layer.qconfig = qconfig
    return Linear.from_float(layer).weight()


def main():
    tensors, cases, different = {}, [], []
    for index, (n, k, kind, exponent, constant) in enumerate(SPECS):
        case = {"name": f"w{index:02}", "n": n, "k": k, "kind": kind, "seed": SEED * 100 + index, "exponent": exponent, "constant": constant}
        weight = generator.tensor((n, k), kind, case["seed"], exponent, constant)
        for scheme, qconfig in (("tensor", default_dynamic_qconfig), ("channel", per_channel_dynamic_qconfig)):
            quantized = convert(weight, qconfig)
            codes = quantized.int_repr().numpy()
            if scheme == "tensor":
                wide = np.array([quantized.q_scale()])
                zero_point = np.array([quantized.q_zero_point()])
            else:
                wide = quantized.q_per_channel_scales().numpy()
                zero_point = quantized.q_per_channel_zero_points().numpy()
            scale = wide.astype(np.float32)
            assert wide.dtype == np.float64 and (scale.astype(np.float64) == wide).all(), "a scale is not exact in f32"
            assert (zero_point == 0).all()

            formula = fixture.weight_scale(weight, scheme == "channel")
            if not fixture.same_bits(scale, formula) or not fixture.same_bits(codes, fixture.quantize_weight(weight, formula)):
                different.append((case, scheme))
            tensors[f"{case['name']}.{scheme}.scale"] = scale
            tensors[f"{case['name']}.{scheme}.zero_point"] = zero_point.astype(np.int32)
            tensors[f"{case['name']}.{scheme}.codes"] = codes
        cases.append(case)
    fixture.save("weight_codes", "weight_codes.py", SEED, tensors, cases=cases)
    print(f"{len(cases)} weights, {len(different)} differ from the formula", *different, sep="\n")


if __name__ == "__main__":
    main()
