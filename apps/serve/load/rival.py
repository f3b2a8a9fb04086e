"""The rival: the same model in onnxruntime's int8, behind FastAPI, as its users write it.

    python rival.py MODEL ONNX PORT

`build` makes the ONNX file: the graph that onnxruntime's own optimizer makes of a BERT (fused attention, skip
layer norms and gelu), quantized by its `quantize_dynamic`. Each request is one call of the session, which
has a thread for each core; FastAPI runs requests of plain functions in its pool of threads.
"""

import json
import os
import sys


def build(model, path):
    import numpy
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from safetensors.numpy import load_file

    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    tensors = load_file(os.path.join(model, "model.safetensors"))
    heads, epsilon = config["num_attention_heads"], config["layer_norm_eps"]
    weights, nodes = {}, []

    def weight(name, value):
        weights[name] = numpy.ascontiguousarray(value)
        return name

    def node(kind, inputs, name, domain="", **attributes):
        nodes.append(helper.make_node(kind, inputs, [name], name=name, domain=domain, **attributes))
        return name

    def fused(kind, inputs, name, **attributes):
        return node(kind, inputs, name, domain="com.microsoft", **attributes)

    def tensor(name):
        return weight(name, tensors[name])

    def norm(prefix, hidden, residual, bias=None):
        inputs = [hidden, residual, tensor(f"{prefix}.weight"), tensor(f"{prefix}.bias")]
        return fused("SkipLayerNormalization", inputs + ([bias] if bias else []), f"{prefix}.out", epsilon=epsilon)

    def product(prefix, hidden):
        return node("MatMul", [hidden, weight(f"{prefix}.weight", tensors[f"{prefix}.weight"].T)], f"{prefix}.out")

    words = node("Gather", [tensor("embeddings.word_embeddings.weight"), "input_ids"], "words")
    places = tensors["embeddings.position_embeddings.weight"] + tensors["embeddings.token_type_embeddings.weight"][0]
    places = node("Gather", [weight("places", places), "positions"], "place")
    hidden = norm("embeddings.LayerNorm", words, places)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"encoder.layer.{layer}"
        parts = [f"{prefix}.attention.self.{part}" for part in ("query", "key", "value")]
        inputs = [
            hidden,
            weight(f"{prefix}.qkv", numpy.concatenate([tensors[f"{part}.weight"].T for part in parts], axis=1)),
            weight(f"{prefix}.qkv.bias", numpy.concatenate([tensors[f"{part}.bias"] for part in parts])),
            "mask",
        ]
        attended = fused("Attention", inputs, f"{prefix}.attended", num_heads=heads)
        output = f"{prefix}.attention.output"
        attended = product(f"{output}.dense", attended)
        attended = norm(f"{output}.LayerNorm", attended, hidden, tensor(f"{output}.dense.bias"))
        inner = product(f"{prefix}.intermediate.dense", attended)
        inner = fused("BiasGelu", [inner, tensor(f"{prefix}.intermediate.dense.bias")], f"{prefix}.gelu")
        inner = product(f"{prefix}.output.dense", inner)
        hidden = norm(f"{prefix}.output.LayerNorm", inner, attended, tensor(f"{prefix}.output.dense.bias"))

    def info(name, kind, *shape):
        return helper.make_tensor_value_info(name, kind, shape)

    kinds = {"input_ids": TensorProto.INT64, "positions": TensorProto.INT64, "mask": TensorProto.INT32}
    inputs = [info(name, kind, "batch", "seq") for name, kind in kinds.items()]
    outputs = [info(hidden, TensorProto.FLOAT, "batch", "seq", config["hidden_size"])]
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "bert", inputs, outputs, constants)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    float_path = path + ".float"
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), float_path)
    # Shape inference does not know the fused operators.
    options = {"DefaultTensorType": TensorProto.FLOAT}
    quantize_dynamic(float_path, path, weight_type=QuantType.QInt8, extra_options=options)
    os.remove(float_path)


def serve(model, path, port):
    import numpy
    import onnxruntime
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel
    from tokenizers import Tokenizer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = os.cpu_count()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(os.path.join(model, "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    app = FastAPI()

    class Request(BaseModel):
        inputs: str

    @app.post("/embed")
    def embed(request: Request):
        ids = numpy.array([tokenizer.encode(request.inputs).ids], dtype=numpy.int64)
        positions = numpy.arange(ids.shape[1], dtype=numpy.int64)[None]
        mask = numpy.ones_like(ids, dtype=numpy.int32)
        (hidden,) = session.run(None, {"input_ids": ids, "positions": positions, "mask": mask})
        mean = hidden[0].mean(axis=0)
        return [(mean / numpy.linalg.norm(mean)).tolist()]

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
