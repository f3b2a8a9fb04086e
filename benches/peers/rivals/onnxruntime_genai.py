"""ONNX Runtime on the graph of onnxruntime-genai's builder: weights of 4 bits in blocks of 32.

Activations and the output projection have 8 bits, as ours. The session is called as its generator
calls it, keys and values in place.
"""

# /// script
# dependencies = ["onnxruntime-genai==0.18.0", "onnx-ir==1.1.0", "transformers==5.24.0"]
# ///

import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnxruntime as ort
import tokenizers
from transformers import AutoConfig, PreTrainedTokenizerFast

OPTIONS = (
    "block_size=32", "accuracy_level=4", "algo_config=rtn", "prune_lm_head=true",
    "matmul_mixed_precision=last_matmul:int8",
)


def decoder(case, tensors):
    # A model of scores of all tokens would be another graph.
    if case["every"] or case["write"]:
        return {}
    model, ids = session(case["folder"]), tensors["ids"]
    states = empty(case["folder"], len(ids), sum(part.shape[1] for part in tensors.values()))
    start = 0
    if "before" in tensors:
        start = tensors["before"].shape[1]
        call(model, tensors["before"], states, 0)()
    return {"onnxruntime int4": call(model, ids, states, start)}


def call(model, ids, states, start):
    """Reads `ids` after `start` tokens of the states, which it writes in place."""
    sequences, tokens = ids.shape
    binding = model.io_binding()
    binding.bind_cpu_input("input_ids", ids)
    binding.bind_cpu_input("attention_mask", np.ones((sequences, start + tokens), np.int64))
    binding.bind_output("logits")
    for name, state in states.items():
        binding.bind_ortvalue_input(f"past_key_values.{name}", state)
        binding.bind_ortvalue_output(f"present.{name}", state)

    def run():
        model.run_with_iobinding(binding)
        return binding.get_outputs()[0].numpy()

    return run


def empty(folder, sequences, tokens):
    """Keys and values of no tokens, with room for `tokens`."""
    config = AutoConfig.from_pretrained(folder)
    size = config.hidden_size // config.num_attention_heads
    zeros = np.zeros((sequences, config.num_key_value_heads, tokens, size), np.float32)
    layers = range(config.num_hidden_layers)
    names = [f"{layer}.{kind}" for layer in layers for kind in ("key", "value")]
    return {name: ort.OrtValue.ortvalue_from_numpy(zeros.copy()) for name in names}


@lru_cache(1)
def session(folder):
    built = Path(folder).with_name("onnxruntime")
    # The builder insists on a tokenizer.
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"": 0}, ""))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", folder, "-o", built]
    command += ["-p", "int4", "-e", "cpu", "-c", built / "cache", "--extra_options", *OPTIONS]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(done.stderr[-300:])
    options = ort.SessionOptions()
    options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    options.inter_op_num_threads = 1
    return ort.InferenceSession(built / "model.onnx", options, providers=["CPUExecutionProvider"])
