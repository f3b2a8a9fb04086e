"""What torch.ao.quantization's observers choose, and the codes that follow.

Makes:   observers.safetensors
Command: python observers.py
Pinned:  torch==2.9.1 numpy==2.4.6 safetensors==0.8.0, Python 3.11

Three JSON arrays in the metadata: "inputs", each a list of the tensors observed one after the other
(shape and recipe of generator.py); "configs", each an observer with its arguments; "cases", each
[input, config, channels, coded]. The results of all cases lie one after the other:

    scale         f32   of `channels` channels; inf or NaN where torch gives that
    zero_point    i32   the same, 0 where the zero point is a float
    float_zero_point  f32   of the float zero points alone
    min_val, max_val  f32   what the observer keeps, of `channels` channels
    range         f32   two per histogram: what its search chose
    counts        i32   one per histogram: a checksum of its counts, the sum of their bits as u32, each
                        times its index from 1, modulo 2^32
    codes         u8    where `coded` is 1, the first tensor's codes, modulo 256: torch.quantize_per_tensor or
                        _per_channel, then clamped to the observer's quant_min and quant_max, as
                        torch.ao.nn.quantized.modules.utils._quantize_weight does for qint8

Where scale 1 and zero point 0 come from an observer that saw no element, `channels` is 0.
"""

import warnings

import numpy as np
import torch
from torch.ao.quantization import observer

import fixture
import generator

SEED = 20_260_110
HISTOGRAM_SEED = 20_260_111

RANGES = [(None, False), (None, True), ((-127, 127), False), ((-127, 127), True), ((-8, 7), False), ((0, 15), False), ((0, 254), False),
          ((0, 255), True), ((-3, 0), False)]
TENSOR_SCHEMES = ["per_tensor_symmetric", "per_tensor_affine"]
CHANNEL_SCHEMES = ["per_channel_symmetric", "per_channel_affine", "per_channel_affine_float_qparams"]


def fits(dtype, qscheme, quant_range, reduce_range):
    """Whether torch, and the codes of dtype, allow it."""
    least, greatest = (-128, 127) if dtype == "qint8" else (0, 255)
    if quant_range and not (least <= quant_range[0] and quant_range[1] <= greatest):
        return False
    return not (dtype == "quint8" and "symmetric" in qscheme and reduce_range)


def configs():
    """All MinMax configurations; the others' share their formula, so that fewer of them will do."""
    base = {"averaging_constant": None, "bins": None, "ch_axis": 0, "eps": 2.0**-23}
    for kind, schemes in (("MinMax", TENSOR_SCHEMES), ("PerChannelMinMax", CHANNEL_SCHEMES)):
        for dtype in ("qint8", "quint8"):
            for qscheme in schemes:
                for quant_range, reduce_range in RANGES:
                    if fits(dtype, qscheme, quant_range, reduce_range):
                        yield base | {"kind": kind, "dtype": dtype, "qscheme": qscheme, "quant_range": quant_range, "reduce_range": reduce_range}
        yield base | {"kind": kind, "dtype": "quint8", "qscheme": schemes[1], "quant_range": None, "reduce_range": False, "eps": 2.0**-12}
        yield base | {"kind": kind, "dtype": "qint8", "qscheme": schemes[0], "quant_range": None, "reduce_range": False, "eps": 2.0**-12}
    for kind, schemes in (("MovingAverageMinMax", TENSOR_SCHEMES), ("MovingAveragePerChannelMinMax", CHANNEL_SCHEMES)):
        for qscheme in schemes:
            for constant in (0.01, 0.3, 1.0):
                dtype = "qint8" if "symmetric" in qscheme else "quint8"
                yield base | {"kind": kind, "dtype": dtype, "qscheme": qscheme, "quant_range": None, "reduce_range": False, "averaging_constant": constant}
    for ch_axis in (1, -1):
        for kind, constant in (("PerChannelMinMax", None), ("MovingAveragePerChannelMinMax", 0.25)):
            yield base | {"kind": kind, "dtype": "quint8", "qscheme": CHANNEL_SCHEMES[1], "quant_range": None, "reduce_range": False,
                          "averaging_constant": constant, "ch_axis": ch_axis}


