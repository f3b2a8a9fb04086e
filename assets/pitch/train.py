"""Trains the pitch network of `cargo run --example pitch` on tones that it makes.

Makes:   model.safetensors
Command: python train.py
Pinned:  torch==2.15.0 safetensors==0.8.0 numpy==2.4.6

A frame is 1,024 samples at 16 kHz, less its mean, divided by its deviation. Four convolutions with
ReLU and a linear layer give 128 logits, of pitches 50 cents apart from 65.41 Hz (C2) on. A tone has up
to 20 harmonics of random strengths and phases, a slow change of its pitch, and noise.
"""

import pathlib

import torch
from safetensors.torch import save_file
from torch import nn

RATE, FRAME, BINS, LOWEST = 16_000, 1024, 128, 65.406
STEPS, BATCH, SEED = 3_000, 96, 20_261_129


class Pitch(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(1, 32, 64, stride=4, padding=30)
        self.conv2 = nn.Conv1d(32, 64, 16, stride=4, padding=6)
        self.conv3 = nn.Conv1d(64, 96, 8, stride=4, padding=2)
        self.conv4 = nn.Conv1d(96, 96, 4, stride=2, padding=1)
        self.head = nn.Linear(96 * 8, BINS)

    def forward(self, xs):
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            xs = conv(xs).relu()
        return self.head(xs.flatten(1))


def tones(count, generator):
    """Frames and their pitches in bins."""
    rand = lambda *shape: torch.rand(*shape, generator=generator)
    bins = rand(count, 1) * (BINS - 1)
    hertz = LOWEST * 2 ** (bins / 24)
    time = (torch.arange(FRAME) - FRAME / 2) / RATE
    slope = 1 + 0.2 * (rand(count, 1) - 0.5) * time
    phase = 2 * torch.pi * hertz * slope * time
    harmonics = torch.arange(1, 21).view(1, -1)
    strengths = rand(count, 20) * harmonics ** -(2 * rand(count, 1)) * (harmonics <= 1 + 20 * rand(count, 1))
    strengths = strengths * (harmonics * hertz < 7_500)
    strengths[:, 0] += 0.05
    odd = (rand(count, 1) < 0.15) & (harmonics % 2 == 0)
    strengths = strengths * ~odd
    phases = 2 * torch.pi * rand(count, 20)
    # Harmonic h is the h-th power of the first.
    frames, real, imaginary = torch.zeros(count, FRAME), phase.cos(), phase.sin()
    cos, sin = real, imaginary
    for h in range(20):
        strength, shift = strengths[:, h : h + 1], phases[:, h : h + 1]
        frames += strength * (shift.cos() * imaginary + shift.sin() * real)
        real, imaginary = real * cos - imaginary * sin, real * sin + imaginary * cos
    frames = frames / frames.std(1, keepdim=True)
    noise = torch.randn(count, FRAME, generator=generator)
    frames = frames + noise * 10 ** -(0.2 + 1.8 * rand(count, 1))
    frames = frames - frames.mean(1, keepdim=True)
    return frames / frames.std(1, keepdim=True), bins


def pitches(logits):
    """The mean of the bins about the greatest, in bins."""
    best = logits.argmax(1, keepdim=True)
    near = (best + torch.arange(-3, 4)).clamp(0, BINS - 1)
    weights = logits.gather(1, near).sigmoid()
    return (weights * near).sum(1) / weights.sum(1)


def main():
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    model = Pitch()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=STEPS)
    loss_of = nn.BCEWithLogitsLoss()
    for step in range(STEPS):
        frames, bins = tones(BATCH, generator)
        target = torch.exp(-((torch.arange(BINS) - bins) ** 2) / 2)
        loss = loss_of(model(frames.unsqueeze(1)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 250 == 249:
            with torch.no_grad():
                frames, bins = tones(500, generator)
                error = (pitches(model(frames.unsqueeze(1))) - bins[:, 0]).abs() * 50
                print(step + 1, f"loss {loss:.4f}, within 50 cents {(error < 50).float().mean():.3f}, median {error.median():.1f}", flush=True)
    path = pathlib.Path(__file__).with_name("model.safetensors")
    save_file({name: tensor.half() for name, tensor in model.state_dict().items()}, path)


if __name__ == "__main__":
    main()
