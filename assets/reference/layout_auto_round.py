"""Three Linears by AutoRound: of 4 bits as GPTQ has them, with zero points less 1 and as they are, and of 8 bits.

Makes:   {layout_auto_round, layout_auto_round_v2, layout_auto_round_8}/{config.json, model.safetensors,
         expected.safetensors}
Command: python layout_auto_round.py
Pinned:  torch==2.15.0 auto-round==0.16.1 (--no-deps) transformers==5.24.0 safetensors==0.8.0, Python 3.11

Only the modules of the layers are imported: the package asks for many others. The entries of `config.json` are those
of its function `save_quantized_as_autoround`.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch

from layouts import Wide, folder, qparams, wide_inputs, wide_model, write

LAYOUTS = {
    "layout_auto_round": ("qlinear_torch_zp", "auto_round:auto_gptq", 4),
    "layout_auto_round_v2": ("qlinear_torch", "auto_round", 4),
    "layout_auto_round_8": ("qlinear_torch_zp", "auto_round:auto_gptq", 8),
}


def layers():
    root = Path(importlib.util.find_spec("auto_round").submodule_search_locations[0]).parent
    for name in ["auto_round", "auto_round.utils", "auto_round_extension", "auto_round_extension.torch"]:
        package = ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[name] = package
    sys.modules["auto_round.utils"].get_packing_device = lambda device: torch.device("cpu")


def main():
    layers()
    for name, (module, packing_format, bits) in LAYOUTS.items():
        layer = importlib.import_module(f"auto_round_extension.torch.{module}").QuantLinear
        model = wide_model()
        weights = {}
        for own, (group_size, symmetric) in Wide.GROUPS.items():
            linear = getattr(model, own)
            n, k = linear.weight.shape
            scales, zeros = qparams(linear.weight, group_size, symmetric, bits)
            packed = layer(bits, group_size, k, n, bias=linear.bias is not None)
            packed.device = "cpu"
            packed.pack(linear, scales, int(zeros[0, 0]) if symmetric else zeros)
            with torch.no_grad():
                bias, packed.bias = packed.bias, None
                weights[f"{own}.weight"] = packed(torch.eye(k).half()).T
                packed.bias = bias
            setattr(model, own, packed)
        with torch.no_grad():
            expected = {"input": wide_inputs(), "output": model(wide_inputs().half())} | weights
        config = {
            "quant_method": "auto-round",
            "packing_format": packing_format,
            "bits": bits,
            "group_size": 32,
            "sym": True,
            "data_type": "int",
            "iters": 0,
            "block_name_to_quantize": "model.layers",
            "autoround_version": "0.16.1",
            "extra_config": {"down": {"group_size": 64, "sym": False}, "out": {"group_size": 64}},
        }
        target = folder(__file__).with_name(name)
        write(target, model.state_dict(), {}, expected, {"auto_round": "0.16.1"}, config)


if __name__ == "__main__":
    main()