#   shape and (kind, exponent, constant) of each batch; all have at least two axes
INPUTS = [
    ((5, 24), [("normal", -18, 0)]),
    ((3, 4, 5), [("normal", -15, 0)]),
    ((4, 16), [("normal", -15, 0), ("normal", -14, 0), ("normal", -17, 0)]),
    ((3, 2, 7), [("shifted", -16, 0), ("normal", -16, 0)]),
    ((4, 97), [("outlier", -18, 0), ("normal", -18, 0)]),
    ((6, 11), [("relu", -18, 0)]),
    ((4, 9), [("positive", -18, 0), ("negative", -18, 0), ("positive", -17, 0), ("normal", -19, 0)]),
    ((4, 9), [("positive", -18, 0)]),
    ((4, 9), [("negative", -18, 0)]),
    ((3, 5), [("zeros", 0, 0)]),
    ((3, 5), [("zeros", 0, 0), ("normal", -16, 0)]),
    ((2, 5), [("constant", -16, 77777)]),
    ((2, 5), [("constant", -16, -77777)]),
    ((2, 5), [("constant", 0, 1)]),
    ((2, 5), [("constant", 104, (1 << 24) - 1)]),     # f32::MAX
    ((2, 5), [("constant", 104, 1 - (1 << 24))]),
    ((3, 3), [("constant", -149, 1)]),
    ((7, 12), [("zero_rows", -18, 0)]),
    ((10, 5), [("rows", -34, 0), ("rows", -34, 0)]),
    ((5, 8), [("normal", -149, 0)]),                  # all subnormal
    ((5, 8), [("normal", -38, 0)]),                   # about 1e-7: the scale is eps
    ((5, 8), [("normal", -32, 0)]),                   # the scale is near eps
    ((5, 8), [("normal", 85, 0)]),                    # about 1e30
    ((5, 8), [("normal", 111, 0)]),                   # up to f32::MAX: some ranges overflow
    ((3, 40), [("affine_ties", -9, 255)]),
    ((3, 40), [("affine_ties", -9, 127)]),
    ((3, 40), [("symmetric_ties", -9, 0)]),
    *[((1, 140), [("affine_ties", -9, constant)]) for constant in (60, 85, 100, 102, 200)],   # ties whose scale is rounded
    ((0, 4), [("normal", -15, 0)]),                   # no elements
]

