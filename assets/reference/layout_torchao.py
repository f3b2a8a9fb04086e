"""Two Linears by torchao: int8 weights, one with int8 activations per row, one with float ones.

Makes:   layout_torchao/{config.json, model.safetensors, expected.safetensors}
Command: python layout_torchao.py
Pinned:  torch==2.9.1 torchao==0.17.0 transformers==4.57.6 safetensors==0.8.0, Python 3.11
"""

import torch
import torchao
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_
from transformers import TorchAoConfig

from layouts import float_model, folder, inputs, write


def main():
    model = float_model()
    for name, config in [
        ("up", Int8DynamicActivationInt8WeightConfig(version=2)),
        ("down", Int8WeightOnlyConfig(version=2)),
    ]:
        quantize_(model, config, filter_fn=lambda _, path, name=name: path == name)
    state, metadata = flatten_tensor_state_dict(model.state_dict())
    with torch.no_grad():
        expected = {"input": inputs(), "output": model(inputs())}
    for name in ("up", "down"):
        expected[f"{name}.weight"] = getattr(model, name).weight.dequantize()
    config = TorchAoConfig(Int8DynamicActivationInt8WeightConfig(version=2)).to_dict()
    write(folder(__file__), state, metadata, expected, {"torchao": torchao.__version__}, config)


if __name__ == "__main__":
    main()
