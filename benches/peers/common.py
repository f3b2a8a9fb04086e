"""Helpers that the groups of cases share."""

import logging
import re
import sys
import warnings

import onnxruntime
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic

import machine

warnings.filterwarnings("ignore", category=DeprecationWarning)
warnings.filterwarnings("ignore", category=UserWarning)
warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)
# ONNX Runtime's quantizer and optimizer log every step on the root logger.
logging.disable(logging.WARNING)


class Case:
    """Weights and inputs that every contender gets, and the expected output.

    A subclass has `group`, `name`, `facts` (what our side needs to know), `tensors`, `expected`
    and `rivals`: the contenders of this process, as calls that return a tensor. Names that
    differ after a slash only are variants of one contender; the fastest counts.
    """

    # Decibels between an output and the float one.
    float_decibels, int8_decibels = 80, 25

    def check(self, outputs):
        expected = self.expected()
        for name, got in outputs.items():
            # Our output with PyTorch's preset, and in float.
            if name == "default":
                continue
            exact = name == "float" or "f32" in name
            agree(f"{self.group} {self.name}", name, got, expected, self.float_decibels if exact else self.int8_decibels)


SIZE = r"([1-9]\d{0,6})"


def sizes(name, pattern, form):
    """The matches of the groups of `pattern` in the name of a case, with sizes as numbers."""
    found = re.fullmatch(pattern, name)
    if not found:
        raise ValueError(f"expected {form}, got {name!r}")
    return tuple(int(part) if part.isdigit() else part for part in found.groups())


def as_trained(module):
    """The module with weights of a normal distribution, which those of trained networks resemble, of the deviation of
    torch's uniform ones: of codes of uniform weights, more need 16 bits on AVX2."""
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() > 1:
                weight.normal_(std=weight.std().item())
    return module.eval()


def quantized(module, engine="x86"):
    """The module dynamically quantized by torch; wrapped, because torch never swaps the root.

    The engine packs the weights, and packed weights keep their engine.
    """
    torch.backends.quantized.engine = engine
    return torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(module))[0]


def onnx_quantize(float, int8, **options):
    """Quantizes a file to another, weights to 7 bits where its documentation asks for that."""
    quantize_dynamic(float, int8, weight_type=QuantType.QInt8, reduce_range=machine.saturates(), **options)


def onnx_session(model):
    """A session for a model in a file or in bytes, with the number of threads of torch."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def onnx_call(session, inputs):
    """A call of the session, from tensors by name to its first output."""
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    return lambda: torch.from_numpy(session.run(None, arrays)[0])


def sqnr(expected, got):
    noise = (expected - got).square().sum()
    return (10 * torch.log10(expected.square().sum() / noise)).item()


def agree(name, what, got, expected, decibels):
    """Ends the run if the SQNR of `got` against `expected` is below `decibels`."""
    if got.shape != expected.shape:
        sys.exit(f"{name}: {what}: expected shape {list(expected.shape)}, got {list(got.shape)}")
    value = sqnr(expected, got)
    if not value >= decibels:
        sys.exit(f"{name}: {what} disagrees: expected at least {decibels} dB, got {value:.1f}")
