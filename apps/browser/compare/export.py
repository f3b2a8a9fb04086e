"""BERT classifiers for the comparison: one with random weights, and ONNX graphs in onnxruntime's int8.

    export.py random FOLDER LIKE      a float model of MiniLM's sizes, with the tokenizer and labels of LIKE
    export.py onnx FOLDER FILE FORM   its graph, `fused` or `plain`, quantized by quantize_dynamic

`fused` has the operators that onnxruntime's own optimizer makes of a BERT (attention, skip layer norms and
gelu); `plain` has attention written out, and leaves the rest to the optimizer of the session.
"""

import json
import os
import shutil
import sys

import numpy
from safetensors.numpy import load_file, save_file

SIZES = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536,
         "max_position_embeddings": 512}


def random(folder, like):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(like, "config.json"), encoding="utf-8") as file:
        config = json.load(file) | SIZES
    generator = numpy.random.default_rng(1)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    tensors = {}

    def normal(name, *shape):
        tensors[name] = generator.normal(0, 0.04, shape).astype(numpy.float32)

    def linear(name, inputs, outputs):
        normal(f"{name}.weight", outputs, inputs)
        normal(f"{name}.bias", outputs)

    def norm(name):
        tensors[f"{name}.weight"] = numpy.ones(hidden, numpy.float32)
        tensors[f"{name}.bias"] = numpy.zeros(hidden, numpy.float32)

    rows = {"word": "vocab_size", "position": "max_position_embeddings", "token_type": "type_vocab_size"}
    for name, count in rows.items():
        normal(f"bert.embeddings.{name}_embeddings.weight", config[count], hidden)
    norm("bert.embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        prefix = f"bert.encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            linear(f"{prefix}.attention.self.{part}", hidden, hidden)
        linear(f"{prefix}.attention.output.dense", hidden, hidden)
        norm(f"{prefix}.attention.output.LayerNorm")
        linear(f"{prefix}.intermediate.dense", hidden, inner)
        linear(f"{prefix}.output.dense", inner, hidden)
        norm(f"{prefix}.output.LayerNorm")
    linear("bert.pooler.dense", hidden, hidden)
    linear("classifier", hidden, len(config["id2label"]))
    save_file(tensors, os.path.join(folder, "model.safetensors"))
    shutil.copy(os.path.join(like, "tokenizer.json"), folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)


class Graph:
    """The nodes and weights of an ONNX graph."""

    def __init__(self, config, tensors):
        self.config, self.tensors = config, tensors
        self.weights, self.nodes = {}, []

    def weight(self, name, value):
        self.weights[name] = numpy.asarray(value, order="C")
        return name

    def tensor(self, name):
        return self.weight(name, self.tensors[name])

    def node(self, kind, inputs, name, domain="", **attributes):
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, domain=domain, **attributes))
        return name

    def own(self, kind, inputs, name, **attributes):
        """An operator of onnxruntime's own."""
        return self.node(kind, inputs, name, domain="com.microsoft", **attributes)

    def product(self, prefix, hidden):
        return self.node("MatMul", [hidden, self.weight(f"{prefix}.weight", self.tensors[f"{prefix}.weight"].T)],
                         f"{prefix}.out")

    def linear(self, prefix, hidden):
        return self.node("Add", [self.product(prefix, hidden), self.tensor(f"{prefix}.bias")], f"{prefix}.sum")

    def norm(self, prefix, hidden, residual, bias=None):
        inputs = [hidden, residual, self.tensor(f"{prefix}.weight"), self.tensor(f"{prefix}.bias")]
        return self.own("SkipLayerNormalization", inputs + ([bias] if bias else []), f"{prefix}.out",
                        epsilon=self.config["layer_norm_eps"])

    def fused_attention(self, prefix, hidden):
        parts = [f"{prefix}.attention.self.{part}" for part in ("query", "key", "value")]
        weight = numpy.concatenate([self.tensors[f"{part}.weight"].T for part in parts], axis=1)
        bias = numpy.concatenate([self.tensors[f"{part}.bias"] for part in parts])
        inputs = [hidden, self.weight(f"{prefix}.qkv", weight), self.weight(f"{prefix}.qkv.bias", bias), "mask"]
        return self.own("Attention", inputs, f"{prefix}.attended", num_heads=self.config["num_attention_heads"])

    def plain_attention(self, prefix, hidden):
        heads = self.config["num_attention_heads"]
        size = self.config["hidden_size"] // heads
        split = self.weight("split", numpy.array([0, 0, heads, size]))
        join = self.weight("join", numpy.array([0, 0, heads * size]))
        orders = {"query": [0, 2, 1, 3], "key": [0, 2, 3, 1], "value": [0, 2, 1, 3]}
        parts = {}
        for part, order in orders.items():
            name = f"{prefix}.attention.self.{part}"
            rows = self.node("Reshape", [self.linear(name, hidden), split], f"{name}.split")
            parts[part] = self.node("Transpose", [rows], f"{name}.heads", perm=order)
        scores = self.node("MatMul", [parts["query"], parts["key"]], f"{prefix}.scores")
        scale = self.weight("scale", numpy.array(size**-0.5, numpy.float32))
        scores = self.node("Softmax", [self.node("Mul", [scores, scale], f"{prefix}.scaled")], f"{prefix}.softmax", axis=-1)
        attended = self.node("MatMul", [scores, parts["value"]], f"{prefix}.values")
        attended = self.node("Transpose", [attended], f"{prefix}.rows", perm=[0, 2, 1, 3])
        return self.node("Reshape", [attended, join], f"{prefix}.attended")

    def classifier(self, form):
        """The logits of `input_ids`."""
        places = self.tensors["embeddings.position_embeddings.weight"]
        places = places + self.tensors["embeddings.token_type_embeddings.weight"][0]
        words = self.node("Gather", [self.tensor("embeddings.word_embeddings.weight"), "input_ids"], "words")
        place = self.node("Gather", [self.weight("places", places), "positions"], "place")
        hidden = self.norm("embeddings.LayerNorm", words, place)
        attention = {"fused": self.fused_attention, "plain": self.plain_attention}[form]
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"encoder.layer.{layer}"
            output = f"{prefix}.attention.output"
            attended = self.product(f"{output}.dense", attention(prefix, hidden))
            attended = self.norm(f"{output}.LayerNorm", attended, hidden, self.tensor(f"{output}.dense.bias"))
            inner = self.product(f"{prefix}.intermediate.dense", attended)
            inner = self.own("BiasGelu", [inner, self.tensor(f"{prefix}.intermediate.dense.bias")], f"{prefix}.gelu")
            inner = self.product(f"{prefix}.output.dense", inner)
            bias = self.tensor(f"{prefix}.output.dense.bias")
            hidden = self.norm(f"{prefix}.output.LayerNorm", inner, attended, bias)
        first = self.node("Gather", [hidden, self.weight("first", numpy.array(0))], "first.token", axis=1)
        pooled = self.node("Tanh", [self.linear("pooler.dense", first)], "pooled")
        return self.linear("classifier", pooled)


def onnx(folder, path, form):
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    graph = Graph(config, {name.removeprefix("bert."): tensor for name, tensor in tensors.items()})
    logits = graph.classifier(form)

    def info(name, kind, *shape):
        return helper.make_tensor_value_info(name, kind, shape)

    kinds = {"input_ids": TensorProto.INT64, "positions": TensorProto.INT64}
    if form == "fused":
        kinds["mask"] = TensorProto.INT32
    inputs = [info(name, kind, "batch", "seq") for name, kind in kinds.items()]
    outputs = [info(logits, TensorProto.FLOAT, "batch", len(config["id2label"]))]
    constants = [numpy_helper.from_array(value, name) for name, value in graph.weights.items()]
    whole = helper.make_graph(graph.nodes, "bert", inputs, outputs, constants)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(whole, opset_imports=imports, ir_version=10), f"{path}.float")
    # Shape inference does not know the fused operators.
    options = {"DefaultTensorType": TensorProto.FLOAT}
    quantize_dynamic(f"{path}.float", path, weight_type=QuantType.QInt8, extra_options=options)
    os.remove(f"{path}.float")


if __name__ == "__main__":
    {"random": random, "onnx": onnx}[sys.argv[1]](*sys.argv[2:])
