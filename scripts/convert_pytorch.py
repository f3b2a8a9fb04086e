#!/usr/bin/env python3
"""Converts the `state_dict` of a PyTorch model, float or quantized, to a safetensors file for `Checkpoint::open`.

    pip install torch==2.9.1 numpy==2.4.6 safetensors==0.8.0
    scripts/convert_pytorch.py model.pt model.safetensors [--bidirectional NAME ..] [--key KEY]

model.pt is what `torch.save(model.state_dict(), "model.pt")` writes, of a float model or after
torch.ao.quantization.quantize_dynamic: Linear, LSTM, GRU and cells in qint8 or float16, Embedding in quint8, and
layers that are float. It is a pickle, which can run code when it is loaded: convert files that you trust. The device
on which it was saved does not matter.

What training scripts save beside the weights is left out: the weights are looked for as `state_dict`, `model_state`
and the like, and --key names another place, such as ema.model. `module.`, with which DistributedDataParallel begins
all names, is removed.

Codes, scales and zero points are copied, so the model answers as in PyTorch. Tensors have the names of the float
model. A recurrent layer of two equal weights may have two layers or two directions; --bidirectional says the latter.
"""

import argparse
import json
import re

import torch
from safetensors.torch import save_file

SCHEMES = {
    torch.per_tensor_affine: "per_tensor",
    torch.per_channel_affine: "per_channel",
    torch.per_channel_affine_float_qparams: "per_channel_affine_float_qparams",
}


class Converted:
    def __init__(self):
        self.tensors, self.formats, self.weights = {}, [], {}
        self.storages = set()

    def float(self, name, tensor):
        tensor = tensor.detach().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        # Tied weights: safetensors takes each tensor in memory of its own.
        self.tensors[name] = tensor.clone() if storage in self.storages else tensor
        self.storages.add(storage)

    def weight(self, name, weight, activation):
        """A qint8 or quint8 weight, or a float16 one, which PyTorch stores as float32."""
        if not weight.is_quantized:
            self.float(name, weight.half())
            return self.format(name, {"activation": "float"})
        dtype = {torch.qint8: "qint8", torch.quint8: "quint8"}[weight.dtype]
        offset = 128 if dtype == "quint8" else 0
        scheme = SCHEMES[weight.qscheme()]
        if scheme == "per_tensor":
            scales, zeros = torch.tensor([weight.q_scale()]), torch.tensor([weight.q_zero_point()])
        else:
            if weight.q_per_channel_axis() != 0:
                raise SystemExit(f"{name}: expected scales of rows, got axis {weight.q_per_channel_axis()}")
            scales, zeros = weight.q_per_channel_scales()[:, None], weight.q_per_channel_zero_points()[:, None]
        self.float(name, (weight.int_repr().int() - offset).to(torch.int8))
        self.float(f"{name}_scale", scales.float())
        if scheme == "per_channel_affine_float_qparams":
            self.float(f"{name}_zero_point", zeros.float() - offset)
            self.float(f"{name}_zero_point_unsigned", zeros.float())
        elif zeros.any():
            self.float(f"{name}_zero_point", (zeros - offset).to(torch.int8))
            scheme += "_affine"
        else:
            scheme += "_symmetric"
        codes = {"codes": {"dtype": dtype, "qscheme": scheme}}
        self.format(name, codes | ({"activation": activation} if activation else {}))

    def format(self, name, format):
        if format not in self.formats:
            self.formats.append(format)
        self.weights[name] = self.formats.index(format)

    def layer(self, prefix, suffix, packed, activation):
        """The packed weight and bias of a product."""
        weight, bias = packed.__getstate__()[0] if isinstance(packed, torch.ScriptObject) else packed
        self.weight(f"{prefix}weight{suffix}", weight, activation)
        if bias is not None:
            self.float(f"{prefix}bias{suffix}", bias)

    def save(self, path):
        record = {"version": 1, "formats": self.formats, "weights": self.weights}
        save_file(self.tensors, path, {"format": "pt", "candle_dynquant": json.dumps(record)})


def per_tensor(reduce_range):
    return {"granularity": "per_tensor", "reduce_range": reduce_range, "arithmetic": "pytorch"}


def directions(module, cells, bidirectional):
    """1 or 2, by the sizes of inputs: those of the second layer are the outputs of the first."""
    if module in bidirectional:
        return 2
    if len(cells) % 2:
        return 1
    sizes = [pair[0].size(1) for pair in cells]
    hidden = cells[0][1].size(1)
    if len(cells) > 2:
        return 2 if sizes[2] == 2 * hidden else 1
    if sizes[0] == sizes[1] == hidden:
        print(f"{module}: taken for two layers; --bidirectional {module} says that it has two directions")
    return 1 if sizes[1] == hidden else 2


