"""One Linear layer, the whole call."""

import os
import tempfile

import torch
from onnx import TensorProto, helper, numpy_helper, save

from common import SIZE, Case, as_trained, onnx_call, onnx_quantize, onnx_session, quantized, sizes

FORM = "m,k,n as in 128,768,3072"

ROWS = [
    "1,768,768", "1,768,3072", "1,4096,4096", "8,768,3072",
    "128,768,768", "128,768,3072", "128,3072,768", "1024,768,3072",
    # No multiples of anyone's tile.
    "1,1031,1031", "128,100,100", "128,257,1031", "128,1031,257",
]

# Of the plot, from bytes to multiply-adds.
SWEEP = [(2**power, 768, 3072) for power in range(13)]


def parse(name):
    return sizes(name, f"{SIZE},{SIZE},{SIZE}", FORM)


class Linear(Case):
    group = "linear"

    def __init__(self, m, k, n):
        self.name = f"{m},{k},{n}"
        self.m, self.k, self.n = m, k, n
        self.facts = {"group": "linear"}
        torch.manual_seed(0)
        self.float = as_trained(torch.nn.Linear(k, n))
        self.xs = torch.randn(m, k)

    @property
    def operations(self):
        return 2 * self.m * self.k * self.n

    @property
    def weight_bytes(self):
        return self.k * self.n

    def tensors(self):
        return dict(self.float.state_dict()) | {"xs": self.xs}

    def expected(self):
        return self.float(self.xs)

    def check(self, outputs):
        super().check(outputs)
        if not torch.equal(outputs["default"], outputs["torch int8/x86"]):
            raise SystemExit(f"{self.name}: our default() and torch's differ in bits")

    def rivals(self):
        calls = {"onnxruntime QInt8": self.onnxruntime()}
        for engine in ("x86", "onednn"):
            module = quantized(self.float, engine)
            calls[f"torch int8/{engine}"] = lambda module=module: module(self.xs)
        return calls

    def onnxruntime(self):
        constants = {"weight": self.float.weight.T.contiguous(), "bias": self.float.bias}
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["xs", "weight"], ["product"]),
             helper.make_node("Add", ["product", "bias"], ["ys"])],
            "linear",
            [helper.make_tensor_value_info("xs", TensorProto.FLOAT, ["m", self.k])],
            [helper.make_tensor_value_info("ys", TensorProto.FLOAT, ["m", self.n])],
            [numpy_helper.from_array(tensor.detach().numpy(), name) for name, tensor in constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        with tempfile.TemporaryDirectory() as folder:
            float, int8 = os.path.join(folder, "float.onnx"), os.path.join(folder, "int8.onnx")
            save(model, float)
            onnx_quantize(float, int8)
            return onnx_call(onnx_session(int8), {"xs": self.xs})


class Sweep(Linear):
    group = "sweep"


def cases(selected):
    return (Linear(*case) for case in selected)


def sweep():
    return (Sweep(*case) for case in SWEEP)
