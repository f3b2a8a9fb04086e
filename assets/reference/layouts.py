"""The model of the layout_*.py fixtures: two Linears that are quantized and one that is not."""

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


def write(folder, state, metadata, expected, versions, config=None):
    """model.safetensors, expected.safetensors with the library's own answers, and config.json."""
    folder.mkdir(exist_ok=True)
    detach = lambda tensors: {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    save_file(detach(state), folder / "model.safetensors", {"format": "pt"} | metadata)
    save_file(detach(expected), folder / "expected.safetensors", versions | {"torch": torch.__version__})
    if config is not None:
        (folder / "config.json").write_text(json.dumps({"quantization_config": config}, indent=1) + "\n")
    print(folder.name, {name: (str(t.dtype), tuple(t.shape)) for name, t in state.items()})


def folder(script):
    return Path(script).resolve().with_suffix("")