#   shape of each batch, (kind, exponent, constant) of each
HISTOGRAMS = [
    *[((n,), [("normal", -15, 0)]) for n in (2, 3, 10, 100, 1000, 20_000)],
    *[((n,), [("uniform", -23, 0)]) for n in (10, 1000, 20_000)],
    *[((n,), [("lognormal", -16, 0)]) for n in (10, 100, 1000, 20_000)],
    *[((n,), [("student_t", -9, 0)]) for n in (10, 100, 1000, 20_000)],
    *[((n,), [("relu", -15, 0)]) for n in (100, 5000)],
    *[((n,), [("bimodal", -18, 0)]) for n in (100, 5000)],
    *[((n,), [("outlier", -16, 0)]) for n in (150, 5000)],
    *[((n,), [("shifted", -15, 0)]) for n in (100, 5000)],
    *[((n,), [("positive", -15, 0)]) for n in (100, 5000)],
    *[((n,), [("negative", -15, 0)]) for n in (100, 5000)],
    ((1,), [("normal", -15, 0)]),
    ((50,), [("zeros", 0, 0)]),
    ((50,), [("constant", -16, 77777)]),
    ((50,), [("constant", -16, -77777)]),
    ((7, 12), [("zero_rows", -18, 0)]),
    ((20, 50), [("rows", -30, 0)]),
    ((3, 4, 5), [("normal", -15, 0)]),
    ((100,), [("normal", -149, 0)]),
    ((100,), [("normal", -60, 0)]),
    ((100,), [("normal", 40, 0)]),
    ((100,), [("normal", 80, 0)]),
    ((2000,), [("affine_ties", -9, 255)]),
    # several batches
    ((1000,), [("normal", -15, 0), ("normal", -15, 0)]),
    ((1000,), [("normal", -16, 0), ("normal", -15, 0), ("normal", -14, 0), ("normal", -13, 0)]),
    ((1000,), [("normal", -13, 0), ("normal", -14, 0), ("normal", -15, 0), ("normal", -16, 0)]),   # the range never grows
    ((1000,), [("normal", -15, 0), ("lognormal", -17, 0), ("student_t", -9, 0)]),
    ((5000,), [("student_t", -9, 0), ("student_t", -9, 0), ("student_t", -9, 0), ("student_t", -9, 0)]),
    ((5000,), [("lognormal", -16, 0), ("lognormal", -16, 0)]),
    ((300,), [("lognormal", -16, 0), ("lognormal", -15, 0), ("lognormal", -14, 0)]),
    ((1000,), [("relu", -15, 0), ("relu", -14, 0), ("relu", -15, 0)]),
    ((1000,), [("positive", -15, 0), ("negative", -15, 0)]),
    ((1000,), [("negative", -15, 0), ("negative", -14, 0), ("positive", -20, 0)]),
    ((1000,), [("uniform", -23, 0), ("uniform", -23, 0), ("uniform", -22, 0)]),
    ((1000,), [("bimodal", -18, 0), ("normal", -15, 0)]),
    ((1000,), [("outlier", -16, 0), ("outlier", -16, 0), ("normal", -16, 0)]),
    ((1000,), [("shifted", -15, 0), ("normal", -15, 0), ("shifted", -15, 0), ("normal", -14, 0)]),
    ((50,), [("constant", -16, 77777), ("constant", -16, 77777)]),
    ((50,), [("constant", -16, 77777), ("normal", -15, 0)]),
    ((50,), [("constant", -16, -77777), ("constant", -16, 77777), ("normal", -15, 0)]),
    ((50,), [("zeros", 0, 0), ("zeros", 0, 0), ("uniform", -23, 0)]),
    ((50,), [("normal", -15, 0), ("zeros", 0, 0), ("constant", -16, 500000)]),
    ((0,), [("normal", -15, 0)]),
    ((1, 300), [("student_t", -9, 0), ("normal", -15, 0)]),
    ((16,), [("normal", -15, 0), ("normal", -15, 0), ("normal", -15, 0), ("normal", -15, 0)]),
]


def histogram_configs():
    base = {"kind": "Histogram", "averaging_constant": None, "ch_axis": 0, "eps": 2.0**-23}
    for dtype, qscheme, quant_range, reduce_range, bins in (
        ("quint8", "per_tensor_affine", None, False, 2048),
        ("qint8", "per_tensor_symmetric", None, False, 2048),
        ("qint8", "per_tensor_affine", None, True, 2048),
        ("quint8", "per_tensor_affine", (0, 15), False, 256),
        ("quint8", "per_tensor_symmetric", None, False, 100),
    ):
        yield base | {"dtype": dtype, "qscheme": qscheme, "quant_range": quant_range, "reduce_range": reduce_range, "bins": bins}


def build(config):
    """torch's observer of a configuration."""
    least, greatest = config["quant_range"] or (None, None)
    arguments = {"dtype": getattr(torch, config["dtype"]), "qscheme": getattr(torch, config["qscheme"]),
                 "reduce_range": config["reduce_range"], "quant_min": least, "quant_max": greatest, "eps": config["eps"]}
    if "Channel" in config["kind"]:
        arguments["ch_axis"] = config["ch_axis"]
    for key in ("averaging_constant", "bins"):
        if config[key] is not None:
            arguments[key] = config[key]
    return getattr(observer, config["kind"] + "Observer")(**arguments)


