"""zentorch: torchao's dynamic int8, per row and per channel, compiled for AMD's EPYC."""

# /// script
# dependencies = ["zentorch==2.14.0.1", "torch==2.14.1", "torchao==0.18.0"]
# [tool.peers]
# vendor_id = "AuthenticAMD"
# flags = "avx512f"
# ///

import os
from functools import lru_cache

import torch
import zentorch  # registers the backend
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
from torchao.quantization.quant_primitives import MappingType
from transformers import BertModel

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
torch.set_grad_enabled(False)
# Beyond it a case would not be compiled: each has sizes of its own.
torch._dynamo.config.recompile_limit = 64


def compiled(module):
    config = Int8DynamicActivationInt8WeightConfig(version=2, act_mapping_type=MappingType.SYMMETRIC)
    quantize_(module, config)
    return torch.compile(module, backend=zentorch.__name__)


def linear(case, tensors):
    xs, weight, bias = (torch.from_numpy(tensors[name]) for name in ("xs", "weight", "bias"))
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
    layer.load_state_dict({"weight": weight, "bias": bias})
    module = compiled(torch.nn.Sequential(layer).eval())
    return {"zentorch int8": lambda: module(xs).numpy()}


def bert(case, tensors):
    model, ids = encoder(case["folder"]), torch.from_numpy(tensors["ids"])
    return {"zentorch int8": lambda: model(ids)[0].numpy()}


@lru_cache(1)
def encoder(folder):
    return compiled(BertModel.from_pretrained(folder, add_pooling_layer=False).eval())
