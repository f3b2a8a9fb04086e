"""Scale and zero_point that torch chooses for a u8 activation with a given minimum and maximum.

Makes:   activation_qparams.safetensors
Command: python activation_qparams.py
Pinned:  torch==2.9.1 numpy==2.4.6 safetensors==0.8.0, Python 3.11, engine x86

Tensors, all [N]:
    min, max       f32   the smallest and largest activation (finite, min <= max)
    reduce_range   u8    1: codes 0..127, 0: codes 0..255
    scale          f64   torch._choose_qparams_per_tensor's float; the kernels use it as f32
    zero_point     i32
Metadata "groups": a list of [name, first, end], the index ranges of what the pairs were made for.
"""

import numpy as np
import torch

import fixture
from generator import bells, mix

f32 = np.float32
SEED = 20_260_001
SMALLEST_NORMAL = f32(2.0**-126)
SMALLEST = f32(2.0**-149)
LARGEST = np.finfo(f32).max


def step(value, ulps):
    """The f32 that lies `ulps` representable numbers further from zero."""
    return (np.atleast_1d(f32(value)).view(np.int32) + np.int32(ulps)).view(f32)[0]


def uniform(seed, count):
    """f64 in [0, 1)."""
    return (mix(seed, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def groups():
    """Yields (name, list of (min, max)); each pair is used with both ranges."""
    yield "zeros", [(0.0, 0.0), (-0.0, 0.0), (-0.0, -0.0), (0.0, -0.0)]

    magnitudes = [1.0, 5.0, 0.1, 1 / 3, 127.0, 255.0, 1e-3, 1e-5, 1e-10, 1e-30, 1e-38, 1e-44, 1e10, 1e30, 3e38, LARGEST, SMALLEST, SMALLEST_NORMAL]
    yield "constants", [(sign * m, sign * m) for m in magnitudes for sign in (1, -1)]
    yield "one_sided", [pair for m in magnitudes for pair in ((0.0, m), (-m, 0.0), (m / 3, m), (-m, -m / 3), (-0.0, m), (-m, -0.0))]
    yield "symmetric", [(-m, m) for m in magnitudes] + [(-m, step(m, -1)) for m in magnitudes] + [(-m / 2, m) for m in magnitudes]

    around = [step(SMALLEST_NORMAL, d) for d in (-3, -2, -1, 0, 1, 2, 3)] + [f32(k) * SMALLEST for k in (1, 2, 3, 63, 64, 127, 128, 255, 256, 257, 65535)]
    yield "subnormal", [pair for a in around for pair in ((0.0, a), (-a, 0.0), (-a, a), (-a, 3 * a), (-SMALLEST, a), (a, 2 * a))]

    # The f32 scale falls to zero, or its reciprocal overflows: 2^-128 is the last safe scale.
    pairs = []
    for levels in (127, 255):
        for power in (-151, -150, -149, -129, -128, -127, -126, -125):
            for ulps in (-1, 0, 1):
                edge = step(f32(levels * 2.0**power), ulps)
                pairs += [(0.0, edge), (-edge, 0.0), (-edge / 4, 3 * (edge / 4))]
    yield "reciprocal_overflow", pairs

    # The small-scale threshold, 6.1e-5 as f32.
    pairs = []
    for levels in (127, 255):
        for ulps in (-1000, -3, -2, -1, 0, 1, 2, 3, 1000):
            edge = step(f32(6.1e-5) * f32(levels), ulps)
            pairs += [(0.0, edge), (-edge, 0.0), (edge / 2, edge), (-edge, -edge / 2), (-edge / 2, edge / 2), (-edge / 3, edge - edge / 3), (-edge * f32(0.9), edge * f32(0.1))]
    yield "small_scale_threshold", pairs

    below = 10.0 ** (-4 - 30 * uniform(SEED + 1, 120))
    share = uniform(SEED + 2, 120)
    yield "below_threshold", [(-m * s, m * (1 - s)) for m, s in zip(below, share)]

    huge = 3e38 * uniform(SEED + 3, 60)
    share = uniform(SEED + 4, 60)
    yield "huge", [(-m * s, m) for m, s in zip(huge, share)] + [(-LARGEST, LARGEST), (-LARGEST, 1.0), (-1.0, LARGEST), (-LARGEST, SMALLEST), (-SMALLEST, LARGEST)]

    # Zero points midway between two integers, and one ulp to each side. The scale is a power of two
    # (exact ties) or an odd number (ties up to rounding).
    pairs = []
    for levels in (127, 255):
        for scale in (1.0, 2.0**-10, 2.0**40, 0.1, 0.37, 1234.567):
            for whole in (0, 1, 2, 31, 62, 63, 64, 100, levels - 2, levels - 1):
                if whole >= levels:
                    continue
                low, high = f32(-scale * (whole + 0.5)), f32(scale * (levels - whole - 0.5))
                pairs += [(low, high), (step(low, 1), high), (low, step(high, 1))]
    yield "zero_point_ties", pairs

    low = np.sort(np.ldexp(bells(SEED + 5, 600).reshape(300, 2).astype(f32), -16), axis=1)
    yield "ordinary", list(map(tuple, low))

    exponent = -44 + 82.4 * uniform(SEED + 6, 1200)
    ends = (10.0**exponent * np.where(mix(SEED + 7, 1200) >> np.uint64(63), 1, -1)).reshape(600, 2)
    yield "any_magnitude", list(map(tuple, np.sort(ends, axis=1)))


def main():
    columns = {"min": [], "max": [], "reduce_range": [], "scale": [], "zero_point": []}
    ranges, different = [], 0
    for name, pairs in groups():
        first = len(columns["min"])
        for low, high in pairs:
            low, high = f32(low), f32(high)
            assert np.isfinite(low) and np.isfinite(high) and low <= high, (name, low, high)
            for reduce_range in (False, True):
                got = torch._choose_qparams_per_tensor(torch.tensor([low, high], dtype=torch.float32), reduce_range)
                if got != fixture.choose_qparams(low, high, reduce_range):
                    different += 1
                    print(name, low, high, reduce_range, "torch", got, "formula", fixture.choose_qparams(low, high, reduce_range))
                for key, value in zip(columns, (low, high, reduce_range, *got)):
                    columns[key].append(value)
        ranges.append([name, first, len(columns["min"])])
    types = {"min": f32, "max": f32, "reduce_range": np.uint8, "scale": np.float64, "zero_point": np.int32}
    tensors = {key: np.array(values, dtype=types[key]) for key, values in columns.items()}
    fixture.save("activation_qparams", "activation_qparams.py", SEED, tensors, groups=ranges)
    print(f"{len(columns['min'])} cases, {different} differ from the formula", ranges)


if __name__ == "__main__":
    main()
