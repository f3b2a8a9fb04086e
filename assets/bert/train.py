#!/usr/bin/env python3
"""Trains a small BERT that reads the one-line description of a Debian package
and names the section of the archive the package belongs to.

One command makes every data file of this folder:

    python train.py

Needs Python 3.11 and

    torch==2.9.1 transformers==5.23.0 tokenizers==0.23.3
    safetensors==0.8.0 scikit-learn==1.9.1 numpy==2.4.6

The package index is what `apt-cache dumpavail` prints, or the same text in the
file given by --dumpavail. Training is on the CPU. Seeds are fixed: with the
same index and versions the split and the tokenizer come out equal; the
weights depend on the processor and the number of threads as well.

Steps: read and clean the index; split; train the WordPiece vocabulary; fit the
tf-idf baseline; predict every training text with tf-idf models that did not see
it (soft targets); pre-train on masked tokens; train the classifier in two
rounds; export; reload what was exported and measure it on the held-out texts.
"""

import argparse
import collections
import copy
import heapq
import json
import math
import os
import subprocess
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline, make_union
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, UNK, CLS, SEP, MASK = range(5)
START = time.time()


def say(text):
    print(f"[{time.time() - START:7.1f}s] {text}", flush=True)


def arguments():
    here = os.path.dirname(os.path.abspath(__file__))
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--dumpavail", help="file with the output of `apt-cache dumpavail` (default: run it)")
    p.add_argument("--out", default=here, help="folder for the results (default: that of this script)")
    p.add_argument("--seed", type=int, default=20)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--heldout", type=int, default=3200, help="texts kept for the final measurement")
    p.add_argument("--valid", type=int, default=2000, help="texts kept for the choice of the epoch")
    p.add_argument("--vocab", type=int, default=4800)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--mlm-epochs", type=int, default=3)
    p.add_argument("--epochs", type=int, default=8)
    p.add_argument("--more-epochs", type=int, default=5, help="second round, from the best epoch of the first")
    p.add_argument("--mlm-lr", type=float, default=2e-3)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--more-lr", type=float, default=6e-4)
    p.add_argument("--dropout", type=float, default=0.1)
    p.add_argument("--weight-decay", type=float, default=0.05)
    p.add_argument("--smoothing", type=float, default=0.1, help="label smoothing")
    p.add_argument("--token-drop", type=float, default=0.1, help="share of input tokens masked while classifying")
    p.add_argument("--f32", action="store_true", help="no bfloat16 products in training: slower on some processors")
    p.add_argument("--distill", type=float, default=0.5, help="weight of the soft targets; 0 fits none")
    return p.parse_args()


# ---- data -----------------------------------------------------------------


def read_index(path):
    """Yields (section, one-line description) for each package of the index."""
    if path:
        with open(path, encoding="utf-8") as f:
            dump = f.read()
    else:
        dump = subprocess.run(
            ["apt-cache", "dumpavail"], check=True, stdout=subprocess.PIPE, encoding="utf-8"
        ).stdout
    for stanza in dump.split("\n\n"):
        field = {}
        for line in stanza.split("\n"):
            if line and not line[0].isspace():
                name, _, value = line.partition(":")
                field[name] = value.strip()
        # Packages of other archives, or installed by hand, lack one of these.
        if not field.get("Filename", "").startswith("pool/") or "Description-md5" not in field:
            continue
        text = field.get("Description-en") or field.get("Description")
        section = field.get("Section", "").rsplit("/", 1)[-1]
        if text and section:
            yield section, " ".join(text.split())


def load_texts(path, at_least=300, longest=160):
    """Distinct texts with one section each, in an order that the index's order does not change."""
    votes = collections.defaultdict(collections.Counter)
    spelling = {}
    for section, text in read_index(path):
        if len(text) > longest:
            continue
        key = text.casefold()
        votes[key][section] += 1
        spelling[key] = min(text, spelling.get(key, text))
    best = {k: min(v, key=lambda s: (-v[s], s)) for k, v in votes.items()}
    size = collections.Counter(best.values())
    labels = sorted(s for s, n in size.items() if n >= at_least)
    rank = {s: i for i, s in enumerate(labels)}
    rows = [(spelling[k], rank[best[k]]) for k in sorted(best) if best[k] in rank]
    return [t for t, _ in rows], np.array([y for _, y in rows]), labels


