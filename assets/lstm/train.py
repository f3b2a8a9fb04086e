#!/usr/bin/env python3
"""Trains an LSTM and a GRU of one size that read the King James Bible character
by character and predict the next one.

One command makes every data file of this folder:

    python train.py

Needs Python 3.11, Debian's package bible-kjv (4.38, with bible-kjv-text) and

    torch==2.9.1 safetensors==0.8.0 numpy==2.4.6

The text is what `bible -f gen1:1-rev22:21` prints, or the same text in the file
given by --text. Training is on the CPU. Seeds are fixed: with the same text the
split and the vocabulary come out equal; the weights depend on the processor and
the number of threads as well.

Steps: read the text; split it by chapters; then, for either network, train with
truncated backpropagation through time, keep the weights that were best on the
validation chapters, export, reload what was exported and measure it on the
held-out chapters.
"""

import argparse
import json
import math
import os
import re
import subprocess
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from torch import nn

START = time.time()
VERSE = re.compile(r"([1-3]?[A-Z][A-Za-z]*)([0-9]+):[0-9]+ (.+)")


def say(text):
    print(f"[{time.time() - START:7.1f}s] {text}", flush=True)


def arguments():
    here = os.path.dirname(os.path.abspath(__file__))
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--text", help="file with the output of `bible -f gen1:1-rev22:21` (default: run it)")
    p.add_argument("--out", default=here, help="folder for the results (default: that of this script)")
    p.add_argument("--kind", choices=["lstm", "gru", "both"], default="both")
    p.add_argument("--seed", type=int, default=20)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--embedding", type=int, default=48)
    p.add_argument("--hidden", type=int, default=448)
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--batch", type=int, default=32, help="streams the text is cut into")
    p.add_argument("--steps", type=int, default=128, help="characters between two updates")
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--dropout", type=float, default=0.05)
    p.add_argument("--weight-decay", type=float, default=0.01)
    p.add_argument("--f32", action="store_true", help="no bfloat16 products in training: slower on some processors")
    return p.parse_args()


# ---- data -----------------------------------------------------------------


def read_chapters(path):
    """Lists of verses without their numbers, one list a chapter, in the order of the book."""
    if path:
        with open(path, encoding="ascii") as f:
            text = f.read()
    else:
        command = ["bible", "-f", "gen1:1-rev22:21"]
        text = subprocess.run(
            command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, encoding="ascii"
        ).stdout
    chapters, last = [], None
    for number, line in enumerate(text.splitlines(), 1):
        match = VERSE.fullmatch(line)
        if not match:
            raise SystemExit(f"line {number}: expected a verse such as 'Ge1:1 In the ..', got {line!r}")
        book, chapter, verse = match.groups()
        if (book, chapter) != last:
            chapters.append([])
            last = book, chapter
        chapters[-1].append(" ".join(verse.split()))
    return chapters


def split(chapters):
    """Texts to train on, to choose by and to measure on.

    Every 32nd chapter is held out and every 64th is for validation. A verse of
    the training chapters that is, letter for letter, a verse of the others too
    is left out.
    """
    held = [c for i, c in enumerate(chapters) if i % 32 == 16]
    valid = [c for i, c in enumerate(chapters) if i % 64 == 0]
    fit = [c for i, c in enumerate(chapters) if i % 32 != 16 and i % 64 != 0]
    unseen = {verse for c in held + valid for verse in c}
    dropped = sum(verse in unseen for c in fit for verse in c)
    fit = [[verse for verse in c if verse not in unseen] for c in fit]
    say(f"{len(chapters)} chapters: {len(fit)} train, {len(valid)} validation, {len(held)} held out")
    say(f"{dropped} verses of the training chapters left out")
    # A verse a line and an empty line after each chapter.
    return ["".join("\n".join(c) + "\n\n" for c in part if c) for part in (fit, valid, held)]


# ---- network --------------------------------------------------------------


