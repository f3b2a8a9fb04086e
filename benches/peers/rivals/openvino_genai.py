"""OpenVINO's decoder by optimum-intel, as openvino-genai runs it: 4 bits in groups of 32 by nncf.

The output projection, keys and values have 8 bits. Keys and values cannot be cut, so each token
that is timed follows the one before.
"""

# /// script
# dependencies = [
#   "openvino==2026.4.1", "nncf==3.4.0", "optimum-intel==2.2.0", "torchvision==0.24.1",
# ]
# ///

from functools import lru_cache

import numpy as np
from openvino import opset13 as opset
from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

from rivals.openvino import CORE, OPTIONS


def decoder(case, tensors):
    # A model of scores of all tokens would be another one.
    if case["every"] or case["write"]:
        return {}
    request, ids = compiled(case["folder"]).create_infer_request(), tensors["ids"]
    before = tensors.get("before", ids[:, :0])
    start = before.shape[1]

    def read(ids, start):
        sequences, tokens = ids.shape
        positions = np.arange(start, start + tokens)
        inputs = {
            "input_ids": ids,
            "attention_mask": np.ones((sequences, start + tokens), np.int64),
            "position_ids": np.tile(positions, (sequences, 1)),
            "beam_idx": np.arange(sequences, dtype=np.int32),
        }
        return request.infer(inputs, share_outputs=True)[0]

    def run():
        nonlocal start
        if before.size == 0:
            request.reset_state()
            return read(ids, 0)
        logits = read(ids, start)
        start += ids.shape[1]
        return logits

    if before.size:
        read(before, 0)
    return {"openvino int4": run}


@lru_cache(1)
def compiled(folder):
    groups = OVWeightQuantizationConfig(bits=4, sym=True, group_size=32)
    options = {"export": True, "quantization_config": groups, "compile": False}
    model = OVModelForCausalLM.from_pretrained(folder, **options).model
    # Scores of the last token only, as openvino-genai asks for them.
    head = model.output("logits").get_node().input_value(0).get_node()
    last = opset.slice(head.input_value(0), [-1], [np.iinfo(np.int64).max], [1], [1])
    head.input(0).replace_source_output(last.output(0))
    model.validate_nodes_and_infer_types()
    return CORE.compile_model(model, "CPU", OPTIONS)