def stratified(y, count, rng):
    """Indices of about `count` members, each class with its share, and the indices of the rest."""
    taken = []
    for c in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == c))
        taken.extend(members[: max(1, round(count * len(members) / len(y)))])
    taken = np.sort(np.array(taken))
    return taken, np.setdiff1d(np.arange(len(y)), taken)


# ---- tokenizer ------------------------------------------------------------


def word_pieces(texts, size, split):
    """A WordPiece vocabulary by merging the most frequent pair again and again.

    Done here and not by the library's trainer so that ties are broken by
    spelling and two runs agree.
    """
    words = collections.Counter(w for t in texts for w in split(t))
    letters = collections.Counter()
    for w, n in words.items():
        for ch in w:
            letters[ch] += n
    known = {ch for ch, n in letters.items() if n >= 10}
    spelled, count = [], []
    for w in sorted(words):
        if all(ch in known for ch in w):
            spelled.append([w[0]] + ["##" + ch for ch in w[1:]])
            count.append(words[w])
    vocab = {p for s in spelled for p in s}
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, s in enumerate(spelled):
        for pair in zip(s, s[1:]):
            pairs[pair] += count[i]
            where[pair].add(i)
    heap = [(-n, pair) for pair, n in pairs.items()]
    heapq.heapify(heap)
    while heap and len(vocab) + len(SPECIAL) < size:
        n, pair = heapq.heappop(heap)
        if pairs[pair] != -n or n == 0:
            continue  # an old count; the current one is in the heap as well
        left, right = pair
        joined = left + right[2:]
        vocab.add(joined)
        changed = set()
        for i in sorted(where.pop(pair)):
            s = spelled[i]
            for p in zip(s, s[1:]):
                pairs[p] -= count[i]
                changed.add(p)
            new, j = [], 0
            while j < len(s):
                if j + 1 < len(s) and s[j] == left and s[j + 1] == right:
                    new.append(joined)
                    j += 2
                else:
                    new.append(s[j])
                    j += 1
            spelled[i] = new
            for p in zip(new, new[1:]):
                pairs[p] += count[i]
                where[p].add(i)
                changed.add(p)
        for p in changed:
            if pairs[p] > 0:
                heapq.heappush(heap, (-pairs[p], p))
    return SPECIAL + sorted(vocab)


def make_tokenizer(texts, size):
    normalizer = normalizers.BertNormalizer(lowercase=True)
    splitter = pre_tokenizers.BertPreTokenizer()

    def split(text):
        return [w for w, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))]

    vocab = {piece: i for i, piece in enumerate(word_pieces(texts, size, split))}
    tok = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tok.normalizer = normalizer
    tok.pre_tokenizer = splitter
    tok.add_special_tokens(SPECIAL)
    tok.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    tok.decoder = decoders.WordPiece(prefix="##")
    return tok


# ---- batches --------------------------------------------------------------


def pad(rows):
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), PAD)
    for i, r in enumerate(rows):
        ids[i, : len(r)] = torch.tensor(r)
    return ids


def batches(ids, size, rng):
    """Index lists in random order, the texts of one batch of about one length."""
    order = rng.permutation(len(ids))
    chunk = size * 50
    out = []
    for at in range(0, len(order), chunk):
        part = sorted(order[at : at + chunk], key=lambda i: len(ids[i]))
        out.extend(part[b : b + size] for b in range(0, len(part), size))
    rng.shuffle(out)
    return out


def ordinary(ids):
    return ids > MASK


def optimizer(model, lr, decay, steps, warm):
    flat = [p for p in model.parameters() if p.dim() < 2]
    deep = [p for p in model.parameters() if p.dim() >= 2]
    opt = torch.optim.AdamW(
        [{"params": deep, "weight_decay": decay}, {"params": flat, "weight_decay": 0.0}],
        lr=lr, betas=(0.9, 0.98), eps=1e-6,
    )

    def factor(step):
        if step < warm:
            return (step + 1) / warm
        return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))

    return opt, torch.optim.lr_scheduler.LambdaLR(opt, factor)


# ---- training -------------------------------------------------------------


def mixed(a):
    """Products in bfloat16 while training; the weights stay f32."""
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=not a.f32)


