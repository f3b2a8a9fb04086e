"""What onnxruntime's own dynamic quantization makes of a MatMul, and what the model then computes.

Makes:   onnxruntime_linear.safetensors
Command: python onnxruntime_linear.py
Pinned:  onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6, and torch==2.9.1 for fixture.py; Python 3.11

Two JSON arrays in the metadata: "cases" and "activations". A case is a weight [n, k] (a recipe of
generator.py; the model holds its transpose), perhaps a bias [n] that an Add adds, the arguments of
onnxruntime.quantization.quantize_dynamic (weight_type, WeightSymmetric or null where it is not set,
per_channel, reduce_range), and the inputs [m, k] that the quantized model runs on. The results of
all cases lie one after the other:

    scale       f32   1 per case, or n where per_channel
    zero_point  i32   the same
    codes       u8    [n, k], modulo 256
    output      f32   [m, n] of each input

An activation is a recipe, on which DynamicQuantizeLinear runs:

    activation_scale  f32   1 each
    activation_zero_point  i32   1 each
    activation_codes  u8    all elements of each

The model runs as the operators quantize_dynamic wrote, and again with all optimizations, which fuse them
to DynamicQuantizeMatMul; "different" in the metadata counts outputs where these two, one thread and two,
or the formulas below differ in a bit. All products of scales are finite.

    y = f32(acc) * (scale_x * scale_w[n]) + bias[n]      each operation rounded to f32

"fused" in the metadata holds, over all outputs with a bias, how far a fused multiply-add of the last two
operations lies from them, in units of the last place of the larger of product and result.
"""

import logging
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization

import generator

SEED = 20_260_120
f32 = np.float32
logging.disable(logging.WARNING)
onnxruntime.set_default_logger_severity(3)
assert onnxruntime.__version__ == "1.31.1" and onnx.__version__ == "1.23.2"

#   n, k, kind, exponent, constant
WEIGHTS = [
    (7, 12, "normal", -18, 0),
    (16, 33, "normal", -18, 0),
    (1, 5, "normal", -15, 0),
    (5, 1, "normal", -15, 0),
    (3, 97, "outlier", -20, 0),
    (6, 9, "positive", -18, 0),
    (6, 9, "negative", -18, 0),
    (6, 9, "shifted", -18, 0),
    (7, 10, "zero_rows", -18, 0),
    (5, 10, "rows", -34, 0),
    (3, 5, "zeros", 0, 0),
    (2, 6, "constant", -16, 77777),
    (5, 8, "normal", -149, 0),      # all subnormal: the scale becomes 1
    (5, 8, "normal", -139, 0),      # the scale lies about the least normal number, by row
    (5, 8, "normal", 111, 0),       # up to f32::MAX: the range is finite in f64 alone
    (4, 30, "symmetric_ties", -9, 0),
    (4, 30, "affine_ties", -9, 255),
    *[(1, 30, "affine_ties", -9, constant) for constant in (86, 102, 170)],   # the zero point is a tie
]
INPUTS = [("normal", -15, 0), ("relu", -15, 0), ("shifted", -18, 0), ("negative", -16, 0), ("outlier", -17, 0), ("zeros", 0, 0),
          ("affine_ties", -9, 255), ("student_t", -9, 0)]

#   count, kind, exponent, constant
ACTIVATIONS = [
    *[(40, kind, exponent, 0) for kind in ("normal", "relu", "positive", "negative", "shifted", "outlier", "student_t", "lognormal")
      for exponent in (-15, -30, -60, -100, 60, 100)],
    *[(40, "normal", exponent, 0) for exponent in range(-149, -120, 4)],
    *[(300, "affine_ties", exponent, 255) for exponent in (-20, -9, 0, 30)],
    *[(300, "affine_ties", -9, constant) for constant in (86, 102, 170)],   # the zero point is a tie
    *[(40, "constant", -149, constant) for constant in (3, -3, 200)],       # the scale rounds to 0
    (40, "affine_ties", -149, 50),
    *[(40, "constant", -16, constant) for constant in (0, 1, -1, 77777, -77777)],
    *[(1, "normal", -15, seed) for seed in range(20)],
    *[(50, "uniform", -23 - i, 0) for i in range(20)],
]


