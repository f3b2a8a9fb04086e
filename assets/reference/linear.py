"""Outputs of torch's dynamically quantized Linear, from the f32 input to the f32 output.

Makes:   linear.safetensors
Command: python linear.py
Pinned:  torch==2.9.1 numpy==2.4.6 safetensors==0.8.0, Python 3.11, engine x86

Inputs, weights and biases are not stored: generator.py makes them from the case list, a JSON array
in the metadata under "cases". One case:

    name          "000", "001", ...
    group         what the case was made for
    shape         shape of x, the last axis is k
    n, k          the weight is [n, k], the bias [n]
    per_channel   true: per_channel_dynamic_qconfig, false: default_dynamic_qconfig
    reduce_range  true: the module's own forward (activation codes 0..127);
                  false: torch.ops.quantized.linear_dynamic(x, packed, reduce_range=False)
    x, weight     {"kind", "seed", "exponent", "constant"} for the generator
    bias          the same, or null for a Linear without bias
    finite        false: some outputs are infinite or NaN (as in torch; compare any NaN as equal)

Tensors per case: <name>.output f32 [*shape[:-1], n]; <name>.scale f32 [n] or [1], the weight scales
(zero points are 0); and, where n * k <= 70000, <name>.codes i8 [n, k], the weight codes.

Every case is computed a second time with the formula in fixture.py, and with two threads.
"""

import collections
import math

import numpy as np
import torch
from torch.ao.nn.quantized.dynamic import Linear
from torch.ao.quantization import default_dynamic_qconfig, per_channel_dynamic_qconfig

import fixture
import generator

SEED = 20_260_003
CODES_LIMIT = 70_000
SEAMS = (
    1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 384, 512, 768, 1023, 1024,
    1025, 1030,
)
# Ordinary inputs that the size groups take in turn: (kind, exponent).
ORDINARY = (("normal", -15), ("outlier", -16), ("relu", -14), ("shifted", -15), ("negative", -17))

# Inputs of the group "input": (kind, exponent, constant).
INPUTS = (
    *[(kind, -15, 0) for kind in ("normal", "outlier", "relu", "positive", "negative", "shifted", "zero_rows")],
    ("zeros", 0, 0),
    ("rows", -30, 0),
    ("constant", -14, 81920),      # 5
    ("constant", -14, -81920),
    ("constant", -149, 1),
    ("constant", 104, (1 << 24) - 1),
    ("normal", -22, 0),            # 7e-3: near the small-scale threshold from above
    ("normal", -24, 0),            # near it from below, for one of the two ranges
    ("normal", -25, 0),
    ("relu", -25, 0),
    ("negative", -25, 0),
    ("normal", -35, 0),            # 1e-6: well below
    ("relu", -35, 0),
    ("negative", -35, 0),
    ("normal", -115, 0),           # 1e-30
    ("normal", -149, 0),           # subnormal
    ("relu", -149, 0),
    ("normal", 84, 0),             # 1e30
    ("relu", 84, 0),
    ("negative", 84, 0),
    ("normal", 101, 0),            # 1e35
)

# Weights of the group "weight".
WEIGHTS = (
    *[(kind, -18, 0) for kind in ("normal", "outlier", "relu", "positive", "negative", "shifted", "zero_rows")],
    ("zeros", 0, 0),
    ("constant", -20, 77777),
    ("constant", -20, -77777),
    ("rows", -40, 0),
    ("symmetric_ties", -12, 0),
    ("normal", -38, 0),            # the scale is eps
    ("normal", -115, 0),
    ("normal", -149, 0),
    ("normal", 84, 0),
)

# Seeds, found by search, of inputs [40, 65] with exponent -15 in which at least one code depends on the
# multiply-add being fused, or on multiplying by the f32 reciprocal of the scale and not dividing by it.
ROUNDING = {
    "rounding_reduced": (("normal", 328), ("normal", 406), ("normal", 1496), ("outlier", 1034), ("shifted", 588), ("shifted", 931)),
    "rounding_full": (("normal", 81), ("normal", 519), ("normal", 1114), ("outlier", 871), ("shifted", 21), ("shifted", 630)),
}


