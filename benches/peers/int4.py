"""One Linear layer with weights of 4 bits in groups of 32 inputs, the whole call."""

import numpy as np
import torch
from onnx import TensorProto, helper, numpy_helper

from common import SIZE, Case, onnx_call, onnx_session, sizes
from linear import FORM, Linear

ROWS = [
    "1,768,768", "1,768,3072", "1,2048,2048", "1,4096,4096", "1,2048,11264",
    "8,768,3072", "8,4096,4096", "128,768,3072", "128,3072,768", "1024,768,3072",
]

GROUP = 32


def parse(name):
    m, k, n = sizes(name, f"{SIZE},{SIZE},{SIZE}", FORM)
    if k % GROUP:
        raise ValueError(f"expected a multiple of {GROUP} inputs, got {name!r}")
    return m, k, n


class Int4(Linear):
    group = "int4"
    int8_decibels = 15

    def __init__(self, m, k, n):
        super().__init__(m, k, n)
        self.facts = {"group": "int4"}

    @property
    def weight_bytes(self):
        """4 bits, and a scale of two bytes for each group."""
        return self.k * self.n * 18 // 32

    def check(self, outputs):
        Case.check(self, outputs)

    def rivals(self):
        return {"onnxruntime int4": self.onnxruntime()}

    def onnxruntime(self):
        """MatMulNBits with activations of 8 bits (`accuracy_level` 4); the lowest code is a group's largest weight."""
        blocks = self.float.weight.detach().view(self.n, -1, GROUP)
        largest = blocks.gather(2, blocks.abs().argmax(2, keepdim=True))
        scales = largest / -8
        codes = (blocks / scales).round().add(8).clamp(0, 15).to(torch.uint8).numpy()
        constants = {
            "codes": codes[..., ::2] | codes[..., 1::2] << 4,
            "scales": scales.flatten().numpy(),
            "bias": self.float.bias.detach().numpy(),
        }
        sizes = {"K": self.k, "N": self.n, "bits": 4, "block_size": GROUP, "accuracy_level": 4}
        inputs = ["xs", "codes", "scales", "", "", "bias"]
        graph = helper.make_graph(
            [helper.make_node("MatMulNBits", inputs, ["ys"], domain="com.microsoft", **sizes)],
            "int4",
            [helper.make_tensor_value_info("xs", TensorProto.FLOAT, ["m", self.k])],
            [helper.make_tensor_value_info("ys", TensorProto.FLOAT, ["m", self.n])],
            [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in constants.items()],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        return onnx_call(onnx_session(model.SerializeToString()), {"xs": self.xs})


def cases(selected):
    return (Int4(*case) for case in selected)
