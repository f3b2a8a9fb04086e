"""Shared by the recipes in this folder: the engine, the file writer, the formula to check against.

Makes: nothing by itself; the other scripts in this folder import it.
Pinned: torch==2.9.1 numpy==2.4.6 safetensors==0.8.0, Python 3.11

The kernels behind the x86 engine are FBGEMM's. Run the recipes on x86-64 with AVX512-VNNI: on a CPU
without VNNI, FBGEMM's 8-bit products saturate at 16 bits when reduce_range is false.
"""

import json
import pathlib
import warnings

import numpy as np
import torch
from safetensors.numpy import load_file

FOLDER = pathlib.Path(__file__).resolve().parent
f32 = np.float32

warnings.filterwarnings("ignore", category=DeprecationWarning)
warnings.filterwarnings("ignore", category=UserWarning)
assert torch.__version__.split("+")[0] == "2.9.1", torch.__version__
torch.backends.quantized.engine = "x86"
torch.set_num_threads(1)

_NAMES = {"float64": "F64", "float32": "F32", "int64": "I64", "int32": "I32", "int8": "I8", "uint8": "U8"}


def save(name, script, seed, tensors, **metadata):
    """Writes `<name>.safetensors`, the same bytes on every run, and reads it back to check it.

    The safetensors package writes its metadata in a different order each time, hence a writer here.
    """
    tensors = {key: np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value) for key, value in tensors.items()}
    metadata = {
        "format": "pt",
        "torch": torch.__version__.split("+")[0],
        "engine": torch.backends.quantized.engine,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "script": script,
        "seed": str(seed),
    } | {key: value if isinstance(value, str) else json.dumps(value, separators=(",", ":")) for key, value in metadata.items()}
    header, offset = {"__metadata__": metadata}, 0
    order = sorted(tensors, key=lambda key: (-tensors[key].itemsize, key))
    for key in order:
        value = tensors[key]
        end = offset + value.nbytes
        header[key] = {"dtype": _NAMES[value.dtype.name], "shape": list(value.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path = FOLDER / f"{name}.safetensors"
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for key in order:
            file.write(tensors[key].tobytes())

    back = load_file(path)
    assert back.keys() == tensors.keys()
    assert all(same_bits(back[key], tensors[key]) for key in tensors)
    size = path.stat().st_size
    print(f"{path.name}: {len(tensors)} tensors, {size} bytes")
    assert size <= 3_000_000


def same_bits(a, b):
    """Same shape and bits; any two NaN count as the same."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind != "f":
        return bool((a == b).all())
    bits = {4: np.uint32, 8: np.uint64}[a.itemsize]
    return bool(((a.reshape(-1).view(bits) == b.reshape(-1).view(bits)) | (np.isnan(a) & np.isnan(b)).reshape(-1)).all())


# What torch computes, written out. The recipes compare torch with it and report every difference.


def choose_qparams(low, high, reduce_range=False):
    """Scale (f64) and zero_point of a u8 affine activation: torch._choose_qparams_per_tensor."""
    qmax = 127 if reduce_range else 255
    low, high = min(f32(low), f32(0)), max(f32(high), f32(0))
    scale = (float(high) - float(low)) / qmax
    with np.errstate(all="ignore"):
        if f32(scale) == 0 or np.isinf(f32(1) / f32(scale)):
            scale = 0.1
    threshold = f32(6.1e-5)
    if scale < float(threshold):
        amplifier = threshold / f32(scale)
        scale = float(threshold)
        if low == 0:
            high = threshold * f32(qmax)
        elif high == 0:
            low = -threshold * f32(qmax)
        else:
            low, high = low * amplifier, high * amplifier
    from_low, from_high = -float(low) / scale, qmax - float(high) / scale
    low_error, high_error = -abs(float(low) / scale), qmax - abs(float(high) / scale)
    zero_point = from_low if low_error < high_error else from_high
    return scale, int(np.rint(min(max(zero_point, 0), qmax)))


def quantize_activation(x, scale, zero_point):
    """u8 codes as i64: one fused multiply-add, then rounding half to even, then the clamp to 0..255."""
    inverse = f32(1) / f32(scale)
    shifted = (x.astype(np.float64) * np.float64(inverse) + zero_point).astype(f32)
    return np.clip(np.rint(np.minimum(shifted, f32(2147483520))).astype(np.int64), 0, 255)


def weight_scale(weight, per_channel):
    """Symmetric qint8 scales, f32, [N] or [1]."""
    rows = weight if per_channel else weight.reshape(1, -1)
    largest = np.maximum(np.maximum(-rows.min(1), rows.max(1)), f32(0))
    return np.maximum(largest / f32(127.5), f32(2.0**-23))


def quantize_weight(weight, scale):
    """i8 codes: multiply by the f32 reciprocal, round half to even, clamp."""
    inverse = (f32(1) / scale).reshape(-1, 1)
    return np.clip(np.rint(weight * inverse), -128, 127).astype(np.int8)


def linear(x, codes, scale, bias, reduce_range):
    """The whole quantized Linear: f32 in, f32 out."""
    rows = x.reshape(-1, x.shape[-1])
    low, high = (rows.min(), rows.max()) if rows.size else (0, 0)
    x_scale, x_zero_point = choose_qparams(low, high, reduce_range)
    lhs = quantize_activation(rows, x_scale, x_zero_point) - x_zero_point
    acc = (lhs.astype(np.float64) @ codes.T.astype(np.float64)).astype(np.int64)  # exact: far below 2^53
    acc = acc.astype(np.int32).astype(f32)
    with np.errstate(over="ignore", invalid="ignore"):
        factor = f32(x_scale) * scale
        if bias is None:
            y = acc * factor
        else:  # one fused multiply-add
            y = (acc.astype(np.float64) * factor.astype(np.float64) + bias).astype(f32)
    return y.reshape(*x.shape[:-1], codes.shape[0])


# Recurrent modules: what recurrent_int8.py and recurrent_float.py share.

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent_recipes(case, seed, x=("normal", -15), state=("normal", -16), weights=0):
    """The recipes of a case's tensors, by name; the seed of tensor i is seed + i.

    The order is torch's: for each layer and direction weight_ih, weight_hh, bias_ih, bias_hh and
    weight_hr, then x, h_0, c_0. The exponents bring the gates near unit variance for an x near unit
    variance and weights 0, which is added to each weight's exponent. Every recipe carries the tensor's
    shape.
    """
    kind = case["kind"]
    cell = kind.endswith("Cell")
    gates, hidden = GATES[kind.removesuffix("Cell")], case["hidden_size"]
    state_size = case["proj_size"] or hidden
    directions = 2 if case["bidirectional"] else 1
    # relu does not bound the state: smaller weights do.
    limit = -16 if case["nonlinearity"] == "relu" else 0
    weight = lambda fan_in, base: ("normal", min(base + weights, limit) - round(np.log2(fan_in) / 2))

    tensors = {}
    for layer in range(case["num_layers"]):
        for suffix in ("", "_reverse")[:directions]:
            tail = "" if cell else f"_l{layer}{suffix}"
            width = case["input_size"] if layer == 0 else directions * state_size
            tensors[f"weight_ih{tail}"] = ([gates * hidden, width], weight(width, -15 if layer == 0 else -14))
            tensors[f"weight_hh{tail}"] = ([gates * hidden, state_size], weight(state_size, -15))
            if case["bias"]:
                tensors[f"bias_ih{tail}"] = ([gates * hidden], ("normal", -17))
                tensors[f"bias_hh{tail}"] = ([gates * hidden], ("normal", -17))
            if case["proj_size"]:
                tensors[f"weight_hr{tail}"] = ([state_size, hidden], weight(hidden, -14))
    tensors["x"] = (case["shape"], x)
    if case["initial_state"]:
        # The axes of x without steps and features: [batch] or, unbatched, [].
        batch = case["shape"][:-1] if cell else [case["shape"][0 if case["batch_first"] else 1]] if len(case["shape"]) == 3 else []
        if cell and case.get("steps"):
            batch = batch[1:]
        stacked = [] if cell else [case["num_layers"] * directions]
        tensors["h_0"] = ([*stacked, *batch, state_size], state)
        if kind.startswith("LSTM"):
            tensors["c_0"] = ([*stacked, *batch, hidden], state)
    return {
        name: {"shape": shape, "kind": values[0], "seed": seed + i, "exponent": values[1], "constant": 0}
        for i, (name, (shape, values)) in enumerate(tensors.items())
    }


def recurrent_step(case, ih, hh, h, c, sigmoid, tanh):
    """One step, from the two projections [batch, gates * hidden] and the state to the new (h, c).

    In the dtype of its arguments. sigmoid receives a slice of rows as torch has it, not a copy.
    """
    kind = case["kind"].removesuffix("Cell")
    size = ih.shape[1] // GATES[kind]
    part = lambda rows, i: rows[:, i * size:(i + 1) * size]
    both = hh + ih
    if kind == "LSTM":
        i, f, g, o = sigmoid(part(both, 0)), sigmoid(part(both, 1)), tanh(part(both, 2)), sigmoid(part(both, 3))
        c = f * c + i * g
        return o * tanh(c), c
    if kind == "GRU":
        r, z = sigmoid(part(both, 0)), sigmoid(part(both, 1))
        n = tanh(part(ih, 2) + part(hh, 2) * r)
        return (h - n) * z + n, c
    return (tanh(both) if case["nonlinearity"] == "tanh" else np.maximum(both, 0)), c