class LstmSteps(torch.autograd.Function):
    """The steps of nn.LSTM, given the input's share of the gates.

    nn.LSTM itself adds to the weight's gradient at every step; here that is one
    product at the end, and the products are in bfloat16 if asked for.
    """

    @staticmethod
    def forward(ctx, gates, weight, _, h, c, dtype):
        steps, batch, width = gates.shape
        size = width // 4
        weight = weight.to(dtype)
        acts = torch.empty_like(gates)
        hs = torch.empty(steps + 1, batch, size)
        cs, tanhs = torch.empty_like(hs), torch.empty(steps, batch, size)
        hs[0], cs[0] = h, c
        for t in range(steps):
            a = torch.add(gates[t], F.linear(hs[t].to(dtype), weight), out=acts[t])
            a[:, : 2 * size].sigmoid_()
            a[:, 2 * size : 3 * size].tanh_()
            a[:, 3 * size :].sigmoid_()
            i, f, g, o = a.chunk(4, 1)
            torch.mul(f, cs[t], out=cs[t + 1]).addcmul_(i, g)
            torch.tanh(cs[t + 1], out=tanhs[t])
            torch.mul(o, tanhs[t], out=hs[t + 1])
        ctx.save_for_backward(weight, acts, hs, cs, tanhs)
        return hs[1:], hs[-1].clone(), cs[-1].clone()

    @staticmethod
    def backward(ctx, grad, _, __):
        weight, acts, hs, cs, tanhs = ctx.saved_tensors
        back = weight.t().contiguous()
        dtype = weight.dtype
        d_gates = torch.empty_like(acts)
        dh, dc = torch.zeros_like(hs[0]), torch.zeros_like(hs[0])
        for t in reversed(range(len(grad))):
            i, f, g, o = acts[t].chunk(4, 1)
            di, df, dg, do = d_gates[t].chunk(4, 1)
            dh += grad[t]
            torch.mul(dh, tanhs[t], out=do)
            dc.addcmul_(dh * o, 1 - tanhs[t].square())
            torch.mul(dc, g, out=di)
            torch.mul(dc, cs[t], out=df)
            torch.mul(dc, i, out=dg)
            di.mul_(i).mul_(1 - i)
            df.mul_(f).mul_(1 - f)
            dg.mul_(1 - g.square())
            do.mul_(o).mul_(1 - o)
            dc.mul_(f)
            dh = F.linear(d_gates[t].to(dtype), back).float()
        d_weight = product(d_gates, hs[:-1], dtype)
        return d_gates, d_weight, None, None, None, None


class GruSteps(torch.autograd.Function):
    """The steps of nn.GRU, as LstmSteps; the hidden state's bias is inside a gate."""

    @staticmethod
    def forward(ctx, gates, weight, bias, h, _, dtype):
        steps, batch, width = gates.shape
        size = width // 3
        weight = weight.to(dtype)
        acts = torch.empty_like(gates)
        inner = torch.empty(steps, batch, size)
        hs = torch.empty(steps + 1, batch, size)
        hs[0] = h
        for t in range(steps):
            hh = F.linear(hs[t].to(dtype), weight) + bias
            a = acts[t]
            a.copy_(gates[t])
            a[:, : 2 * size] += hh[:, : 2 * size]
            a[:, : 2 * size].sigmoid_()
            inner[t] = hh[:, 2 * size :]
            r, z, n = a.chunk(3, 1)
            n.addcmul_(r, inner[t]).tanh_()
            torch.lerp(n, hs[t], z, out=hs[t + 1])
        ctx.save_for_backward(weight, acts, hs, inner)
        return hs[1:], hs[-1].clone(), hs[-1].clone()

    @staticmethod
    def backward(ctx, grad, _, __):
        weight, acts, hs, inner = ctx.saved_tensors
        back = weight.t().contiguous()
        dtype = weight.dtype
        size = hs.shape[2]
        d_gates, d_hh = torch.empty_like(acts), torch.empty_like(acts)
        dh = torch.zeros_like(hs[0])
        for t in reversed(range(len(grad))):
            r, z, n = acts[t].chunk(3, 1)
            dr, dz, dn = d_gates[t].chunk(3, 1)
            dh += grad[t]
            torch.mul(dh, 1 - z, out=dn).mul_(1 - n.square())
            torch.mul(dh, hs[t] - n, out=dz).mul_(z).mul_(1 - z)
            torch.mul(dn, inner[t], out=dr).mul_(r).mul_(1 - r)
            d_hh[t, :, : 2 * size] = d_gates[t, :, : 2 * size]
            torch.mul(dn, r, out=d_hh[t, :, 2 * size :])
            dh = dh * z + F.linear(d_hh[t].to(dtype), back)
        d_weight = product(d_hh, hs[:-1], dtype)
        return d_gates, d_weight, d_hh.sum((0, 1)), None, None, None


def product(a, b, dtype):
    """The sum over steps and sequences of the outer products of `a` and `b`."""
    return (a.flatten(0, 1).to(dtype).t() @ b.flatten(0, 1).to(dtype)).float()


class Network(nn.Module):
    """Embedding, one recurrent layer, a linear layer to scores of the next character."""

    def __init__(self, kind, vocab, embedding, hidden):
        super().__init__()
        self.kind = kind
        self.embedding = nn.Embedding(vocab, embedding)
        layer = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](embedding, hidden)
        setattr(self, kind, layer)
        self.decoder = nn.Linear(hidden, vocab)

    def layer(self):
        return getattr(self, self.kind)

    def forward(self, ids, state=None):
        """Scores of `ids`, [steps, batch], by PyTorch's own layers."""
        ys, state = self.layer()(self.embedding(ids), state)
        return self.decoder(ys), state

    def train_forward(self, ids, state, a):
        """The same, fast forwards and backwards; the gradient stops at `state`."""
        layer, dtype = self.layer(), torch.float32 if a.f32 else torch.bfloat16
        w, u = layer.weight_ih_l0, layer.weight_hh_l0
        bias, bias_hh = layer.bias_ih_l0, layer.bias_hh_l0
        xs = self.embedding(ids)
        is_lstm = self.kind == "lstm"
        if is_lstm:
            bias = bias + bias_hh
        gates = F.linear(xs.to(dtype), w.to(dtype)).float() + bias
        steps = LstmSteps if is_lstm else GruSteps
        ys, h, c = steps.apply(gates, u, bias_hh, *state, dtype)
        ys = F.dropout(ys, a.dropout)
        scores = F.linear(ys.to(dtype), self.decoder.weight.to(dtype)).float() + self.decoder.bias
        return scores, (h.detach(), c.detach())


