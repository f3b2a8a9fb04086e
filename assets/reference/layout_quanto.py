"""Two Linears with qint8 weights by optimum-quanto.

Makes:   layout_quanto/{config.json, model.safetensors, expected.safetensors}
Command: python layout_quanto.py
Pinned:  torch==2.9.1 optimum-quanto==0.2.7 transformers==4.57.6 safetensors==0.8.0, Python 3.11
"""

from importlib.metadata import version

import torch
from optimum.quanto import freeze, qint8, quantize
from transformers import QuantoConfig

from layouts import float_model, folder, inputs, write


def main():
    model = float_model()
    quantize(model, weights=qint8, exclude="head")
    freeze(model)
    state = model.state_dict()
    with torch.no_grad():
        expected = {"input": inputs(), "output": model(inputs())}
    for name in ("up", "down"):
        expected[f"{name}.weight"] = getattr(model, name).weight.dequantize()
    config = QuantoConfig(weights="int8").to_dict()
    write(folder(__file__), state, {}, expected, {"optimum-quanto": version("optimum-quanto")}, config)


if __name__ == "__main__":
    main()
