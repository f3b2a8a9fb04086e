"""One convolution, the whole call."""

import os
import tempfile

import torch
from onnx import TensorProto, helper, numpy_helper, save

from common import SIZE, Case, as_trained, onnx_call, onnx_quantize, onnx_session, sizes

FORM = "an input, output channels, kernel, stride and padding as in 1x64x56x56 64 k3 s1 p1"

ROWS = [
    # Images: ResNet's blocks and stem.
    "1x64x56x56 64 k3 s1 p1", "1x128x28x28 128 k3 s1 p1", "1x256x14x14 256 k3 s1 p1", "1x512x7x7 512 k3 s1 p1",
    "1x512x28x28 128 k1 s1 p0", "1x3x224x224 64 k7 s2 p3",
    # Signals: wav2vec2, Whisper, EnCodec, a detector of speech.
    "1x512x3200 512 k3 s2 p0", "1x384x3000 384 k3 s2 p1", "1x64x8000 64 k7 s1 p3", "1x128x100 64 k3 s1 p1",
]


def parse(name):
    image = rf"{SIZE}x{SIZE}x{SIZE}x{SIZE}"
    signal = rf"{SIZE}x{SIZE}x{SIZE}"
    shape = image if name.count("x") == 3 else signal
    return sizes(name, rf"{shape} {SIZE} k{SIZE} s{SIZE} p(\d+)", FORM)


class Convolution(Case):
    group = "conv"

    def __init__(self, batch, channels, *rest):
        *spatial, out_channels, kernel, stride, padding = rest
        shape = [batch, channels, *spatial]
        self.name = f"{'x'.join(map(str, shape))} {out_channels} k{kernel} s{stride} p{padding}"
        self.facts = {"group": self.group, "stride": stride, "padding": padding}
        torch.manual_seed(0)
        module = torch.nn.Conv2d if len(spatial) == 2 else torch.nn.Conv1d
        self.float = as_trained(module(channels, out_channels, kernel, stride, padding))
        self.xs = torch.randn(shape)

    @property
    def operations(self):
        weight = self.float.weight
        return 2 * weight[0].numel() * self.expected().numel()

    @property
    def weight_bytes(self):
        return self.float.weight.numel()

    def tensors(self):
        return dict(self.float.state_dict()) | {"xs": self.xs}

    def expected(self):
        return self.float(self.xs)

    def rivals(self):
        calls = {"torch f32": lambda: self.float(self.xs)}
        for name, quantizes in [("onnxruntime f32", False), ("onnxruntime QInt8", True)]:
            calls[name] = self.onnxruntime(quantizes)
        return calls

    def onnxruntime(self, quantizes):
        constants = {"weight": self.float.weight, "bias": self.float.bias}
        padding, stride = (list(getattr(self.float, key)) for key in ("padding", "stride"))
        graph = helper.make_graph(
            [helper.make_node("Conv", ["xs", *constants], ["ys"], pads=2 * padding, strides=stride)],
            "convolution",
            [helper.make_tensor_value_info("xs", TensorProto.FLOAT, list(self.xs.shape))],
            [helper.make_tensor_value_info("ys", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(tensor.detach().numpy(), name) for name, tensor in constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "float.onnx")
            save(model, path)
            if quantizes:
                path, float = os.path.join(folder, "int8.onnx"), path
                onnx_quantize(float, path)
            return onnx_call(onnx_session(path), {"xs": self.xs})


def cases(selected):
    return (Convolution(*case) for case in selected)
