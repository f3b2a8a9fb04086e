#!/usr/bin/env python3
"""A small ViT that reads handwritten digits, and the logits that transformers computes.

    python vit.py

Needs torch==2.9.1 transformers==4.57.6 safetensors==0.8.0 scikit-learn==1.7.2. Images are those of
scikit-learn's `load_digits`: a part of "Optical Recognition of Handwritten Digits" by E. Alpaydin and
C. Kaynak, UCI Machine Learning Repository, CC BY 4.0. Trains on the first 1,297 for about a minute.

Writes vit.safetensors: f16 weights under transformers' names; of the last 500 `images` u8 [500, 8, 8] with
values up to 16, `labels` u8 [500], and `logits` f32 [500, 10] of the rounded weights. Seeds are fixed; the
weights depend on the processor and the number of threads as well.
"""

import torch
import torch.nn.functional as F
from pathlib import Path
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from transformers import ViTConfig, ViTForImageClassification

OUT = Path(__file__).with_name("vit.safetensors")
HELD_OUT, EPOCHS, BATCH = 500, 80, 64
CONFIG = ViTConfig(
    image_size=8,
    patch_size=2,
    num_channels=1,
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=2,
    intermediate_size=128,
    num_labels=10,
)


def pixels(images):
    """From values up to 16 to [count, 1, 8, 8] around 0."""
    return (images.float() / 8 - 1).unsqueeze(1)


def moved(images):
    """Each image moved by up to one pixel."""
    padded = F.pad(images, (1, 1, 1, 1), value=-1)
    starts = torch.randint(0, 3, (len(images), 2)).tolist()
    return torch.stack([image[:, y : y + 8, x : x + 8] for image, (y, x) in zip(padded, starts)])


def train(model, images, labels):
    steps = EPOCHS * (len(images) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(images)).split(BATCH):
            if len(chosen) == BATCH:
                logits = model(moved(images[chosen])).logits
                F.cross_entropy(logits, labels[chosen], label_smoothing=0.1).backward()
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    images, labels = torch.from_numpy(digits.images).to(torch.uint8), torch.from_numpy(digits.target)
    model = ViTForImageClassification(CONFIG)
    train(model, pixels(images[:-HELD_OUT]), labels[:-HELD_OUT])
    weights = {name: tensor.half().contiguous() for name, tensor in model.eval().state_dict().items()}
    model.load_state_dict(weights)
    images, labels = images[-HELD_OUT:], labels[-HELD_OUT:]
    with torch.no_grad():
        logits = model(pixels(images)).logits
    right = (logits.argmax(1) == labels).float().mean()
    print(f"{sum(w.numel() for w in weights.values()):,} parameters, {right:.1%} of {HELD_OUT} right")
    save_file(weights | {"images": images, "labels": labels.to(torch.uint8), "logits": logits}, OUT)


if __name__ == "__main__":
    main()
