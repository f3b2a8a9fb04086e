"""A folder of two int8 Linears, one with zero points, and a float one, by compressed-tensors.

Makes:   int_quantized/{config.json, model.safetensors, expected.safetensors}
Command: python int_quantized.py
Pinned:  torch==2.10.0 compressed-tensors==0.20.0 transformers==4.57.6 safetensors==0.8.0, Python 3.11

expected.safetensors has `input`, the dequantized weights, and `output`, the answer of the library: its
activations are symmetric per token, where those of this crate are affine.
"""

import json
from pathlib import Path

import compressed_tensors
import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    QuantizationStatus,
    apply_quantization_config,
)
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent / "int_quantized"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(24, 40)
        self.down = torch.nn.Linear(40, 10, bias=False)
        self.head = torch.nn.Linear(10, 3)

    def forward(self, xs):
        return self.head(self.down(torch.relu(self.up(xs))))


def scheme(target, symmetric):
    weights = QuantizationArgs(num_bits=8, type="int", strategy="channel", symmetric=symmetric)
    activations = QuantizationArgs(num_bits=8, type="int", strategy="token", symmetric=True, dynamic=True)
    return QuantizationScheme(targets=[target], weights=weights, input_activations=activations, format="int-quantized")


def main():
    torch.manual_seed(0)
    model = Model().eval()
    groups = {"group_0": scheme("up", True), "group_1": scheme("re:.*down", False)}
    config = QuantizationConfig(config_groups=groups, ignore=["head"], format="int-quantized")
    apply_quantization_config(model, config)
    for module in (model.up, model.down):
        low, high = module.weight.amin(1, keepdim=True), module.weight.amax(1, keepdim=True)
        scale, zero = calculate_qparams(low, high, module.quantization_scheme.weights)
        module.weight_scale.data.copy_(scale)
        if hasattr(module, "weight_zero_point"):
            module.weight_zero_point.data.copy_(zero)
        module.quantization_status = QuantizationStatus.FROZEN
    xs = torch.randn(5, 24)
    expected = {"input": xs, "output": model(xs).detach()}
    compressor = ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    state = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    for name in ("up", "down"):
        zero = state.get(f"{name}.weight_zero_point", torch.zeros(1))
        expected[f"{name}.weight"] = (state[f"{name}.weight"].float() - zero) * state[f"{name}.weight_scale"]
    HERE.mkdir(exist_ok=True)
    versions = {"torch": torch.__version__, "compressed_tensors": compressed_tensors.__version__}
    save_file(state, HERE / "model.safetensors", {"format": "pt"})
    save_file(expected, HERE / "expected.safetensors", versions | {"seed": "0"})
    compressor.update_config(HERE)
    path = HERE / "config.json"
    entry = {"quantization_config": compressor.quantization_config.model_dump(mode="json")}
    config = json.loads(path.read_text()) if path.exists() else entry
    path.write_text(json.dumps(config) + "\n")
    print({name: (str(t.dtype), tuple(t.shape)) for name, t in state.items()})


if __name__ == "__main__":
    main()