def make_model(weight, bias):
    k, n = weight.shape
    nodes = [helper.make_node("MatMul", ["x", "weight"], ["y" if bias is None else "product"], name="matmul")]
    initializers = [numpy_helper.from_array(weight, "weight")]
    if bias is not None:
        nodes.append(helper.make_node("Add", ["product", "bias"], ["y"], name="add"))
        initializers.append(numpy_helper.from_array(bias, "bias"))
    value = lambda name, width: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["m", width])
    graph = helper.make_graph(nodes, "linear", [value("x", k)], [value("y", n)], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def session(model, optimized=True, threads=1):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def quantize(model, case):
    extra = {"MatMulConstBOnly": True}
    if case["symmetric"] is not None:
        extra["WeightSymmetric"] = case["symmetric"]
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, f"{folder}/float.onnx")
        quantization.quantize_dynamic(
            f"{folder}/float.onnx", f"{folder}/int8.onnx", weight_type=quantization.QuantType[case["weight_type"]],
            per_channel=case["per_channel"], reduce_range=case["reduce_range"], extra_options=extra)
        return onnx.load(f"{folder}/int8.onnx")


def dynamic_quantize_linear():
    value = lambda name, kind, shape: helper.make_tensor_value_info(name, kind, shape)
    graph = helper.make_graph(
        [helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero_point"])], "quantize", [value("x", TensorProto.FLOAT, ["m"])],
        [value("y", TensorProto.UINT8, ["m"]), value("scale", TensorProto.FLOAT, []), value("zero_point", TensorProto.UINT8, [])])
    return session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


# What onnxruntime computes, written out.


def activation_qparams(x):
    least, greatest = min(x.min(), f32(0)), max(x.max(), f32(0))
    with np.errstate(all="ignore"):
        scale = f32(1) if least == greatest else (greatest - least) / f32(255)
        zero_point = np.fmax(np.fmin(f32(0) - least / scale, f32(255)), f32(0))
    return scale, int(np.rint(zero_point))


def activation_codes(x, scale, zero_point):
    with np.errstate(all="ignore"):
        return np.clip(np.rint(x / scale) + f32(zero_point), 0, 255)


def linear(x, codes, scale, zero_point, bias):
    """The output, and the same with the last two operations fused."""
    x_scale, x_zero_point = activation_qparams(x)
    lhs = activation_codes(x, x_scale, x_zero_point).astype(np.int64) - x_zero_point
    acc = (lhs @ (codes.astype(np.int64) - zero_point.astype(np.int64).reshape(-1, 1)).T).astype(np.int32).astype(f32)
    factor = x_scale * scale
    product = acc * factor
    if bias is None:
        return product, None, None
    fused = (acc.astype(np.float64) * factor.astype(np.float64) + bias).astype(f32)
    return product + bias, fused, product


def main():
    import fixture  # needs torch

    cases, different, farthest = [], 0, 0.0
    results = {key: [] for key in ("scale", "zero_point", "codes", "output")}
    recipe = lambda seed, kind, exponent, constant: {"kind": kind, "seed": seed, "exponent": exponent, "constant": constant}
    make = lambda shape, r: generator.tensor(shape, r["kind"], r["seed"], r["exponent"], r["constant"])
    for w, (n, k, kind, exponent, constant) in enumerate(WEIGHTS):
        for a in range(24):
            index = len(cases)
            seed = SEED * 10_000 + 10 * index
            case = {
                "n": n, "k": k, "weight": recipe(seed, kind, exponent, constant),
                "weight_type": ("QInt8", "QUInt8")[a % 2], "symmetric": (None, True, False)[a // 2 % 3],
                "per_channel": bool(a // 6 % 2), "reduce_range": bool(a // 12),
                # Biases of the size of the outputs: their sums round.
                "bias": recipe(seed + 1, "normal", exponent + 2, 0) if index % 3 and exponent < 80 else None,
                "inputs": [],
            }
            # Larger inputs than these would overflow with the largest weights.
            for i in range(2):
                x_kind, x_exponent, x_constant = INPUTS[(2 * index + i + w) % len(INPUTS)]
                if k == 1 and x_kind == "affine_ties":
                    x_kind = "normal"
                x_exponent -= 40 if exponent > 80 else 0
                case["inputs"].append({"m": 1 + (index + i) % 3} | recipe(seed + 2 + i, x_kind, x_exponent, x_constant))
            weight = make((n, k), case["weight"])
            bias = case["bias"] and make((n,), case["bias"])
            model = quantize(make_model(np.ascontiguousarray(weight.T), bias), case)
            made = {value.name: numpy_helper.to_array(value) for value in model.graph.initializer}
            codes, scale, zero_point = made["weight_quantized"].T, made["weight_scale"].reshape(-1), made["weight_zero_point"].reshape(-1)
            assert scale.dtype == f32 and scale.size == (n if case["per_channel"] else 1) and np.isfinite(scale).all()
            results["scale"].append(scale)
            results["zero_point"].append(zero_point.astype(np.int32))
            results["codes"].append(np.ascontiguousarray(codes).view(np.uint8).reshape(-1))
            sessions = [session(model), session(model, optimized=False), session(model, threads=2)]
            for of in case["inputs"]:
                x = make((of["m"], k), of)
                outputs = [each.run(None, {"x": x})[0] for each in sessions]
                formula, fused, product = linear(x, codes, scale, zero_point, bias)
                assert np.isfinite(formula).all() and outputs[0].shape == (of["m"], n)
                different += sum(not fixture.same_bits(outputs[0], other) for other in (*outputs[1:], formula))
                if fused is not None:
                    unit = np.maximum(np.spacing(np.abs(product)), np.spacing(np.abs(formula)))
                    farthest = max(farthest, float((np.abs(fused - formula) / unit).max()))
                results["output"].append(outputs[0].reshape(-1))
            cases.append(case)

    activations, quantizer = [], dynamic_quantize_linear()
    kept = {key: [] for key in ("activation_scale", "activation_zero_point", "activation_codes")}
    for index, (count, kind, exponent, constant) in enumerate(ACTIVATIONS):
        each = {"count": count} | recipe(SEED * 10_000 + 9_000 + index, kind, exponent, constant)
        x = make((count,), each)
        codes, scale, zero_point = quantizer.run(None, {"x": x})
        formula = activation_qparams(x)
        same = fixture.same_bits(scale, formula[0]) and int(zero_point) == formula[1]
        if scale > 0:  # otherwise 0 / 0, for which numpy has no code
            same = same and (activation_codes(x, *formula) == codes).all()
        different += not same
        activations.append(each)
        kept["activation_scale"].append([scale])
        kept["activation_zero_point"].append([int(zero_point)])
        kept["activation_codes"].append(codes)
    dtypes = {"scale": f32, "zero_point": np.int32, "codes": np.uint8, "output": f32,
              "activation_scale": f32, "activation_zero_point": np.int32, "activation_codes": np.uint8}
    tensors = {key: np.concatenate(value).astype(dtypes[key]) for key, value in (results | kept).items()}
    fixture.save("onnxruntime_linear", "onnxruntime_linear.py", SEED, tensors, cases=cases, activations=activations, different=str(different),
                 fused=str(farthest), onnxruntime=onnxruntime.__version__, onnx=onnx.__version__)
    print(len(cases), "cases,", len(activations), "activations,", different, "different; fused at most", farthest)


if __name__ == "__main__":
    main()
