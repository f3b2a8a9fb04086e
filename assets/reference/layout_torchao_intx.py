"""Two Linears by torchao: a weight of 8 bits per channel with int8 activations, one of 4 bits in groups with float ones.

Makes:   layout_torchao_intx/{config.json, model.safetensors, expected.safetensors}
Command: python layout_torchao_intx.py
Pinned:  torch==2.10.0 torchao==0.18.0 transformers==5.24.0 safetensors==0.8.0, Python 3.11
"""

import torch
import torchao
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, IntxWeightOnlyConfig, quantize_
from torchao.quantization.granularity import PerAxis, PerGroup
from transformers import TorchAoConfig

from layouts import float_model, folder, inputs, write


def main():
    model = float_model()
    dynamic = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int8, weight_granularity=PerAxis(0))
    for name, config in [
        ("up", dynamic),
        ("down", IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(8))),
    ]:
        quantize_(model, config, filter_fn=lambda _, path, name=name: path == name)
    state, metadata = flatten_tensor_state_dict(model.state_dict())
    with torch.no_grad():
        expected = {"input": inputs(), "output": model(inputs())}
    for name in ("up", "down"):
        expected[f"{name}.weight"] = getattr(model, name).weight.dequantize()
    config = TorchAoConfig(dynamic).to_dict()
    write(folder(__file__), state, metadata, expected, {"torchao": torchao.__version__}, config)


if __name__ == "__main__":
    main()
