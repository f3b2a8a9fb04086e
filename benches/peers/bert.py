"""BERT encoders with random weights, from token ids to the last hidden state; no padding."""

import itertools
import os
import sys
import tempfile
from functools import cached_property

import torch
from onnx import TensorProto
from onnxruntime.transformers.optimizer import optimize_model
from transformers import BertConfig, BertModel

from common import SIZE, Case, agree, onnx_call, onnx_quantize, onnx_session, quantized, sizes

MODELS = {
    "MiniLM": {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
    "BERT-base": {},
}

FORM = "model batch x sequence length as in BERT-base 8x128"

ROWS = [f"{model} {shape}" for model in MODELS for shape in ("1x16", "1x128", "8x128", "1x512")]


def parse(name):
    model, batch, seq = sizes(name, f"({'|'.join(MODELS)}) {SIZE}x{SIZE}", FORM)
    if seq > BertConfig().max_position_embeddings:
        raise ValueError(f"expected a sequence of at most {BertConfig().max_position_embeddings}, got {name!r}")
    return model, batch, seq


class Model:
    """One encoder in all its forms; in `folder` as Hugging Face writes it, and as ONNX."""

    def __init__(self, name, folder):
        self.name, self.folder = name, folder
        torch.manual_seed(0)
        config = BertConfig(**MODELS[name])
        self.float = BertModel(config, add_pooling_layer=False).eval()
        self.float.save_pretrained(folder)

    @cached_property
    def int8(self):
        return {engine: quantized(self.float, engine) for engine in ("x86", "onednn")}

    @cached_property
    def sessions(self):
        config, name = self.float.config, self.name
        plain, fused = self.export("plain"), self.path("fused")
        optimized = optimize_model(plain, "bert", config.num_attention_heads, config.hidden_size, opt_level=0)
        attentions = optimized.get_fused_operator_statistics()["Attention"]
        if attentions != config.num_hidden_layers:
            sys.exit(f"{name}: ONNX Runtime fused {attentions} of {config.num_hidden_layers} attentions")
        optimized.save_model_to_file(fused)
        return {graph: self.session(graph) for graph in ("plain", "fused")}

    def path(self, graph):
        return os.path.join(self.folder, f"{graph}.onnx")

    def inputs(self, ids):
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}

    def export(self, graph):
        # The fusions know attention as it is written out.
        model = BertModel.from_pretrained(self.folder, attn_implementation="eager", add_pooling_layer=False).eval()
        inputs = self.inputs(torch.zeros(2, 16, dtype=torch.long))
        axes = {name: {0: "batch", 1: "seq"} for name in [*inputs, "hidden"]}
        torch.onnx.export(
            model, tuple(inputs.values()), self.path(graph), input_names=list(inputs), output_names=["hidden"],
            dynamic_axes=axes, dynamo=False, opset_version=17,
        )
        return self.path(graph)

    def session(self, graph):
        """The quantized graph, after a check of the float one."""
        ids = torch.randint(0, self.float.config.vocab_size, (2, 24))
        got = onnx_call(onnx_session(self.path(graph)), self.inputs(ids))()
        agree(self.name, f"the {graph} graph in float", got, self.float(ids)[0], Case.float_decibels)
        int8 = os.path.join(self.folder, f"{graph}.int8.onnx")
        # Shape inference does not know the fused operators.
        options = {"DefaultTensorType": TensorProto.FLOAT}
        onnx_quantize(self.path(graph), int8, extra_options=options)
        return onnx_session(int8)


class Bert(Case):
    group = "bert"

    def __init__(self, model, batch, seq):
        self.name = f"{model.name} {batch}x{seq}"
        self.model = model
        self.facts = {"group": self.group, "folder": model.folder}
        torch.manual_seed(1)
        self.ids = torch.randint(0, model.float.config.vocab_size, (batch, seq))

    def tensors(self):
        return {"ids": self.ids}

    def expected(self):
        return self.model.float(self.ids)[0]

    def rivals(self):
        calls = {}
        for engine, module in self.model.int8.items():
            calls[f"torch int8/{engine}"] = lambda module=module: module(self.ids)[0]
        for graph, session in self.model.sessions.items():
            calls[f"onnxruntime QInt8/{graph}"] = onnx_call(session, self.model.inputs(self.ids))
        return calls


def cases(selected):
    for name, group in itertools.groupby(selected, lambda case: case[0]):
        with tempfile.TemporaryDirectory() as folder:
            model = Model(name, folder)
            yield from (Bert(model, *shape) for _, *shape in group)
