"""Outputs of torch's float LSTM, GRU, RNN and their cells.

Makes:   recurrent_float.safetensors
Command: python recurrent_float.py
Pinned:  torch==2.9.1 numpy==2.4.6 safetensors==0.8.0, Python 3.11

Parameters, inputs and states are not stored: generator.py makes them from the case list, a JSON
array in the metadata under "cases". One case:

    name           "000", "001", ...
    group          what the case was made for
    kind           LSTM, GRU, RNN, LSTMCell, GRUCell or RNNCell
    nonlinearity   tanh or relu for RNN and RNNCell, else null
    input_size, hidden_size, num_layers, bidirectional, batch_first, bias, proj_size
                   as in torch.nn; for the cells num_layers is 1, the flags false, proj_size 0
    shape          shape of x: [steps, batch, input], [batch, steps, input] with batch_first,
                   [steps, input] unbatched; for the cells [batch, input] or [input]
    lengths        null, or the length of each sequence of the batch: x goes through
                   pack_padded_sequence(x, lengths, enforce_sorted=False)
    initial_state  true: the state is h_0 (and c_0), false: no state is given
    tensors        {name: {"shape", "kind", "seed", "exponent", "constant"}} for the generator: the
                   parameters by torch's names (weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0,
                   weight_hr_l0, weight_ih_l0_reverse, ..., the cells without _l0), x, h_0, c_0. The
                   seed of tensor i, in this order, is 10_000_000 * SEED + 10_000 * case + i.

Tensors per case, f32, in the shapes torch returns: <name>.output, <name>.h_n and for LSTM <name>.c_n.
With lengths, output is pad_packed_sequence's, zeros after the end of a sequence, and the states are
in the order of x. For the cells h_n and c_n only.

Every case is computed a second time in f64; the metadata holds the largest difference from it under
"largest_difference".
"""

import collections

import numpy as np
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import fixture
import generator

SEED = 20_260_007
SIZES = (1, 3, 8, 16, 17, 32, 33)
KINDS = (("LSTM", None), ("GRU", None), ("RNN", "tanh"), ("RNN", "relu"))


