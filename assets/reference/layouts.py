"""The models of the layout_*.py fixtures: Linears that are quantized and one that is not."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(24, 40)
        self.down = torch.nn.Linear(40, 10, bias=False)
        self.head = torch.nn.Linear(10, 3)

    def forward(self, xs):
        return self.head(self.down(torch.relu(self.up(xs))))


def float_model():
    torch.manual_seed(0)
    return Model().eval()


def inputs():
    return torch.randn(5, 24, generator=torch.Generator().manual_seed(1))


class Wide(torch.nn.Module):
    """For 4 bits: `GROUPS` has the inputs of a group of each Linear, and whether it is symmetric."""

    GROUPS = {"up": (32, True), "down": (64, False), "out": (64, True)}

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(96, 128)
        self.down = torch.nn.Linear(128, 64, bias=False)
        self.out = torch.nn.Linear(64, 32)
        self.head = torch.nn.Linear(32, 3)
        # Zero points differ.
        self.down.weight.data += torch.linspace(-0.05, 0.05, 64)[:, None]

    def forward(self, xs):
        return self.head(self.out(self.down(torch.relu(self.up(xs)))).float())


def wide_model():
    torch.manual_seed(0)
    return Wide().eval()


def wide_inputs():
    return torch.randn(5, 96, generator=torch.Generator().manual_seed(1))


def qparams(weight, group_size, symmetric, bits=4):
    """Scales and zero points, [out_features, groups]."""
    groups = weight.detach().unflatten(1, (-1, group_size))
    if symmetric:
        scales = groups.abs().amax(2) / (2 ** (bits - 1) - 1)
        return scales.half().float(), torch.full_like(scales, 2 ** (bits - 1))
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    # One code is left for the zero point's rounding: not all libraries clamp.
    scales = ((high - low) / (2**bits - 2)).half().float()
    return scales, (-low / scales).round()


def write(folder, state, metadata, expected, versions, config=None):
    """model.safetensors, expected.safetensors with the library's own answers, and config.json."""
    folder.mkdir(exist_ok=True)
    detach = lambda tensors: {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    save_file(detach(state), folder / "model.safetensors", {"format": "pt"} | metadata)
    save_file(detach(expected), folder / "expected.safetensors", versions | {"torch": torch.__version__})
    if config is not None:
        (folder / "config.json").write_text(json.dumps({"quantization_config": config}) + "\n")
    print(folder.name, {name: (str(t.dtype), tuple(t.shape)) for name, t in state.items()})


def folder(script):
    return Path(script).resolve().with_suffix("")
