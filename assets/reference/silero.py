#!/usr/bin/env python3
"""Probabilities of speech that Silero VAD finds in generated signals, in float.

    python silero.py MODEL DIR

scripts/fetch_silero.sh runs it: MODEL is the package's silero_vad_16k_op15.onnx, which ONNX Runtime runs. Needs
onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6 safetensors==0.8.0. Writes the weights, by that file's names, to
DIR/model.safetensors (the package's silero_vad_16k.safetensors has those of another training, with other answers),
and to DIR/reference.safetensors:

    signals        f32 [4, 163840]  10.24 s each at 16 kHz
    probabilities  f32 [4, 320]     one for each 512 samples, with the 64 before them and the state

A signal has syllables: pulses of a voice in the resonances of vowels, fricatives, and a pause after every eight.
They reach 0.3; the white noise has a standard deviation of 0.003 in the first signal to 0.14 in the last. Sums depend
on their order, so compare with a tolerance (1e-4 is ample).
"""

import math
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from safetensors.numpy import save_file

RATE, WINDOW, CONTEXT = 16000, 512, 64
WINDOWS = 320
NOISES = [0.003, 0.02, 0.06, 0.14]
VOWELS = [(730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410)]
BANDWIDTHS = (80, 100, 140)


def resonance(xs, hertz, bandwidth):
    radius = math.exp(-math.pi * bandwidth / RATE)
    a, b = 2 * radius * math.cos(2 * math.pi * hertz / RATE), -radius * radius
    ys = [0.0, 0.0]
    for x in xs:
        ys.append((1 - a - b) * x + a * ys[-1] + b * ys[-2])
    return np.array(ys[2:])


def syllable(pitch, vowel, samples, random):
    vibrato = 1 + 0.02 * np.sin(2 * math.pi * 5 * np.arange(samples) / RATE)
    pulses = np.diff(np.floor(np.cumsum(vibrato * pitch / RATE)), prepend=0)
    wave = pulses + 0.02 * random.standard_normal(samples)
    for hertz, bandwidth in zip(vowel, BANDWIDTHS):
        wave = resonance(wave, hertz, bandwidth)
    return 0.3 * wave / np.abs(wave).max() * np.sqrt(np.hanning(samples))


def signal(noise, random):
    pieces, samples, number = [np.zeros(RATE // 2)], WINDOW * WINDOWS, 0
    while sum(map(len, pieces)) < samples:
        voice = 110 if number // 8 % 2 == 0 else 190
        pitch = voice * (1.15 - 0.3 * (number % 8) / 8)
        vowel = VOWELS[random.integers(len(VOWELS))]
        pieces.append(syllable(pitch, vowel, int(RATE * random.uniform(0.12, 0.26)), random))
        if random.random() < 0.5:
            pieces.append(0.03 * np.diff(random.standard_normal(1201)) * np.hanning(1200))
        number += 1
        if number % 8 == 0:
            pieces.append(np.zeros(int(0.9 * RATE)))
    wave = np.concatenate(pieces)[:samples]
    return (wave + noise * random.standard_normal(samples)).astype(np.float32)


def main():
    model, to = sys.argv[1], Path(sys.argv[2])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(1)
    signals = np.stack([signal(noise, random) for noise in NOISES])
    padded = np.pad(signals, [(0, 0), (CONTEXT, 0)])
    state, probabilities = np.zeros((2, len(signals), 128), np.float32), []
    for start in range(0, WINDOW * WINDOWS, WINDOW):
        window = padded[:, start : start + CONTEXT + WINDOW]
        inputs = {"input": window, "state": state, "sr": np.array(RATE, np.int64)}
        found, state = session.run(None, inputs)
        probabilities.append(found[:, 0])
    probabilities = np.stack(probabilities, 1)
    speech = (probabilities > 0.5).mean(1)
    if speech.min() < 0.4 or speech.max() > 0.8:
        raise SystemExit(f"shares of speech in the signals: {speech}")
    weights = {own.name: onnx.numpy_helper.to_array(own) for own in onnx.load(model).graph.initializer}
    weights = {name: weight for name, weight in weights.items() if name.startswith("model.") and weight.ndim > 0}
    to.mkdir(parents=True)
    save_file(weights, to / "model.safetensors")
    save_file({"signals": signals, "probabilities": probabilities}, to / "reference.safetensors")


if __name__ == "__main__":
    main()
