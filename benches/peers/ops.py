"""The float operations of a BERT layer beside its products, at BERT-base's shapes."""

import torch
import torch.nn.functional as F

from common import SIZE, Case, sizes

FORM = "an operation and its sizes as in gelu 128x3072 or attention 8x128x768"

ROWS = [
    "gelu 128x3072", "softmax 12x128x128", "layer_norm 128x768",
    # Batch, sequence length, hidden size: from the output of three projections to the input of
    # the next one.
    "attention 1x128x768", "attention 1x512x768", "attention 8x128x768",
]

HEADS = 12


def parse(name):
    count = 3 if name.startswith(("softmax", "attention")) else 2
    op, *shape = sizes(name, f"(gelu|softmax|layer_norm|attention) {'x'.join([SIZE] * count)}", FORM)
    if op == "attention" and shape[-1] % HEADS:
        raise ValueError(f"expected a hidden size that {HEADS} heads share, got {name!r}")
    return op, shape


class Operation(Case):
    group = "ops"
    float_decibels = 100

    def __init__(self, op, shape):
        self.name = f"{op} {'x'.join(map(str, shape))}"
        self.op = op
        self.facts = {"group": self.group, "op": op, "heads": HEADS}
        torch.manual_seed(0)
        self.inputs = {"xs": torch.randn(3, *shape) if op == "attention" else torch.randn(*shape)}
        if op == "layer_norm":
            self.inputs |= {"weight": torch.randn(shape[-1]), "bias": torch.randn(shape[-1])}

    def tensors(self):
        return self.inputs

    def expected(self):
        return self.torch(self.inputs["xs"].double()).float()

    def torch(self, xs):
        match self.op:
            case "gelu":
                return F.gelu(xs)
            case "softmax":
                return F.softmax(xs, -1)
            case "layer_norm":
                weight, bias = (self.inputs[name].to(xs.dtype) for name in ("weight", "bias"))
                return F.layer_norm(xs, xs.shape[-1:], weight, bias, 1e-12)
            case "attention":
                return merged(F.scaled_dot_product_attention(*(heads(x) for x in xs)))

    def rivals(self):
        return {"torch f32": lambda: self.torch(self.inputs["xs"])}


def heads(xs):
    return xs.unflatten(-1, (HEADS, -1)).transpose(-3, -2)


def merged(xs):
    return xs.transpose(-3, -2).flatten(-2)


def cases(selected):
    return (Operation(*case) for case in selected)
