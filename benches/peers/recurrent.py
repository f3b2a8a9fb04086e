"""LSTM, GRU and the cells: whole sequences, one call."""

import torch

from common import Case, agree, quantized

# kind, input, hidden, layers, bidirectional, batch, steps
CASES = [
    (kind, *shape)
    for kind in ("LSTM", "GRU")
    for shape in (
        (512, 512, 1, False, 1, 100),
        (512, 512, 2, True, 1, 100),
        (200, 200, 2, False, 1, 35),
        (512, 512, 1, False, 16, 100),
        (1024, 1024, 1, False, 1, 100),
        (1024, 1024, 2, False, 32, 50),
    )
] + [(kind, 512, 512, 1, False, 1, 100) for kind in ("LSTMCell", "GRUCell", "RNNCell")]


class Recurrent(Case):
    group = "recurrent"

    def __init__(self, kind, inputs, hidden, layers, bidirectional, batch, steps):
        self.name = f"{kind} {inputs},{hidden},{layers},{'yes' if bidirectional else 'no'},{batch},{steps}"
        self.facts = {
            "group": self.group, "kind": kind, "input": inputs, "hidden": hidden,
            "layers": layers, "bidirectional": bidirectional,
        }
        self.cell = kind.endswith("Cell")
        torch.manual_seed(0)
        options = {} if self.cell else {"num_layers": layers, "bidirectional": bidirectional}
        self.float = getattr(torch.nn, kind)(inputs, hidden, **options).eval()
        self.xs = torch.randn(steps, batch, inputs)

    def tensors(self):
        return {key: value.contiguous() for key, value in self.float.state_dict().items()} | {"xs": self.xs}

    def run(self, module):
        if not self.cell:
            return module(self.xs)[0]
        state, outputs = None, []
        for x in self.xs:
            state = module(x, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs)

    def expected(self):
        return self.run(self.float)

    def check(self, outputs):
        super().check(outputs)
        # A last place of sigmoid or tanh can move a code, hence no bit-equality over all steps.
        agree(self.name, "our default() with torch's", outputs["default"], outputs["torch int8"], 35)

    def rivals(self):
        module = quantized(self.float)
        return {"torch int8": lambda: self.run(module)}


def cases():
    return (Recurrent(*case) for case in CASES)