def recurrent(module, cells, bidirectional, to):
    prefix = f"{module}." if module else ""
    weights = [[packed.__getstate__()[0][0] for packed in state[4]] for state in cells]
    both = directions(module, weights, bidirectional)
    for i, (kind, biases, _, reduce_range, packed) in enumerate(cells):
        suffix = f"_l{i // both}" + ("_reverse" if i % both else "")
        activation = per_tensor(bool(reduce_range[0])) if kind == "quantized_dynamic" else None
        for part, own in zip(["ih", "hh"], packed):
            weight, bias = own.__getstate__()[0]
            to.weight(f"{prefix}weight_{part}{suffix}", weight, activation)
            if bias is not None:
                to.float(f"{prefix}bias_{part}{suffix}", bias)


def convert(state, bidirectional=()):
    to, layers = Converted(), {}
    for key, value in state.items():
        module = lambda pattern: (match := re.fullmatch(rf"(?:(.+)\.)?{pattern}", key)) and match.groups(default="")
        if found := module(r"_packed_params\._packed_(params|weight)"):
            prefix = f"{found[0]}." if found[0] else ""
            if found[1] == "weight":
                to.weight(f"{prefix}weight", value, None)
            else:
                to.layer(prefix, "", value, per_tensor(True))
        elif found := module(r"_all_weight_values\.(\d+)\.param"):
            layers.setdefault(found[0], {})[int(found[1])] = value.__getstate__()[0]
        elif found := module("_packed_weight_(ih|hh)"):
            to.layer(f"{found[0]}." if found[0] else "", f"_{found[1]}", value, per_tensor(True))
        elif found := module(r"(scale|zero_point|_packed_params\.dtype|bias_ih|bias_hh)"):
            # Of a quantized layer these say nothing.
            prefix = f"{found[0]}." if found[0] else ""
            own = [f"{prefix}_packed_params.dtype", f"{prefix}_packed_weight_ih"]
            if not any(name in state for name in own):
                to.float(key, value)
        elif isinstance(value, torch.Tensor) and value.is_quantized:
            to.weight(key, value, None)
        elif isinstance(value, torch.Tensor):
            # torchao's and other kinds of tensors that are no plain ones.
            is_plain = type(value) in (torch.Tensor, torch.nn.Parameter)
            to.float(key, value if is_plain or not hasattr(value, "dequantize") else value.dequantize())
        elif isinstance(value, torch.ScriptObject):
            raise SystemExit(f"{key}: expected a tensor or a packed weight of a Linear, LSTM, GRU or cell, got another packed object")
        else:
            # A module's own notes, such as `_extra_state`: no reader of tensors asks for them.
            print(f"{key}: left out, a {type(value).__name__} is no tensor")
    for module, cells in layers.items():
        recurrent(module, [cells[i] for i in sorted(cells)], bidirectional, to)
    return to


# Where training scripts save the weights, beside an optimizer and the like; the likeliest first.
KEYS = ["state_dict", "model_state_dict", "model_state", "model", "module", "net", "network", "weights", "params"]
# Of wrappers around a whole model.
PREFIXES = ["module.", "_orig_mod."]


def is_state(value):
    """Whether it has tensors by their names, and nothing that may have others."""
    if not isinstance(value, dict) or any(isinstance(own, (dict, torch.nn.Module)) for own in value.values()):
        return False
    return any(isinstance(own, (torch.Tensor, torch.ScriptObject)) for own in value.values())


def described(value):
    if not isinstance(value, dict):
        return f"a {type(value).__name__}"
    keys = [str(key) for key in value][:10]
    return f"a dict of {', '.join(keys)}{', ..' if len(value) > 10 else ''}" if keys else "an empty dict"


def state_dict(loaded, key=None):
    """The weights in what was loaded, by their names in the model."""
    where = []
    wanted = key.split(".") if key else []
    while wanted or not is_state(loaded):
        if isinstance(loaded, torch.nn.Module):
            loaded = loaded.state_dict()
            continue
        found = [own for own in wanted[:1] or KEYS if isinstance(loaded, dict) and own in loaded]
        if not found:
            expected = wanted[0] if wanted else f"tensors, or one of {', '.join(KEYS)}"
            place = ".".join(where) or "the file"
            raise SystemExit(f"{place}: expected {expected}, got {described(loaded)}; --key names the place of the weights")
        wanted = wanted[1:]
        loaded = loaded[found[0]]
        where.append(found[0])
    if where:
        print(f"weights of {'.'.join(where)}")
    while prefix := next((own for own in PREFIXES if all(name.startswith(own) for name in loaded)), None):
        print(f"without the prefix {prefix}")
        loaded = {name.removeprefix(prefix): value for name, value in loaded.items()}
    return loaded


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("output")
    parser.add_argument("--bidirectional", metavar="NAME", action="append", default=[])
    parser.add_argument("--key", metavar="KEY")
    args = parser.parse_args()
    # Packed weights of recurrent layers are no tensors.
    loaded = torch.load(args.source, map_location="cpu", weights_only=False)
    converted = convert(state_dict(loaded, args.key), args.bidirectional)
    converted.save(args.output)
    print(f"{args.output}: {len(converted.weights)} quantized weights, {len(converted.tensors)} tensors")


if __name__ == "__main__":
    main()