def pretrain(model, ids, a, rng):
    steps = a.mlm_epochs * math.ceil(len(ids) / a.batch)
    opt, plan = optimizer(model, a.mlm_lr, a.weight_decay, steps, steps // 20 + 1)
    model.train()
    for epoch in range(a.mlm_epochs):
        total = seen = 0.0
        for batch in batches(ids, a.batch, rng):
            x = pad([ids[i] for i in batch])
            attend = (x != PAD).long()
            chosen = (torch.rand(x.shape) < 0.2) & ordinary(x)
            if not chosen.any():
                continue
            kind = torch.rand(x.shape)
            shown = torch.where(chosen & (kind < 0.8), MASK, x)
            other = torch.randint(len(SPECIAL), model.config.vocab_size, x.shape)
            shown = torch.where(chosen & (kind >= 0.9), other, shown)
            with mixed(a):
                hidden = model.bert(shown, attention_mask=attend).last_hidden_state
                guess = model.cls(hidden[chosen])
            loss = F.cross_entropy(guess.float(), x[chosen])
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            plan.step()
            total += loss.item() * len(batch)
            seen += len(batch)
        say(f"masked tokens, epoch {epoch + 1}/{a.mlm_epochs}: loss {total / seen:.3f}")


def predict(model, ids, size=64):
    model.eval()
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    out = torch.empty(len(ids), model.config.num_labels)
    with torch.no_grad():
        for at in range(0, len(order), size):
            part = order[at : at + size]
            x = pad([ids[i] for i in part])
            out[part] = model(x, attention_mask=(x != PAD).long()).logits
    return out


def accuracy(model, ids, y):
    return (predict(model, ids).argmax(1).numpy() == y).mean()


def train(model, ids, y, soft, valid_ids, valid_y, epochs, lr, a, rng):
    """Trains and leaves in `model` the weights that were best on the validation texts."""
    steps = epochs * math.ceil(len(ids) / a.batch)
    opt, plan = optimizer(model, lr, a.weight_decay, steps, steps // 20 + 1)
    target = torch.from_numpy(y)
    best, kept = accuracy(model, valid_ids, valid_y), copy.deepcopy(model.state_dict())
    for epoch in range(epochs):
        model.train()
        total = right = 0.0
        for batch in batches(ids, a.batch, rng):
            x = pad([ids[i] for i in batch])
            attend = (x != PAD).long()
            hide = (torch.rand(x.shape) < a.token_drop) & ordinary(x)
            with mixed(a):
                logits = model(torch.where(hide, MASK, x), attention_mask=attend).logits.float()
            t = target[batch]
            loss = F.cross_entropy(logits, t, label_smoothing=a.smoothing)
            if soft is not None:
                loss = (1 - a.distill) * loss + a.distill * F.cross_entropy(logits, soft[batch])
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            plan.step()
            total += loss.item() * len(batch)
            right += (logits.argmax(1) == t).sum().item()
        acc = accuracy(model, valid_ids, valid_y)
        say(
            f"classifier, epoch {epoch + 1}/{epochs}: loss {total / len(ids):.3f}, "
            f"train {right / len(ids):.4f}, validation {acc:.4f}"
        )
        if acc > best:
            best, kept = acc, copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)
    return best


# ---- tf-idf ---------------------------------------------------------------


def baseline_model():
    return make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
        LogisticRegression(C=10.0, max_iter=200),
    )


def teacher_model(seed):
    features = make_union(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2),
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, min_df=3),
    )
    return make_pipeline(features, SGDClassifier(loss="log_loss", alpha=1e-6, max_iter=10, tol=None, random_state=seed))


def soft_targets(texts, y, classes, seed):
    """Class probabilities for each text from a model fitted without that text."""
    out = np.zeros((len(texts), classes), dtype=np.float32)
    folds = StratifiedKFold(4, shuffle=True, random_state=seed)
    for n, (fit, rest) in enumerate(folds.split(texts, y)):
        m = teacher_model(seed).fit([texts[i] for i in fit], y[fit])
        out[rest] = m.predict_proba([texts[i] for i in rest])
        say(f"soft targets, part {n + 1}: accuracy {(out[rest].argmax(1) == y[rest]).mean():.4f}")
    return torch.from_numpy(out)


# ---- export ---------------------------------------------------------------


def config_of(c, labels):
    return {
        "architectures": ["BertForSequenceClassification"],
        "attention_probs_dropout_prob": c.attention_probs_dropout_prob,
        "classifier_dropout": None,
        "hidden_act": "gelu",
        "hidden_dropout_prob": c.hidden_dropout_prob,
        "hidden_size": c.hidden_size,
        "id2label": {str(i): s for i, s in enumerate(labels)},
        "initializer_range": c.initializer_range,
        "intermediate_size": c.intermediate_size,
        "label2id": {s: i for i, s in enumerate(labels)},
        "layer_norm_eps": c.layer_norm_eps,
        "max_position_embeddings": c.max_position_embeddings,
        "model_type": "bert",
        "num_attention_heads": c.num_attention_heads,
        "num_hidden_layers": c.num_hidden_layers,
        "pad_token_id": PAD,
        "position_embedding_type": "absolute",
        "problem_type": "single_label_classification",
        "torch_dtype": "float32",
        "type_vocab_size": c.type_vocab_size,
        "use_cache": True,
        "vocab_size": c.vocab_size,
    }


