"""A folder of Linears of 4 bits, packed, and a float one, by compressed-tensors.

Makes:   pack_quantized/{config.json, model.safetensors, expected.safetensors}
Command: python pack_quantized.py
Pinned:  torch==2.10.0 compressed-tensors==0.20.0 transformers==5.24.0 safetensors==0.8.0, Python 3.11

`up` has symmetric groups of 32, `down` groups of 64 with zero points, `out` a scale per channel and
inputs that fill no whole number. expected.safetensors has `input`, the dequantized weights, and `output`,
the answer of the library with float activations.
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

HERE = Path(__file__).resolve().parent / "pack_quantized"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(96, 128)
        self.down = torch.nn.Linear(128, 37, bias=False)
        self.out = torch.nn.Linear(37, 10)
        self.head = torch.nn.Linear(10, 3)

    def forward(self, xs):
        return self.head(self.out(self.down(torch.relu(self.up(xs)))))


def scheme(target, group_size, symmetric):
    strategy = "group" if group_size else "channel"
    weights = QuantizationArgs(
        num_bits=4, type="int", strategy=strategy, group_size=group_size, symmetric=symmetric
    )
    return QuantizationScheme(targets=[target], weights=weights, format="pack-quantized")


def main():
    torch.manual_seed(0)
    model = Model().eval()
    groups = {
        "group_0": scheme("up", 32, True),
        "group_1": scheme("re:.*down", 64, False),
        "group_2": scheme("out", None, True),
    }
    config = QuantizationConfig(config_groups=groups, ignore=["head"], format="pack-quantized")
    apply_quantization_config(model, config)
    for module in (model.up, model.down, model.out):
        args = module.quantization_scheme.weights
        grouped = module.weight.unflatten(1, (-1, args.group_size or module.weight.shape[1]))
        scale, zero = calculate_qparams(grouped.amin(2), grouped.amax(2), args)
        module.weight_scale.data.copy_(scale)
        if hasattr(module, "weight_zero_point"):
            module.weight_zero_point.data.copy_(zero)
        module.quantization_status = QuantizationStatus.FROZEN
    xs = torch.randn(5, 96)
    expected = {"input": xs, "output": model(xs).detach()}
    compressor = ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    state = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    compressor.decompress_model(model)
    for name in ("up", "down", "out"):
        expected[f"{name}.weight"] = getattr(model, name).weight.detach().contiguous()
    HERE.mkdir(exist_ok=True)
    versions = {"torch": torch.__version__, "compressed_tensors": compressed_tensors.__version__}
    save_file(state, HERE / "model.safetensors", {"format": "pt"})
    save_file(expected, HERE / "expected.safetensors", versions | {"seed": "0"})
    entry = compressor.quantization_config.model_dump(mode="json")
    (HERE / "config.json").write_text(json.dumps({"quantization_config": entry}) + "\n")
    print({name: (str(t.dtype), tuple(t.shape)) for name, t in state.items()})


if __name__ == "__main__":
    main()
