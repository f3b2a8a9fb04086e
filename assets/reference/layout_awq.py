"""Three Linears of 4 bits by AutoAWQ.

Makes:   layout_awq/{config.json, model.safetensors, expected.safetensors}
Command: python layout_awq.py
Pinned:  torch==2.10.0 autoawq==0.2.9 (--no-deps) transformers==5.24.0 safetensors==0.8.0, Python 3.11

Only the module of the layer is imported: the package asks for an older transformers.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch

from layouts import Wide, folder, qparams, wide_inputs, wide_model, write


def layer():
    root = Path(importlib.util.find_spec("awq").submodule_search_locations[0])
    for name in ["awq", "awq.modules", "awq.modules.linear"]:
        package = ModuleType(name)
        package.__path__ = [str(root.parent.joinpath(*name.split(".")))]
        sys.modules[name] = package
    gemm = importlib.import_module("awq.modules.linear.gemm")
    # Its kernels are for GPUs.
    gemm.TRITON_AVAILABLE = False
    return gemm


def main():
    gemm = layer()
    model = wide_model()
    weights = {}
    for own, (group_size, symmetric) in Wide.GROUPS.items():
        linear = getattr(model, own)
        scales, zeros = qparams(linear.weight, group_size, symmetric)
        transposed = {"scales": scales.T.contiguous(), "zeros": zeros.T.contiguous()}
        module = gemm.WQLinear_GEMM.from_linear(linear, 4, group_size, **transposed)
        weight = gemm.dequantize_gemm(module.qweight, module.qzeros, module.scales, 4, group_size)
        weights[f"{own}.weight"] = weight.T
        setattr(model, own, module)
    with torch.no_grad():
        expected = {"input": wide_inputs(), "output": model(wide_inputs())} | weights
    config = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
    config["modules_to_not_convert"] = ["head"]
    write(folder(__file__), model.state_dict(), {}, expected, {"autoawq": "0.2.9"}, config)


if __name__ == "__main__":
    main()