def main():
    a = arguments()
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    rng = np.random.default_rng(a.seed)
    os.makedirs(a.out, exist_ok=True)

    def path(name):
        return os.path.join(a.out, name)

    texts, y, labels = load_texts(a.dumpavail)
    held, rest = stratified(y, a.heldout, rng)
    valid, fit = stratified(y[rest], a.valid, rng)
    valid, fit = rest[valid], rest[fit]
    pick = lambda index: ([texts[i] for i in index], y[index])
    (held_t, held_y), (valid_t, valid_y), (fit_t, fit_y) = pick(held), pick(valid), pick(fit)
    assert not {t.casefold() for t in held_t} & {t.casefold() for t in fit_t + valid_t}
    say(f"{len(texts)} texts, {len(labels)} sections: {len(fit)} train, {len(valid)} validation, {len(held)} held out")
    with open(path("heldout.tsv"), "w", encoding="utf-8", newline="\n") as f:
        f.writelines(f"{labels[c]}\t{t}\n" for t, c in zip(held_t, held_y))

    tok = make_tokenizer(fit_t, a.vocab)
    with open(path("tokenizer.json"), "w", encoding="utf-8", newline="\n") as f:
        json.dump(json.loads(tok.to_str()), f, ensure_ascii=False)
        f.write("\n")
    config = BertConfig(
        vocab_size=tok.get_vocab_size(), hidden_size=128, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=512, max_position_embeddings=64, hidden_act="gelu",
        hidden_dropout_prob=a.dropout, attention_probs_dropout_prob=a.dropout,
        pad_token_id=PAD, num_labels=len(labels),
    )

    def encode(batch):
        most = config.max_position_embeddings
        ids = [e.ids for e in tok.encode_batch(batch)]
        return [r if len(r) <= most else r[: most - 1] + [SEP] for r in ids]

    held_ids, valid_ids, fit_ids = encode(held_t), encode(valid_t), encode(fit_t)
    assert max(len(e.ids) for e in tok.encode_batch(held_t)) <= config.max_position_embeddings
    say(f"{config.vocab_size} word pieces, {np.mean([len(r) for r in fit_ids]):.1f} a text")

    base = baseline_model().fit(fit_t, fit_y)
    base_acc = (base.predict(held_t) == held_y).mean()
    say(f"baseline (tf-idf, logistic regression): held-out accuracy {base_acc:.4f}")
    del base
    soft = soft_targets(fit_t, fit_y, len(labels), a.seed) if a.distill > 0 else None

    model = BertForSequenceClassification(config)
    if a.mlm_epochs:
        masked = BertForMaskedLM(config)
        say(f"{sum(p.numel() for p in model.parameters())} parameters")
        pretrain(masked, fit_ids, a, rng)
        model.bert.load_state_dict(masked.bert.state_dict(), strict=False)
    best = train(model, fit_ids, fit_y, soft, valid_ids, valid_y, a.epochs, a.lr, a, rng)
    if a.more_epochs:
        torch.manual_seed(a.seed + 1)
        rng = np.random.default_rng(a.seed + 1)
        best = train(model, fit_ids, fit_y, soft, valid_ids, valid_y, a.more_epochs, a.more_lr, a, rng)
    say(f"best validation accuracy {best:.4f}")

    state = {k: v.detach().float().contiguous() for k, v in model.state_dict().items()}
    with open(path("model.safetensors"), "wb") as f:
        f.write(save(state, metadata={"format": "pt"}))
    with open(path("config.json"), "w", encoding="utf-8", newline="\n") as f:
        json.dump(config_of(config, labels), f)
        f.write("\n")

    again = BertForSequenceClassification.from_pretrained(a.out)
    acc = accuracy(again, held_ids, held_y)
    for name in ["config.json", "heldout.tsv", "model.safetensors", "tokenizer.json"]:
        say(f"{name}: {os.path.getsize(path(name))} bytes")
    say(f"held-out accuracy {acc:.4f} (baseline {base_acc:.4f})")


if __name__ == "__main__":
    main()
