#!/usr/bin/env python3
"""Whether convert_pytorch.py finds the weights in files as training scripts save them.

    pip install torch==2.9.1 numpy==2.4.6 safetensors==0.8.0
    scripts/check_convert.py

Saves one small model in each way, on a device that this machine has not as well, and compares what is converted
with its tensors. Ends with 1 where they differ.
"""

import contextlib
import io
import sys
import tempfile
from collections import OrderedDict
from pathlib import Path

import torch
from safetensors.torch import load_file

import convert_pytorch


def model():
    parts = OrderedDict(embed=torch.nn.Embedding(5, 4), lstm=torch.nn.LSTM(4, 3), head=torch.nn.Linear(4, 5, bias=False))
    model = torch.nn.Sequential(parts)
    # Tied, as the heads of language models are.
    model.head.weight = model.embed.weight
    return model


def convert(source, out, options):
    sys.argv[1:] = [str(source), str(out), *options]
    with contextlib.redirect_stdout(io.StringIO()):
        convert_pytorch.main()


def main():
    torch.manual_seed(0)
    whole = model()
    state = whole.state_dict()
    parallel = OrderedDict((f"module.{name}", value) for name, value in state.items())
    step = torch.tensor(7)
    optimizer = {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": []}
    cases = [
        ("alone", state, []),
        ("module", whole, []),
        ("lightning", {"epoch": 3, "state_dict": state, "optimizer_states": [optimizer]}, []),
        ("resemblyzer", {"step": step, "model_state": state, "optimizer_state": optimizer}, []),
        ("parallel", {"model": parallel, "args": None}, []),
        ("compiled", {"net": {f"_orig_mod.{name}": value for name, value in parallel.items()}}, []),
        ("whole", {"model": whole}, []),
        ("notes", {**state, "version": 3, "head._extra_state": b"", "lstm.names": ["a"]}, []),
        ("ema", {"ema": {"shadow": state}, "model": {name: 2 * value for name, value in state.items()}}, ["--key", "ema.shadow"]),
    ]
    refused = [
        ("optimizer", {"step": 1, "optimizer": optimizer}, [], "the file: expected tensors, or one of state_dict"),
        ("typo", {"model": state}, ["--key", "modle"], "the file: expected modle, got a dict of model"),
        ("empty", {"state_dict": {}}, [], "state_dict: expected tensors"),
    ]
    tag = torch.serialization.location_tag
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "model.pt", Path(folder) / "model.safetensors"
        for device in ["cpu", "cuda:0"]:
            for name, saved, options in cases:
                torch.serialization.location_tag = lambda storage: device
                torch.save(saved, source)
                torch.serialization.location_tag = tag
                convert(source, out, options)
                converted = load_file(out)
                assert converted.keys() == state.keys(), (name, device, list(converted))
                assert all(torch.equal(converted[own], state[own]) for own in state), (name, device)
        for name, saved, options, message in refused:
            torch.save(saved, source)
            try:
                convert(source, out, options)
                raise AssertionError(f"{name} was converted")
            except SystemExit as error:
                assert message in str(error), (name, error)
    print(f"{2 * len(cases)} files converted, {len(refused)} refused")


if __name__ == "__main__":
    main()
