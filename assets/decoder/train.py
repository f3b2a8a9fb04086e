#!/usr/bin/env python3
"""Trains a small Llama that reads the King James Bible and continues it.

One command makes every data file of this folder:

    python train.py

Needs Python 3.11, Debian's package bible-kjv (4.38, with bible-kjv-text) and

    torch==2.9.1 transformers==4.57.6 tokenizers==0.22.2 safetensors==0.8.0 numpy==2.4.6

The text and its split are those of ../lstm/train.py, and ../lstm/heldout.txt is
what it is measured on. Training is on the CPU. Seeds are fixed; the weights
depend on the processor and the number of threads as well.

Steps: read and split the text; learn the tokenizer (byte-level BPE); train with
transformers' LlamaForCausalLM, keep the weights that were best on the validation
chapters, round them to f16, reload them and measure them on the held-out
chapters.
"""

import argparse
import importlib.util
import json
import math
import os

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
END = "<|endoftext|>"


def lstm():
    """The script beside the LSTM, for its text and its split."""
    path = os.path.join(HERE, "../lstm/train.py")
    spec = importlib.util.spec_from_file_location("lstm_train", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--text", help="file with the output of `bible -f gen1:1-rev22:21` (default: run it)")
    p.add_argument("--out", default=HERE, help="folder for the results (default: that of this script)")
    p.add_argument("--seed", type=int, default=20)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--vocab", type=int, default=1024)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--batch", type=int, default=16, help="windows of an update")
    p.add_argument("--context", type=int, default=256, help="tokens of a window")
    p.add_argument("--lr", type=float, default=3e-3)
    return p.parse_args()


def learn(text, vocab):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def ids_of(tokenizer, text):
    """Each chapter between two ends."""
    end = tokenizer.token_to_id(END)
    ids = [end]
    for chapter in text.split("\n\n"):
        if chapter:
            ids += tokenizer.encode(chapter + "\n").ids + [end]
    return torch.tensor(ids)


@torch.no_grad()
def nats(network, ids, context):
    """Sum of negative log probabilities of all tokens but the first, in windows side by side."""
    total = 0.0
    for at in range(0, len(ids) - 1, context):
        part = ids[at : at + context + 1]
        scores = network(part[None, :-1]).logits[0]
        total += F.cross_entropy(scores.double(), part[1:], reduction="sum").item()
    return total


def train(network, fit, valid, a, say, keep):
    opt = torch.optim.AdamW(network.parameters(), lr=a.lr, weight_decay=0.05, betas=(0.9, 0.95))
    rng = np.random.default_rng(a.seed)
    windows = (len(fit) - 1) // a.context
    total, step, best = a.epochs * (windows // a.batch), 0, math.inf
    for epoch in range(a.epochs):
        start = int(rng.integers(a.context))
        order, losses = rng.permutation((len(fit) - 1 - start) // a.context), []
        for at in range(0, len(order) - a.batch + 1, a.batch):
            warm = min(1.0, (step + 1) / 100)
            cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, step / total)))
            for group in opt.param_groups:
                group["lr"] = a.lr * warm * (0.02 + 0.98 * cosine)
            rows = torch.stack(
                [fit[start + i * a.context :][: a.context + 1] for i in order[at : at + a.batch]]
            )
            with torch.autocast("cpu", dtype=torch.bfloat16):
                scores = network(rows[:, :-1]).logits
            loss = F.cross_entropy(scores.float().flatten(0, 1), rows[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            opt.step()
            step += 1
            losses.append(loss.item())
        now = nats(network, valid, a.context) / (len(valid) - 1)
        say(f"epoch {epoch + 1}/{a.epochs}: train {np.mean(losses):.4f}, validation {now:.4f} nats a token")
        if now < best:
            best = now
            keep(network)


def main():
    a = arguments()
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    bible = lstm()
    fit, valid, held = bible.split(bible.read_chapters(a.text))
    tokenizer = learn(fit, a.vocab)
    os.makedirs(a.out, exist_ok=True)
    with open(os.path.join(a.out, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(json.loads(tokenizer.to_str()), f, ensure_ascii=False)
        f.write("\n")
    fit, valid, held_ids = (ids_of(tokenizer, text) for text in (fit, valid, held))
    bible.say(f"{len(fit)} tokens to train on, {len(held_ids)} held out")

    end = tokenizer.token_to_id(END)
    config = LlamaConfig(
        vocab_size=a.vocab,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=a.layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=end,
        eos_token_id=end,
    )
    network = LlamaForCausalLM(config)
    bible.say(f"{sum(p.numel() for p in network.parameters())} parameters")
    path = os.path.join(a.out, "model.safetensors")

    def keep(network):
        tensors = network.state_dict()
        tensors.pop("lm_head.weight")
        save_file({k: v.half().contiguous() for k, v in tensors.items()}, path, {"format": "pt"})

    train(network, fit, valid, a, bible.say, keep)
    config.dtype = "float16"
    config.architectures = ["LlamaForCausalLM"]
    with open(os.path.join(a.out, "config.json"), "w") as f:
        json.dump(config.to_diff_dict(), f, sort_keys=True)
        f.write("\n")

    tensors = {k: v.float() for k, v in load_file(path).items()}
    network.load_state_dict(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]})
    total = nats(network, held_ids, a.context)
    bible.say(
        f"held out: {total / (len(held_ids) - 1):.4f} nats a token, perplexity "
        f"{math.exp(total / (len(held_ids) - 1)):.3f}, {total / math.log(2) / len(held):.4f} bits a character"
    )


if __name__ == "__main__":
    main()