def layouts():
    """Yields (group, shape of x, n, k, x, weight); x and weight are (kind, exponent, constant[, seed])."""
    ordinary = lambda i: (*ORDINARY[i % len(ORDINARY)], 0)
    normal = ("normal", -18, 0)

    for turn in range(2):
        for i, k in enumerate(SEAMS):
            n = (1, 2, 3, 5, 7, 8, 9)[(i + 3 * turn) % 7]
            yield "k", [1 + (i + turn) % 4, k], n, k, ordinary(i + turn), normal
    for turn in range(2):
        for i, n in enumerate(SEAMS):
            k = (5, 16, 3, 33, 8, 17, 2, 31, 4)[(i + 4 * turn) % 9]
            yield "n", [1 + (i + 2 * turn) % 3, k], n, k, ordinary(i + turn), normal
    for m in range(1, 41):
        n, k = ((15, 33), (17, 31), (16, 20), (5, 65))[m % 4]
        yield "m", [m, k], n, k, ordinary(m), normal

    medium = (63, 64, 65, 100, 127, 128, 129, 255, 256, 257)
    for i in range(24):
        n, k = medium[i % 10], medium[(3 * i + i // 10) % 10]
        yield "n_and_k", [1 + i % 6, k], n, k, ordinary(i), normal
    for i, (m, n, k) in enumerate((
        (2, 384, 384), (1, 1024, 384), (2, 384, 1024), (1, 768, 768), (2, 512, 768), (3, 768, 512), (1, 1023, 1025), (1, 1025, 1023),
        (2, 1030, 1030), (1, 1024, 1024), (4, 257, 1030), (1, 1030, 257), (6, 384, 384), (5, 255, 512), (8, 129, 768), (1, 256, 1025),
    )):
        yield "large", [m, k], n, k, ordinary(i), normal

    for i, shape in enumerate((
        [1, 7], [2, 3, 17], [1, 1, 32], [5, 4, 33], [2, 1, 3, 16], [3, 2, 2, 9], [40, 12], [1, 40, 8], [0, 16], [2, 0, 33], [0, 1], [0, 4, 5],
    )):
        for turn in range(2):
            yield "shape", shape, (8, 13)[turn], shape[-1], ordinary(i + turn), normal
    for values in INPUTS:
        for turn in range(2):
            yield "input", [5, 33], (17, 10)[turn], 33, values, normal
    for values in WEIGHTS:
        for turn in range(2):
            yield "weight", [3, 31], 16, 31, ordinary(turn), values
    for turn in range(4):
        yield "ties", [9, 40], 11, 40, ("affine_ties", (-3, -11, 5, 60)[turn], None), ("symmetric_ties", -9, 0)
    for turn in range(2):
        yield "overflow", [2, 20], 6, 20, ("normal", 100, 0), ("normal", 20 + 20 * turn, 0)
    for group, inputs in ROUNDING.items():
        for kind, seed in inputs:
            yield group, [40, 65], 5, 65, (kind, -15, 0, seed), normal


def cases():
    """The case list, without "finite"."""
    for i, (group, shape, n, k, x, weight) in enumerate(layouts()):
        choice = int(generator.mix(SEED, i + 1)[i])
        if group in ("input", "shape", "ties", "overflow"):
            reduce_range = i % 2 == 0
        else:
            reduce_range = bool(choice & 1)
        if group in ROUNDING:
            reduce_range = group == "rounding_reduced"
        seeds = [SEED * 10_000 + 10 * i + j for j in range(3)]
        spec = lambda values, seed: dict(kind=values[0], seed=seed, exponent=values[1], constant=values[2])
        if len(x) == 4:
            seeds[0] = x[3]
        if x[2] is None:
            x = (*x[:2], 127 if reduce_range else 255)
        # A bias of about the size of the products' sum.
        largest = x[1] + weight[1] + 15 + round(math.log2(k) / 2)
        bias = ("normal", min(max(largest, -149), 100), 0)
        yield {
            "name": f"{i:03}", "group": group, "shape": shape, "n": n, "k": k,
            "per_channel": bool(choice & 2) if group != "weight" else i % 2 == 0,
            "reduce_range": reduce_range,
            "x": spec(x, seeds[0]), "weight": spec(weight, seeds[1]),
            "bias": spec(bias, seeds[2]) if choice & 12 else None,
        }


def build(case, weight, bias):
    """The dynamic Linear that torch makes of a float one."""
    layer = torch.nn.Linear(case["k"], case["n"], bias=bias is not None)
    layer.weight = torch.nn.Parameter(torch.from_numpy(weight.copy()))
    if bias is not None:
        layer.bias = torch.nn.Parameter(torch.from_numpy(bias.copy()))
    layer.qconfig = per_channel_dynamic_qconfig if case["per_channel"] else default_dynamic_qconfig
    return Linear.from_float(layer)


def forward(module, x, reduce_range):
    with torch.no_grad():
        x = torch.from_numpy(x.copy())
        if reduce_range:
            return module(x).numpy()
        packed = module._packed_params._packed_params
        return torch.ops.quantized.linear_dynamic(x, packed, reduce_range=False).numpy()


def main():
    tensors, listed, different = {}, [], []
    for case in cases():
        make = lambda spec, shape: generator.tensor(shape, spec["kind"], spec["seed"], spec["exponent"], spec["constant"])
        n, k, name = case["n"], case["k"], case["name"]
        x, weight = make(case["x"], case["shape"]), make(case["weight"], (n, k))
        bias = None if case["bias"] is None else make(case["bias"], (n,))

        module = build(case, weight, bias)
        quantized = module.weight()
        codes = quantized.int_repr().numpy()
        scale = quantized.q_per_channel_scales().numpy() if case["per_channel"] else np.array([quantized.q_scale()])
        assert (scale.astype(np.float32) == scale).all()
        scale = scale.astype(np.float32)
        output = forward(module, x, case["reduce_range"])
        assert output.shape == (*case["shape"][:-1], n) and output.dtype == np.float32

        torch.set_num_threads(2)
        again = forward(module, x, case["reduce_range"])
        torch.set_num_threads(1)
        wanted_scale = fixture.weight_scale(weight, case["per_channel"])
        wanted_codes = fixture.quantize_weight(weight, wanted_scale)
        wanted = fixture.linear(x, wanted_codes, wanted_scale, bias, case["reduce_range"])
        for what, got, want in (("threads", again, output), ("scale", scale, wanted_scale), ("codes", codes, wanted_codes), ("output", output, wanted)):
            if not fixture.same_bits(got, want):
                different.append((what, case, got, want))

        case["finite"] = bool(np.isfinite(output).all())
        tensors[f"{name}.output"] = output
        tensors[f"{name}.scale"] = scale
        if n * k <= CODES_LIMIT:
            tensors[f"{name}.codes"] = codes
        listed.append(case)

    fixture.save("linear", "linear.py", SEED, tensors, cases=listed)
    print(f"{len(listed)} cases, {len(different)} differences from the formula")
    for what, case, got, want in different:
        print(what, case, got.reshape(-1)[:4], want.reshape(-1)[:4])
    count = lambda key: dict(collections.Counter(key(case) for case in listed))
    print("groups", count(lambda c: c["group"]))
    print("(per_channel, reduce_range, bias)", count(lambda c: (c["per_channel"], c["reduce_range"], c["bias"] is not None)))
    print("without codes", sum(c["n"] * c["k"] > CODES_LIMIT for c in listed))
    print("not finite", [(c["name"], c["group"]) for c in listed if not c["finite"]])


if __name__ == "__main__":
    main()
