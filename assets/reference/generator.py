"""Reproducible tensors for the fixtures: what a fixture does not store, a test generates again.

Makes: nothing by itself; the other scripts in this folder import it.
Check: python generator.py        (prints the known answers below and fails if they differ)
Pinned: numpy==2.4.6

Definition. All arithmetic on z is u64 and wraps. Element i (0, 1, 2, ... in row-major order) of a
tensor with seed s:

    z = s + (i + 1) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z = z ^ (z >> 31)
    v = (z & 0xFFFF) + (z >> 16 & 0xFFFF) + (z >> 32 & 0xFFFF) + (z >> 48) - 131070

so v is an integer, bell-shaped, in [-131070, 131070], with standard deviation 37837. The kind of
the tensor then makes an integer u from v, and the element is

    (u as f32) * 2^exponent

    kind       u
    normal     v
    outlier    32 * v where i % 97 == 0, else v
    relu       max(v, 0)
    positive   |v| + 1                         all elements above zero
    negative   -|v| - 1                        all elements below zero
    shifted    v + 65536                       mostly positive: zero_point near the low end
    zeros      0
    constant   the case's "constant"
    zero_rows  0 in rows 1, 4, 7, ... (r % 3 == 1, r = i / row length), else v
    rows       v, and the exponent of row r is exponent + 7 * (r % 5)
    affine_ties      element 0: -86; element 1: 2 * P - 86; others: |v| % (2 * P + 1) - 86, where P is
                     the case's "constant". With P = 127 (reduce_range) or 255 (full range) the scale
                     is exactly 2^(exponent + 1), the zero_point 43, and every odd u lies midway
                     between two codes.
    symmetric_ties   first element of a row: 255; others: |v| % 511 - 255. The weight scale is
                     exactly 2^(exponent + 1) in each row, and every odd u lies midway.
    uniform          (z >> 40) - 2^23          in [-2^23, 2^23)
    lognormal        (256 + (z & 255)) * 2^min(c, 15), where c is the number of ones in z >> 48
    student_t        (z & 511) * 2^floor(t / 2), where t is the number of zeros below the
                     lowest one of (z >> 16) | 2^30; negative where z >= 2^63. Its tails fall with
                     the square, as those of 2 degrees of freedom.
    bimodal          v + 393216 where z is odd, else v - 393216

Every step is exact: |u| < 2^24, and -149 <= exponent (an element may be subnormal and is still
exact), and the largest |u| * 2^exponent stays below f32::MAX. The functions below check this.
A zero is always +0.0. Near unit variance: exponent -15. All subnormal: exponent -149 (up to
131070 * 2^-149). Nearly f32::MAX: kind normal with exponent 111.
"""

import numpy as np

KINDS = (
    "normal", "outlier", "relu", "positive", "negative", "shifted",
    "zeros", "constant", "zero_rows", "rows", "affine_ties", "symmetric_ties",
    "uniform", "lognormal", "student_t", "bimodal",
)


def mix(seed, count):
    """The u64 values z of elements 0..count."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def bells(seed, count):
    """The integers v of elements 0..count, as i64."""
    z = mix(seed, count)
    chunks = [(z >> np.uint64(shift) & np.uint64(0xFFFF)).astype(np.int64) for shift in (0, 16, 32, 48)]
    return sum(chunks) - 131070


def tensor(shape, kind, seed, exponent, constant=0):
    """An f32 array of `shape` by the definition at the top of this file."""
    count = int(np.prod(shape))
    i = np.arange(count, dtype=np.int64)
    row = i // max(shape[-1], 1)  # a row is the last axis
    z, v = mix(seed, count), bells(seed, count)
    if kind in ("normal", "rows"):
        u = v
    elif kind == "outlier":
        u = np.where(i % 97 == 0, 32 * v, v)
    elif kind == "relu":
        u = np.maximum(v, 0)
    elif kind == "positive":
        u = np.abs(v) + 1
    elif kind == "negative":
        u = -np.abs(v) - 1
    elif kind == "shifted":
        u = v + 65536
    elif kind == "zeros":
        u = np.zeros_like(v)
    elif kind == "constant":
        u = np.full_like(v, constant)
    elif kind == "zero_rows":
        u = np.where(row % 3 == 1, 0, v)
    elif kind == "affine_ties":
        span = 2 * constant + 1
        u = np.abs(v) % span - 86
        u[:2] = (-86, 2 * constant - 86)
    elif kind == "symmetric_ties":
        u = np.where(i % shape[-1] == 0, 255, np.abs(v) % 511 - 255)
    elif kind == "uniform":
        u = (z >> np.uint64(40)).astype(np.int64) - (1 << 23)
    elif kind == "lognormal":
        u = (256 + (z & np.uint64(255)).astype(np.int64)) << np.minimum(np.bitwise_count(z >> np.uint64(48)).astype(np.int64), 15)
    elif kind == "student_t":
        bits = (z >> np.uint64(16) | np.uint64(1 << 30)).astype(np.int64)
        zeros = np.bitwise_count((bits & -bits) - 1).astype(np.int64)
        u = (z & np.uint64(511)).astype(np.int64) << zeros // 2
        u = np.where(z >> np.uint64(63), -u, u)
    elif kind == "bimodal":
        u = v + np.where(z & np.uint64(1), 393216, -393216)
    else:
        raise ValueError(f"unknown kind {kind!r}; one of {', '.join(KINDS)}")

    exponents = exponent + 7 * (row % 5) if kind == "rows" else np.full_like(i, exponent)
    exact = np.ldexp(u.astype(np.float64), exponents)
    out = exact.astype(np.float32)
    if np.any(np.abs(u) >= 1 << 24) or np.any(exponents < -149) or np.any(out.astype(np.float64) != exact):
        raise ValueError(f"{kind} with exponent {exponent} is not exact in f32")
    return out.reshape(shape)


def check():
    """Known answers: the first values of three tensors."""
    assert [hex(z) for z in mix(0, 3)] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]
    known = {
        ("normal", 1, 0): [-23365, 40579, 60435, 44960],
        ("outlier", 42, 0): [-929824, 44941, -40692, 11259],
        ("negative", 7, 0): [-21319, -25732, -3022, -4534],
        ("uniform", 1, 0): [1116717, 4123533, 7902114, -933498],
        ("lognormal", 1, 0): [14368, 1470464, 179200, 34176],
        ("student_t", 1, 0): [-193, -103, -350, 267],
        ("bimodal", 1, 0): [369851, 433795, -332781, 438176],
    }
    for (kind, seed, exponent), want in known.items():
        got = [int(value) for value in tensor((4,), kind, seed, exponent)]
        assert got == want, (kind, seed, exponent, got, want)
        print(kind, "seed", seed, "exponent", exponent, "->", got)
    assert tensor((1,), "constant", 0, -149, 1).view(np.uint32)[0] == 1
    assert np.isfinite(tensor((4000,), "normal", 3, 111)).all()


if __name__ == "__main__":
    check()