def codes_of(config, made, x, scale, zero_point):
    dtype = getattr(torch, config["dtype"])
    if "Channel" in config["kind"]:
        floats = "float" in config["qscheme"]
        scale = scale if floats else scale.to(torch.double)
        zero_point = zero_point.to(torch.float if floats else torch.int64)
        quantized = torch.quantize_per_channel(x, scale, zero_point, config["ch_axis"] % x.dim(), dtype)
    else:
        quantized = torch.quantize_per_tensor(x, float(scale), int(zero_point), dtype)
    return torch.clamp(quantized.int_repr().to(torch.int32), made.quant_min, made.quant_max).numpy()


def main():
    warnings.simplefilter("ignore")
    all_configs = [*configs(), *histogram_configs()]
    first_histogram = next(i for i, config in enumerate(all_configs) if config["kind"] == "Histogram")
    inputs, cases = [], []
    results = {key: [] for key in ("scale", "zero_point", "float_zero_point", "min_val", "max_val", "range", "counts", "codes")}

    def add(i, c, tensors):
        config = all_configs[c]
        made = build(config)
        for x in tensors:
            made(x)
        scale, zero_point = made.calculate_qparams()
        floats = zero_point.dtype == torch.float32
        seen = made.min_val.numel() and made.min_val.isfinite().all()
        channels = scale.numel() if seen else 0
        coded = bool(channels and tensors[0].numel() <= 150 and scale.isfinite().all() and (c + i) % 3 == 0)
        cases.append([i, c, channels, int(coded)])
        if not channels:
            assert (scale == 1).all() and (zero_point == 0).all() and scale.numel() == 1
            return
        results["scale"].append(scale.numpy())
        results["zero_point"].append(np.zeros(channels, np.int32) if floats else zero_point.numpy().astype(np.int32))
        if floats:
            results["float_zero_point"].append(zero_point.numpy())
        results["min_val"].append(made.min_val.numpy().reshape(-1))
        results["max_val"].append(made.max_val.numpy().reshape(-1))
        if config["kind"] == "Histogram":
            bits = made.histogram.numpy().view(np.uint32).astype(np.uint64)
            checksum = (bits * np.arange(1, bits.size + 1, dtype=np.uint64)).sum() & np.uint64(2**32 - 1)
            results["counts"].append(np.array([checksum], np.uint32).view(np.int32))
            results["range"].append(np.array([end.item() for end in made._non_linear_param_search()], np.float32))
        if coded:
            results["codes"].append((codes_of(config, made, tensors[0], scale, zero_point) & 255).astype(np.uint8).reshape(-1))

    for seed, groups in ((SEED, INPUTS), (HISTOGRAM_SEED, HISTOGRAMS)):
        for g, (shape, batches) in enumerate(groups):
            recipes = [{"shape": list(shape), "kind": kind, "seed": seed * 1000 + 10 * g + b, "exponent": exponent, "constant": constant}
                       for b, (kind, exponent, constant) in enumerate(batches)]
            tensors = [torch.from_numpy(generator.tensor(r["shape"], r["kind"], r["seed"], r["exponent"], r["constant"])) for r in recipes]
            index = len(inputs)
            inputs.append(recipes)
            if groups is HISTOGRAMS:
                # Each distribution with torch's defaults, and with one other configuration.
                for c in (first_histogram, first_histogram + 1 + g % (len(all_configs) - first_histogram - 1)):
                    add(index, c, tensors)
            else:
                for c in range(first_histogram):
                    add(index, c, tensors)
    dtypes = {"zero_point": np.int32, "counts": np.int32, "codes": np.uint8}
    tensors = {key: np.concatenate(value).astype(dtypes.get(key, np.float32)) for key, value in results.items()}
    fixture.save("observers", "observers.py", SEED, tensors, inputs=inputs, configs=all_configs, cases=cases)
    histograms = sum(1 for i, c, _, _ in cases if c >= first_histogram)
    print(len(inputs), "inputs,", len(all_configs), "configs,", len(cases), "cases,", histograms, "histograms,", tensors["codes"].size, "codes",
          "| not finite:", int((~np.isfinite(tensors["scale"])).sum()))


if __name__ == "__main__":
    main()
