"""A model quantized by PyTorch, its state_dict converted by scripts/convert_pytorch.py.

Makes:   layout_pytorch/{model.safetensors, expected.safetensors}
Command: python layout_pytorch.py
Pinned:  torch==2.9.1 numpy==2.4.6 safetensors==0.8.0, Python 3.11, engine fbgemm
"""

import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.ao.quantization import (
    default_dynamic_qconfig,
    float16_dynamic_qconfig,
    float_qparams_weight_only_qconfig,
    per_channel_dynamic_qconfig,
    quantize_dynamic,
)

from layouts import folder

CONVERT = Path(__file__).resolve().parents[2] / "scripts" / "convert_pytorch.py"
SPEC = {
    "table": float_qparams_weight_only_qconfig,
    "lstm": default_dynamic_qconfig,
    "gru": default_dynamic_qconfig,
    "cell": default_dynamic_qconfig,
    "up": per_channel_dynamic_qconfig,
    "small": float16_dynamic_qconfig,
    "down": default_dynamic_qconfig,
}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(11, 8)
        self.lstm = torch.nn.LSTM(8, 6, 2, bidirectional=True)
        self.gru = torch.nn.GRU(12, 5)
        self.cell = torch.nn.LSTMCell(5, 7)
        self.up = torch.nn.Linear(7, 20)
        self.norm = torch.nn.LayerNorm(20)
        self.small = torch.nn.Linear(20, 9)
        self.down = torch.nn.Linear(9, 4, bias=False)

    def forward(self, ids):
        """The output of each layer; each has the fixture's own input of its layer."""
        out = {"table": self.table(ids)}
        out["lstm"], _ = self.lstm(out["table"])
        out["gru"], _ = self.gru(out["lstm"])
        out["cell"], _ = self.cell(out["gru"][-1])
        out["up"] = self.up(out["cell"])
        out["norm"] = self.norm(out["up"])
        out["small"] = self.small(out["norm"])
        out["down"] = self.down(out["small"])
        return out


def main():
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.backends.quantized.engine = "fbgemm"
    model = quantize_dynamic(Model().eval(), SPEC)
    ids = torch.randint(0, 11, (3, 4))
    with torch.no_grad():
        expected = {"ids": ids} | model(ids)
    out = folder(__file__)
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as parent:
        state = Path(parent) / "model.pt"
        torch.save(model.state_dict(), state)
        subprocess.run([sys.executable, CONVERT, state, out / "model.safetensors"], check=True)
    expected = {name: tensor.contiguous() for name, tensor in expected.items()}
    versions = {"torch": torch.__version__, "engine": "fbgemm", "seed": "0"}
    save_file(expected, out / "expected.safetensors", versions)


if __name__ == "__main__":
    main()