def layouts():
    """Yields the cases' choices: what differs from a one-layer module with bias and no state."""
    for turn, (kind, nonlinearity) in enumerate(KINDS):
        of = {"kind": kind, "nonlinearity": nonlinearity}
        for i in range(6):
            yield "layers", of | {
                "num_layers": 1 + i // 2, "bidirectional": i % 2 == 1, "batch_first": (i + turn) % 3 == 1,
                "bias": (i + turn) % 4 != 2, "initial_state": (i // 2 + turn) % 2 == 0,
            }
        for i in range(2):
            yield "unbatched", of | {"batched": False, "num_layers": 1 + i, "bidirectional": i == 1, "batch_first": i == 1, "initial_state": i == 0}
        for i in range(3):
            yield "packed", of | {
                "packed": True, "num_layers": 1 + (i + turn) % 2, "bidirectional": i != 0, "batch_first": i != 1,
                "bias": i != 1, "initial_state": i != 2,
            }
    for i in range(8):
        yield "projection", {
            "kind": "LSTM", "proj": True, "num_layers": (1, 1, 2, 3, 2, 1, 2, 1)[i], "bidirectional": i % 2 == 1, "batch_first": i in (2, 5),
            "bias": i not in (1, 4), "initial_state": i % 3 == 0, "packed": i in (4, 5), "batched": i != 6,
        }
    for kind, nonlinearity in KINDS:
        for i in range(8):
            yield "cell", {"kind": kind + "Cell", "nonlinearity": nonlinearity, "bias": i % 2 == 0, "batched": i % 4 < 2, "initial_state": i < 4}


def cases():
    for i, (group, choice) in enumerate(layouts()):
        cell = group == "cell"
        inputs, hidden = SIZES[(i + i // 7) % 7], SIZES[(3 * i + 2 + i // 7) % 7]
        proj_size = 0
        if choice.get("proj"):
            hidden = (3, 8, 16, 17, 33, 32, 8, 3)[i % 8]
            proj_size = 1 + (5 * i) % (hidden - 1)
        steps, batch = 1 + (2 * i + i // 6) % 6, 1 + (i + i // 4) % 4
        lengths = None
        if choice.get("packed"):
            steps, batch = max(steps, 3), max(batch, 2) + 1
            lengths = [1 + (3 * j + i) % steps for j in range(batch)]
            lengths[i % batch] = steps  # pad_packed_sequence returns as many steps as the longest has
        batch_first = choice.get("batch_first", False)
        if cell:
            shape = [batch, inputs] if choice["batched"] else [inputs]
        elif not choice.get("batched", True):
            shape = [steps, inputs]
        else:
            shape = [batch, steps, inputs] if batch_first else [steps, batch, inputs]
        case = {
            "name": f"{i:03}", "group": group, "kind": choice["kind"], "nonlinearity": choice.get("nonlinearity"),
            "input_size": inputs, "hidden_size": hidden, "num_layers": choice.get("num_layers", 1),
            "bidirectional": choice.get("bidirectional", False), "batch_first": batch_first, "bias": choice.get("bias", True),
            "proj_size": proj_size, "shape": shape, "lengths": lengths, "initial_state": choice["initial_state"],
        }
        case["tensors"] = fixture.recurrent_recipes(case, SEED * 10_000_000 + 10_000 * i, weights=-1)
        yield case


def build(case, made):
    """The torch module of a case, with the case's parameters."""
    kind = case["kind"]
    options = {"bias": case["bias"]}
    if kind.startswith("RNN"):
        options["nonlinearity"] = case["nonlinearity"]
    if not kind.endswith("Cell"):
        options |= {key: case[key] for key in ("num_layers", "bidirectional", "batch_first")}
        if case["proj_size"]:
            options["proj_size"] = case["proj_size"]
    module = getattr(torch.nn, kind)(case["input_size"], case["hidden_size"], **options)
    parameters = {key: torch.from_numpy(value.copy()) for key, value in made.items() if key not in ("x", "h_0", "c_0")}
    assert list(parameters) == [key for key, _ in module.named_parameters()], case
    module.load_state_dict(parameters)
    return module.eval()


def forward(case, module, made):
    """torch's results by name."""
    tensor = lambda key: torch.from_numpy(made[key].copy())
    lstm = case["kind"].startswith("LSTM")
    state = None
    if case["initial_state"]:
        state = (tensor("h_0"), tensor("c_0")) if lstm else tensor("h_0")
    x = tensor("x")
    with torch.no_grad():
        if case["kind"].endswith("Cell"):
            state = module(x, state)
            return {"h_n": state[0], "c_n": state[1]} if lstm else {"h_n": state}
        if case["lengths"]:
            x = pack_padded_sequence(x, torch.tensor(case["lengths"]), batch_first=case["batch_first"], enforce_sorted=False)
        output, state = module(x, state)
        if case["lengths"]:
            output, lengths = pad_packed_sequence(output, batch_first=case["batch_first"])
            assert lengths.tolist() == case["lengths"]
    return {"output": output, "h_n": state[0], "c_n": state[1]} if lstm else {"output": output, "h_n": state}


def reference(case, made):
    """The same in f64, one sequence of the batch at a time."""
    made = {key: value.astype(np.float64) for key, value in made.items()}
    sigmoid = lambda v: 1 / (1 + np.exp(-v))
    directions, layers = 2 if case["bidirectional"] else 1, case["num_layers"]
    cell = case["kind"].endswith("Cell")
    x = made["x"]
    if cell:
        x = x[None] if x.ndim == 2 else x[None, None]
    else:
        x = x[:, None] if x.ndim == 2 else x.swapaxes(0, 1) if case["batch_first"] else x
    steps, batch = x.shape[:2]
    lengths = case["lengths"] or [steps] * batch
    state_size = case["proj_size"] or case["hidden_size"]
    start = lambda key, size: made[key].reshape(layers * directions, batch, size) if key in made else np.zeros((layers * directions, batch, size))
    h_0, c_0 = start("h_0", state_size), start("c_0", case["hidden_size"])
    output = np.zeros((steps, batch, directions * state_size))
    h_n, c_n = np.zeros_like(h_0), np.zeros_like(c_0)
    for b in range(batch):
        rows = x[:lengths[b], b]
        for layer in range(layers):
            out = np.zeros((lengths[b], directions * state_size))
            for direction in range(directions):
                tail = "" if cell else f"_l{layer}" + ("", "_reverse")[direction]
                bias = lambda key: made.get(key + tail, 0)
                at = layer * directions + direction
                h, c = h_0[at, b:b + 1], c_0[at, b:b + 1]
                for t in range(lengths[b])[::-1 if direction else 1]:
                    ih = rows[t:t + 1] @ made["weight_ih" + tail].T + bias("bias_ih")
                    hh = h @ made["weight_hh" + tail].T + bias("bias_hh")
                    h, c = fixture.recurrent_step(case, ih, hh, h, c, sigmoid, np.tanh)
                    if case["proj_size"]:
                        h = h @ made["weight_hr" + tail].T
                    out[t, direction * state_size:(direction + 1) * state_size] = h[0]
                h_n[at, b], c_n[at, b] = h[0], c[0]
            rows = out
        output[:lengths[b], b] = rows
    if cell:
        results = {"h_n": h_n[0], "c_n": c_n[0]}
    else:
        results = {"output": output.swapaxes(0, 1) if case["batch_first"] and made["x"].ndim == 3 else output, "h_n": h_n, "c_n": c_n}
    return results


def main():
    tensors, listed, differences, largest_value = {}, [], collections.defaultdict(float), 0.0
    for case in cases():
        made = {key: generator.tensor(tuple(r["shape"]), r["kind"], r["seed"], r["exponent"], r["constant"]) for key, r in case["tensors"].items()}
        results = forward(case, build(case, made), made)
        wanted = reference(case, made)
        for key, value in results.items():
            value = value.numpy()
            difference = float(np.abs(value.astype(np.float64) - wanted[key].reshape(value.shape)).max())
            assert difference < 5e-7, (case['name'], key, difference)
            differences[case["group"]] = max(differences[case["group"]], difference)
            largest_value = max(largest_value, float(np.abs(value).max()))
            tensors[f"{case['name']}.{key}"] = value
        if case["lengths"]:
            output = tensors[f"{case['name']}.output"]
            output = output if case["batch_first"] else output.swapaxes(0, 1)
            assert all((output[b, n:] == 0).all() for b, n in enumerate(case["lengths"]))
        listed.append(case)

    largest = {key: float(f"{value:.2e}") for key, value in differences.items()}
    fixture.save("recurrent_float", "recurrent_float.py", SEED, tensors, cases=listed, largest_difference=largest)
    print(len(listed), "cases; largest difference from f64", largest, "; largest value", largest_value)
    print("by kind", dict(collections.Counter((c["kind"], c["nonlinearity"]) for c in listed)))
    print("by group", dict(collections.Counter(c["group"] for c in listed)))


if __name__ == "__main__":
    main()