@torch.no_grad()
def nats(network, ids, chunk=1024):
    """Mean negative log probability of each character but the first, in one stream."""
    total, state = 0.0, None
    for at in range(0, len(ids) - 1, chunk):
        part = ids[at : at + chunk + 1]
        scores, state = network(part[:-1, None], state)
        total += F.cross_entropy(scores[:, 0].double(), part[1:], reduction="sum").item()
    return total / (len(ids) - 1)


# ---- training -------------------------------------------------------------


def windows(ids, batch, steps, rng):
    """Inputs and targets, [steps, batch], of `batch` streams side by side, from a new start each time."""
    ids = torch.roll(ids, int(rng.integers(len(ids))))
    length = (len(ids) - 1) // batch
    ins = ids[: batch * length].view(batch, length).t()
    outs = ids[1 : batch * length + 1].view(batch, length).t()
    for at in range(0, length - steps + 1, steps):
        yield ins[at : at + steps].contiguous(), outs[at : at + steps].contiguous()


def train(network, fit, valid, a, rng, keep):
    """Trains, and gives `keep` the weights whenever they are the best so far on `valid`."""
    opt = torch.optim.AdamW(network.parameters(), lr=a.lr, weight_decay=a.weight_decay, betas=(0.9, 0.99))
    total = a.epochs * (((len(fit) - 1) // a.batch) // a.steps)
    warm = 100

    def factor(step):
        if step < warm:
            return (step + 1) / warm
        return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))

    plan = torch.optim.lr_scheduler.LambdaLR(opt, factor)
    best = math.inf
    for epoch in range(a.epochs):
        zeros = torch.zeros(a.batch, a.hidden)
        state, losses = (zeros, zeros), []
        for ins, outs in windows(fit, a.batch, a.steps, rng):
            scores, state = network.train_forward(ins, state, a)
            loss = F.cross_entropy(scores.flatten(0, 1), outs.flatten())
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            opt.step()
            plan.step()
            losses.append(loss.item())
        now = nats(network, valid)
        say(
            f"{network.kind}, epoch {epoch + 1}/{a.epochs}: train {bits(np.mean(losses)):.4f}, "
            f"validation {bits(now):.4f} bits a character"
        )
        if now < best:
            best = now
            keep(network)


def bits(nats):
    return nats / math.log(2)


# ---- export ---------------------------------------------------------------


def main():
    a = arguments()
    torch.set_num_threads(a.threads)
    os.makedirs(a.out, exist_ok=True)

    def path(name):
        return os.path.join(a.out, name)

    def write(name, text):
        with open(path(name), "w", encoding="ascii", newline="\n") as f:
            f.write(text)

    fit, valid, held = split(read_chapters(a.text))
    vocab = {ch: i for i, ch in enumerate(sorted(set(fit)))}
    encode = lambda text: torch.tensor([vocab[ch] for ch in text])
    config = {
        "vocab_size": len(vocab),
        "embedding_size": a.embedding,
        "hidden_size": a.hidden,
        "num_layers": 1,
    }
    write("heldout.txt", held)
    write("vocab.json", json.dumps(vocab) + "\n")
    write("config.json", json.dumps(config) + "\n")
    fit, valid, held = encode(fit), encode(valid), encode(held)
    say(f"{len(vocab)} characters; {len(fit)} to train on, {len(valid)} for validation, {len(held)} held out")

    for kind in ["lstm", "gru"] if a.kind == "both" else [a.kind]:
        torch.manual_seed(a.seed)
        rng = np.random.default_rng(a.seed)
        network = Network(kind, len(vocab), a.embedding, a.hidden)
        say(f"{kind}: {sum(p.numel() for p in network.parameters())} parameters")
        name = path(f"{kind}.safetensors")

        def keep(network):
            # The twin is kept in half precision, so that both together stay small.
            dtype = torch.float16 if kind == "gru" else torch.float32
            state = {k: v.detach().to(dtype).contiguous() for k, v in network.state_dict().items()}
            with open(name, "wb") as f:
                f.write(save(state, metadata={"format": "pt"}))

        train(network, fit, valid, a, rng, keep)
        network.load_state_dict(load_file(name))
        loss = nats(network, held)
        say(
            f"{kind}: {os.path.getsize(name)} bytes, held-out {bits(loss):.4f} bits a character, "
            f"perplexity {math.exp(loss):.4f}"
        )


if __name__ == "__main__":
    main()
