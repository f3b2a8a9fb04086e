"""LSTM, GRU and the cells: whole sequences, one call."""

import os
import re
import tempfile

import torch

from common import SIZE, Case, agree, as_trained, onnx_call, onnx_quantize, onnx_session, quantized, sizes

FORM = "kind and input,hidden,layers,bidirectional,batch,steps as in LSTM 512,512,1,no,16,100"

ROWS = [
    f"{kind} {shape}"
    for kind in ("LSTM", "GRU")
    for shape in (
        "512,512,1,no,1,100",
        "512,512,2,yes,1,100",
        "200,200,2,no,1,35",
        "512,512,1,no,16,100",
        "1024,1024,1,no,1,100",
        "1024,1024,2,no,32,50",
    )
] + [f"{kind} 512,512,1,no,1,100" for kind in ("LSTMCell", "GRUCell", "RNNCell")]


def parse(name):
    if re.match(r"\w+Cell ", name):
        form = "a cell as LSTMCell 512,512,1,no,1,100: one layer, one direction"
        pattern = f"(LSTMCell|GRUCell|RNNCell) {SIZE},{SIZE},(1),(no),{SIZE},{SIZE}"
    else:
        form, pattern = FORM, f"(LSTM|GRU) {SIZE},{SIZE},{SIZE},(yes|no),{SIZE},{SIZE}"
    kind, inputs, hidden, layers, bidirectional, batch, steps = sizes(name, pattern, form)
    return kind, inputs, hidden, layers, bidirectional == "yes", batch, steps


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
        self.float = as_trained(getattr(torch.nn, kind)(inputs, hidden, **options))
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
        agree(self.name, "our default() with torch's", outputs["default"], outputs["torch int8/x86"], 35)

    def rivals(self):
        calls = {}
        for engine in ("x86", "onednn"):
            module = quantized(self.float, engine)
            calls[f"torch int8/{engine}"] = lambda module=module: self.run(module)
        # Of what is recurrent, its quantizer knows the LSTM only.
        if isinstance(self.float, torch.nn.LSTM):
            calls["onnxruntime QInt8"] = self.onnxruntime()
        return calls

    def onnxruntime(self):
        with tempfile.TemporaryDirectory() as folder:
            float, int8 = os.path.join(folder, "float.onnx"), os.path.join(folder, "int8.onnx")
            torch.onnx.export(
                self.float, (self.xs,), float, input_names=["xs"], output_names=["ys"], dynamo=False, opset_version=17
            )
            onnx_quantize(float, int8)
            return onnx_call(onnx_session(int8), {"xs": self.xs})


def cases(selected):
    return (Recurrent(*case) for case in selected)
