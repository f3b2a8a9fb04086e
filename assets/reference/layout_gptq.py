"""Three Linears of 4 bits by GPTQModel, in both versions of its format: v1 stores zero points less 1.

Makes:   {layout_gptq, layout_gptq_v2}/{config.json, model.safetensors, expected.safetensors}
Command: python layout_gptq.py
Pinned:  torch==2.10.0 gptqmodel==7.7.0 (--no-deps) transformers==5.24.0 safetensors==0.8.0, Python 3.11
"""

import gptqmodel
import torch
from gptqmodel import QuantizeConfig
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

from layouts import Wide, folder, qparams, wide_inputs, wide_model, write

TENSORS = ["qweight", "qzeros", "scales", "g_idx", "bias"]


def quantized(linear, group_size, symmetric):
    n, k = linear.weight.shape
    module = TorchLinear(4, group_size, symmetric, False, k, n, bias=linear.bias is not None)
    scales, zeros = qparams(linear.weight, group_size, symmetric)
    module.pack_original(linear, scales, zeros, torch.arange(k, dtype=torch.int32) // group_size)
    module.post_init()
    return module.eval()


def main():
    for name, version in [("layout_gptq", "gptq"), ("layout_gptq_v2", "gptq_v2")]:
        # That of `down` is for a regex.
        dynamic = {r"+:^down$": {"group_size": 64, "sym": False}, r"+:^out$": {"group_size": -1}}
        config = QuantizeConfig(bits=4, group_size=32, desc_act=False, format=version, dynamic=dynamic)
        model = wide_model()
        weights = {}
        for own, (group_size, symmetric) in Wide.GROUPS.items():
            module = quantized(getattr(model, own), group_size, symmetric)
            weights[f"{own}.weight"] = module.dequantize_weight().T
            setattr(model, own, module)
        with torch.no_grad():
            expected = {"input": wide_inputs(), "output": model(wide_inputs().half())} | weights
        state = {f"head.{key}": value for key, value in model.head.state_dict().items()}
        for own in Wide.GROUPS:
            module = getattr(model, own)
            if version == "gptq":
                convert_gptq_v2_to_v1_format_module(module, config)
            tensors = {key: getattr(module, key) for key in TENSORS}
            state |= {f"{own}.{key}": value for key, value in tensors.items() if value is not None}
        entry = {key: value for key, value in config.to_dict().items() if key != "meta"}
        target = folder(__file__).with_name(name)
        write(target, state, {}, expected, {"gptqmodel": gptqmodel.__version__}, entry)


if __name__ == "__main__":
    main()
