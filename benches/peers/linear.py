"""One Linear layer, the whole call."""

import torch

from common import agree, quantized

# m, k, n
CASES = [
    (1, 768, 768), (1, 768, 3072), (1, 4096, 4096), (8, 768, 3072),
    (128, 768, 768), (128, 768, 3072), (128, 3072, 768), (1024, 768, 3072),
]


class Linear:
    group = "linear"

    def __init__(self, m, k, n):
        self.name = f"{m},{k},{n}"
        self.facts = {"group": self.group, "k": k, "n": n}
        torch.manual_seed(0)
        self.float = torch.nn.Linear(k, n).eval()
        self.xs = torch.randn(m, k)

    def tensors(self):
        return dict(self.float.state_dict()) | {"xs": self.xs}

    def check(self, ours):
        expected = quantized(self.float)(self.xs)
        if not torch.equal(ours["default"], expected):
            raise SystemExit(f"{self.name}: our default() and torch's differ in bits")
        agree(self.name, "our int8() with float", ours["int8"], self.float(self.xs), 30)

    def rivals(self):
        module = quantized(self.float)
        return {"torch int8": lambda: module(self.xs)}


def cases():
    return (Linear(*case) for case in CASES)
