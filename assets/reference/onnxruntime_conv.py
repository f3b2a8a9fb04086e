"""What onnxruntime's own dynamic quantization makes of a Conv, and what the model then computes.

Makes:   onnxruntime_conv.safetensors
Command: python onnxruntime_conv.py
Pinned:  onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6 safetensors==0.8.0, Python 3.11

One JSON array in the metadata, "cases": a weight [out channels, in channels / groups, kernel..] and
perhaps a bias [out channels], recipes of generator.py, the attributes of Conv, the arguments of
onnxruntime.quantization.quantize_dynamic, and the input [batch, in channels, ..]. The results of all
cases lie one after the other:

    output  f32  [batch, out channels, ..]

The weight has one scale, also where per_channel is set. "different" in the metadata counts outputs of which a run without optimizations differs in a bit.
"""

import json
import pathlib

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

import generator
import onnxruntime_linear

SEED = 20_261_129

#   out channels, in channels / groups, kernel, input, groups, stride, padding, dilation
SHAPES = [
    (8, 16, (3,), (1, 16, 20), 1, 1, 1, 1),
    (5, 20, (4,), (2, 20, 31), 1, 2, 2, 2),
    (12, 3, (3, 3), (1, 3, 9, 11), 1, 2, 1, 1),
    (33, 18, (3, 2), (1, 18, 7, 6), 1, 1, 1, 1),
    (24, 17, (1, 1), (2, 17, 5, 5), 1, 1, 0, 1),
    (12, 4, (3,), (1, 12, 15), 3, 1, 1, 1),
    (6, 1, (3, 3), (1, 6, 8, 8), 6, 1, 1, 1),
]


def make_model(weight, bias, case):
    rank = weight.ndim - 2
    each = lambda key: [case[key]] * rank
    node = helper.make_node(
        "Conv", ["x", "weight"] + ["bias"] * (bias is not None), ["y"], name="conv", group=case["groups"],
        strides=each("stride"), dilations=each("dilation"), pads=each("padding") * 2)
    initializers = [numpy_helper.from_array(weight, "weight")]
    if bias is not None:
        initializers.append(numpy_helper.from_array(bias, "bias"))
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * (rank + 2))
    graph = helper.make_graph([node], "conv", [value("x")], [value("y")], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def main():
    cases, outputs, different = [], [], 0
    recipe = lambda seed, kind, exponent: {"kind": kind, "seed": seed, "exponent": exponent, "constant": 0}
    make = lambda shape, r: generator.tensor(shape, r["kind"], r["seed"], r["exponent"], r["constant"])
    for channels, inputs, kernel, shape, groups, stride, padding, dilation in SHAPES:
        for a in range(8):
            seed = SEED * 10_000 + 10 * len(cases)
            case = {
                "shape": [channels, inputs, *kernel], "input": list(shape), "groups": groups, "stride": stride,
                "padding": padding, "dilation": dilation, "weight": recipe(seed, ("normal", "outlier")[a % 2], -18),
                "bias": recipe(seed + 1, "normal", -16) if a % 3 == 0 else None,
                "x": recipe(seed + 2, ("normal", "relu", "negative")[a % 3], -15),
                "weight_type": ("QUInt8", "QInt8")[a // 2 % 2], "symmetric": None,
                "per_channel": bool(a // 4), "reduce_range": False,
            }
            weight = make(case["shape"], case["weight"])
            bias = case["bias"] and make((channels,), case["bias"])
            model = onnxruntime_linear.quantize(make_model(weight, bias, case), case)
            assert any(node.op_type == "ConvInteger" for node in model.graph.node)
            x = make(shape, case["x"])
            runs = [onnxruntime_linear.session(model, optimized).run(None, {"x": x})[0] for optimized in (True, False)]
            different += runs[0].tobytes() != runs[1].tobytes()
            outputs.append(runs[0].reshape(-1))
            cases.append(case)
    metadata = {"cases": json.dumps(cases, separators=(",", ":")), "different": str(different), "onnxruntime": onnxruntime.__version__}
    path = pathlib.Path(__file__).with_suffix(".safetensors")
    save_file({"output": np.concatenate(outputs)}, path, metadata)
    print(len(cases), "cases,", different, "different")


if __name__ == "__main__":
    main()
