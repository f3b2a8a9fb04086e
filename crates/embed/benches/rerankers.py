"""Makes rerankers of all-MiniLM-L6-v2 for run.sh: rerankers.py MINILM ONNX OUT.

Its layers with a head of one class, whose weights are random, in two forms: OUT/float, a folder of transformers,
and OUT/onnx, fastembed's model in int8 with the same head behind it. What they answer means nothing; it takes the
time of a reranker of that size, and is the same on all sides.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file


def main():
    minilm, onnx_model, out = map(Path, sys.argv[1:])
    shutil.rmtree(out, ignore_errors=True)
    for folder, source in (("float", minilm), ("onnx", onnx_model)):
        (out / folder).mkdir(parents=True)
        for path in source.glob("*.json"):
            if path.name not in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
                shutil.copy(path, out / folder)

    tensors = load_file(minilm / "model.safetensors")
    tensors.pop("embeddings.position_ids", None)
    size = tensors["pooler.dense.weight"].shape[0]
    chance = np.random.default_rng(0)
    weight = chance.normal(size=(1, size)).astype(np.float32)
    bias = np.zeros(1, np.float32)
    named = {f"bert.{name}": values for name, values in tensors.items()}
    save_file(
        named | {"classifier.weight": weight, "classifier.bias": bias},
        out / "float/model.safetensors",
        metadata={"format": "pt"},
    )
    config = json.loads((minilm / "config.json").read_text())
    config |= {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},
    }
    (out / "float/config.json").write_text(json.dumps(config, indent=2))

    model = onnx.load(onnx_model / "model.onnx")
    graph = model.graph
    head = {
        "head_first": np.array(0, np.int64),
        "head_pooler": tensors["pooler.dense.weight"].T.copy(),
        "head_pooler_bias": tensors["pooler.dense.bias"],
        "head_classifier": weight.T.copy(),
        "head_classifier_bias": bias,
    }
    graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in head.items())
    graph.node.extend([
        helper.make_node("Gather", ["last_hidden_state", "head_first"], ["head_0"], axis=1),
        helper.make_node("Gemm", ["head_0", "head_pooler", "head_pooler_bias"], ["head_1"]),
        helper.make_node("Tanh", ["head_1"], ["head_2"]),
        helper.make_node("Gemm", ["head_2", "head_classifier", "head_classifier_bias"], ["logits"]),
    ])
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1]))
    onnx.save(model, out / "onnx/model.onnx")


if __name__ == "__main__":
    main()
