"""Linears by torchao with weights of 4 bits in groups and int8 activations per token, its `8da4w`.

Makes:   layout_torchao_int4/{config.json, model.safetensors, expected.safetensors}
Command: python layout_torchao_int4.py
Pinned:  torch==2.9.1 torchao==0.15.0 transformers==4.57.6 safetensors==0.8.0, Python 3.11

`up` has groups of 32 inputs, `down` and `out` of 64. `expected` has the input, the output of each
Linear, `<name>.output`, and each weight dequantized.
"""

import torch
import torchao
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
from torchao.quantization.granularity import PerGroup
from transformers import TorchAoConfig

from layouts import Wide, folder, wide_inputs, wide_model, write


def main():
    model, tensors = wide_model(), {}
    for name, (size, _) in Wide.GROUPS.items():
        config = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(size))
        quantize_(model, config, filter_fn=lambda _, path, name=name: path == name)
        keep = lambda _, xs, ys, name=name: tensors.update({f"{name}.output": ys})
        getattr(model, name).register_forward_hook(keep)
    with torch.no_grad():
        tensors |= {"input": wide_inputs(), "output": model(wide_inputs())}
    for name in Wide.GROUPS:
        tensors[f"{name}.weight"] = getattr(model, name).weight.dequantize()
    state, metadata = flatten_tensor_state_dict(model.state_dict())
    config = TorchAoConfig(config).to_dict()
    write(folder(__file__), state, metadata, tensors, {"torchao": torchao.__version__}, config)


if __name__ == "__main__":
    main()
