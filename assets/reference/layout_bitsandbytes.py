"""Two Linears by bitsandbytes' LLM.int8().

Makes:   layout_bitsandbytes/{config.json, model.safetensors, expected.safetensors}
Command: python layout_bitsandbytes.py
Pinned:  torch==2.9.1 bitsandbytes==0.50.2 transformers==4.57.6 safetensors==0.8.0, Python 3.11

`output` is with threshold 6, as in config.json; `output_int8` with 0, where all products are int8.
"""

import bitsandbytes
import torch
from bitsandbytes.functional import int8_vectorwise_dequant
from bitsandbytes.nn import Int8Params, Linear8bitLt
from transformers import BitsAndBytesConfig

from layouts import float_model, folder, inputs, write


def quantized(threshold):
    model = float_model()
    for name in ("up", "down"):
        linear = getattr(model, name)
        bias = linear.bias is not None
        own = Linear8bitLt(linear.in_features, linear.out_features, bias, has_fp16_weights=False, threshold=threshold)
        own.weight = Int8Params(linear.weight.data, requires_grad=False, has_fp16_weights=False)
        if bias:
            own.bias.data.copy_(linear.bias.data)
        setattr(model, name, own.to("cpu"))
    return model.eval()


def main():
    model = quantized(6.0)
    state = model.state_dict()
    xs = inputs()
    # A feature beyond the threshold.
    xs[:, 7] *= 12
    with torch.no_grad():
        expected = {"input": xs, "output": model(xs), "output_int8": quantized(0.0)(xs)}
    for name in ("up", "down"):
        expected[f"{name}.weight"] = int8_vectorwise_dequant(state[f"{name}.weight"], state[f"{name}.SCB"])
    config = BitsAndBytesConfig(load_in_8bit=True).to_dict()
    write(folder(__file__), state, {}, expected, {"bitsandbytes": bitsandbytes.__version__}, config)


if __name__ == "__main__":
    main()
