"""OpenVINO: its default, which is bf16 where the CPU has AMX; f32; and int8 by nncf.

nncf's int8 is static: ranges of activations are known before the call, from the very input that is
timed, which is less work than to find them in each call.
"""

# /// script
# dependencies = ["openvino==2026.4.1", "nncf==3.4.0"]
# ///

import os
from functools import lru_cache

import nncf
import numpy as np
import openvino as ov
from openvino import opset13 as opset

import machine

nncf.set_log_level("ERROR")

CORE = ov.Core()
OPTIONS = {
    "PERFORMANCE_HINT": "LATENCY",
    "NUM_STREAMS": 1,
    "INFERENCE_NUM_THREADS": int(os.environ["OMP_NUM_THREADS"]),
}


def linear(case, tensors):
    xs = tensors["xs"]
    model = layer(tensors, xs.shape)
    return {name: call(model, [xs]) for name, model in compiled(model, [xs]).items()}


def conv(case, tensors):
    xs = tensors["xs"]
    padding, stride, ones = ([number] * (xs.ndim - 2) for number in (case["padding"], case["stride"], 1))
    image, weight = opset.parameter(xs.shape, np.float32), opset.constant(tensors["weight"])
    products = opset.convolution(image, weight, stride, padding, padding, ones)
    bias = opset.constant(tensors["bias"].reshape(1, -1, *ones))
    model = ov.Model([opset.add(products, bias)], [image])
    return {name: call(model, [xs]) for name, model in compiled(model, [xs]).items()}


def layer(tensors, shape):
    """A model of the layer, for inputs of that shape."""
    rows = opset.parameter(shape, np.float32)
    product = opset.matmul(rows, opset.constant(tensors["weight"]), False, True)
    return ov.Model([opset.add(product, opset.constant(tensors["bias"]))], [rows])


def int4(case, tensors):
    """Activations have 8 bits in the same groups."""
    xs = tensors["xs"]
    model = layer(tensors, [-1, xs.shape[1]])
    # Without `all_layers` the last product keeps 8 bits.
    options = {"group_size": 32, "all_layers": True}
    model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT4_SYM, **options)
    model = CORE.compile_model(model, "CPU", OPTIONS | {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "32"})
    return {"openvino int4": call(model, [xs])}


def bert(case, tensors):
    ids = tensors["ids"]
    return {name: call(model, encoder_inputs(ids)) for name, model in encoders(case["folder"]).items()}


def encoder_inputs(ids):
    return [ids, np.ones_like(ids), np.zeros_like(ids)]


# One at a time: an encoder of each kind takes a gigabyte.
@lru_cache(1)
def encoders(folder):
    """An encoder for inputs of all sizes."""
    ids = np.random.default_rng(0).integers(0, 30_000, (4, 128))
    return compiled(CORE.read_model(os.path.join(folder, "plain.onnx")), encoder_inputs(ids))


def compiled(model, inputs):
    """The forms of a model; int8 is calibrated with these inputs."""
    examples = nncf.Dataset([inputs if len(inputs) > 1 else inputs[0]])
    # Its more accurate modes take minutes, and make no call faster.
    off = nncf.AdvancedSmoothQuantParameters(matmul=-1, convolution=-1)
    fast = nncf.AdvancedQuantizationParameters(disable_bias_correction=True, smooth_quant_alphas=off)
    if machine.saturates():
        # All weights of 7 bits; by default those of the first layer.
        fast.overflow_fix = nncf.OverflowFix.ENABLE
    int8 = nncf.quantize(model, examples, subset_size=1, model_type=nncf.ModelType.TRANSFORMER, advanced_parameters=fast)
    f32 = OPTIONS | {"INFERENCE_PRECISION_HINT": "f32"}
    return {
        "openvino/default": CORE.compile_model(model, "CPU", OPTIONS),
        "openvino/f32": CORE.compile_model(model, "CPU", f32),
        "openvino/int8": CORE.compile_model(int8, "CPU", OPTIONS),
    }


def call(model, inputs):
    request = model.create_infer_request()
    for index, array in enumerate(inputs):
        request.set_input_tensor(index, ov.Tensor(array, shared_memory=True))

    def run():
        # The request reads `inputs` where they are, and does not keep them.
        return inputs and request.infer(share_outputs=True)[0]

    return run
