"""Decoders of text, from ids to the scores of the next token: a prompt, and a token after others; and texts that they
write.

TinyLlama's sizes with random weights, and SmolLM2-135M-Instruct, whose weights and texts are real.
Ours and the rivals make 4 bits of the same floats. `SmolLM2 text` checks what they compute: all
read the model's own file, of 4 bits, and the same text, and are held against its floats.
"""

import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from common import SIZE, Case, agree, sizes, sqnr

ROOT = Path(__file__).parents[2]

TINYLLAMA = {
    "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 4096,
}

FORM = "TinyLlama or SmolLM2 and a case, as in SmolLM2 prefill 128, TinyLlama 4 x token 128 or SmolLM2 write code"

LONGEST = 4096

CASES = ("prefill 16", "prefill 128", "token 128", "token 2048", "4 x token 128", "16 x token 128")

# A text that its continuation repeats, and one that none does.
TEXTS = ("write code", "write prose")

ROWS = [
    *(f"TinyLlama {case}" for case in ("prefill 512", *CASES)),
    *(f"SmolLM2 {case}" for case in ("text", "prefill 2048", *CASES, *TEXTS)),
]


def parse(name):
    if name in ("SmolLM2 text", *(f"SmolLM2 {text}" for text in TEXTS)):
        return "SmolLM2", name, None
    pattern = rf"(TinyLlama|SmolLM2) ((?:[1-9]\d? x )?)(prefill|token) {SIZE}"
    model, several, kind, tokens = sizes(name, pattern, FORM)
    sequences = int(several.split()[0]) if several else 1
    before, ids = (0, tokens) if kind == "prefill" else (tokens, 1)
    if before + ids > LONGEST:
        raise ValueError(f"expected at most {LONGEST} tokens of a sequence, got {name!r}")
    return model, name, (sequences, before, ids)


class Model:
    """One decoder in float, in the folder `float` below `folder`, and its files of the rivals."""

    def __init__(self, name, folder):
        self.folder = os.path.join(folder, "float")
        self.float, self.ids, self.texts = MODELS[name]()
        self.float.save_pretrained(self.folder, max_shard_size="100GB")
        # A format of superblocks has 256 inputs each.
        whole = self.float.config.hidden_size % 256 == 0
        formats = ("Q4_0", "Q4_K", "Q8_0") if whole else ("Q4_0", "Q8_0")
        self.facts = {
            "group": "decoder", "folder": self.folder, "saved": os.path.join(folder, "ours"),
            "every": False, "write": 0,
            "files": {name: os.path.join(folder, f"{name}.gguf") for name in formats},
        }
        # The weights of the output projection, and of all others that multiply.
        layers = [layer for layer in self.float.modules() if isinstance(layer, torch.nn.Linear)]
        self.head = self.float.lm_head.weight.numel()
        self.others = sum(layer.weight.numel() for layer in layers) - self.head


def tinyllama():
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**TINYLLAMA)).eval()
    return model, torch.randint(0, TINYLLAMA["vocab_size"], (40_000,)), {}


def smollm2():
    file = smollm2_file()
    paths = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(**paths, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(**paths)
    prose, code = (
        tokenizer((ROOT / path).read_text(), return_tensors="pt").input_ids[0]
        for path in ("assets/lstm/heldout.txt", "examples/quickstart.rs")
    )
    # The beginning of a program, and of its copy.
    code = torch.cat([code[:256], code[:32]])
    return model, prose, dict(zip(TEXTS, (code, prose[:128])))


MODELS = {"TinyLlama": tinyllama, "SmolLM2": smollm2}


def smollm2_file():
    folder = ROOT / "target/peers/smollm2"
    fetch = [ROOT / "scripts/fetch_smollm2.sh", folder]
    subprocess.run(fetch, check=True, stdout=subprocess.DEVNULL)
    (file,) = folder.glob("*.gguf")
    return file


class Decoder(Case):
    group = "decoder"
    # Of scores less their mean, which no probability depends on. Any 4 bits of these weights are
    # far from float; `Text` has no such loss.
    int8_decibels, int4_decibels = 10, 3

    def __init__(self, model, name, shape):
        self.name, self.model, self.facts = name, model, model.facts
        self.sequences, self.before, self.tokens = shape
        taken = model.ids[: self.sequences * (self.before + self.tokens)]
        self.ids = taken.view(self.sequences, -1)
        self.scores = self.of_float()

    def of_float(self):
        return self.model.float(self.ids, logits_to_keep=1).logits

    @property
    def operations(self):
        scored = self.tokens if self.facts["every"] else 1
        return 2 * self.sequences * (self.tokens * self.model.others + scored * self.model.head)

    @property
    def weight_bytes(self):
        """Of ours: 4 bits and a scale of each 32 inputs, 8 bits in the output projection."""
        return self.model.head + self.model.others * 18 // 32

    def tensors(self):
        parts = {"ids": self.ids[:, self.before :], "before": self.ids[:, : self.before]}
        return {name: part.contiguous() for name, part in parts.items() if part.numel()}

    def expected(self):
        return self.scores

    def check(self, outputs):
        """The rivals that disagree, which get no row; ours end the run."""
        expected, left_out = centred(self.expected()), []
        for name, got in outputs.items():
            decibels = self.int8_decibels if "8" in name else self.int4_decibels
            what, of_rival = f"{self.group} {self.name}", not name.startswith("our")
            if of_rival and got.shape == expected.shape and sqnr(expected, centred(got)) < decibels:
                print(f"left out: {what}: {name}: below {decibels} dB", file=sys.stderr)
                left_out.append(name)
            else:
                agree(what, name, centred(got), expected, decibels)
        return left_out

    def rivals(self):
        return {}

    def memory(self, process):
        """Of a process that loads our folder of 4 bits and reads the tokens before, in MB."""
        if not self.before:
            return {}
        sizes = {"sequences": self.sequences, "tokens": self.before}
        held = process.ask(op="memory", folder=self.facts["saved"], **sizes)
        return {f"ours_{key}_mb": round(size / 1e6, 1) for key, size in held.items()}


def centred(scores):
    return scores - scores.mean(-1, keepdim=True)


class Text(Decoder):
    """Scores of all tokens of windows of a text, the last of which the float model has written."""

    int8_decibels = 25
    windows, window, written = 4, 256, 32
    # Percent by which 8 bits of activations may change the perplexity.
    allowed = 1

    def __init__(self, model, name, _):
        super().__init__(model, name, (self.windows, 0, self.window))
        file = str(smollm2_file())
        self.facts = model.facts | {"every": True, "stored": file, "files": {"Q4_1": file}}

    def of_float(self):
        row, seen = [self.ids[:1, : -self.written]], None
        for _ in range(self.written):
            out = self.model.float(row[-1], past_key_values=seen, use_cache=True, logits_to_keep=1)
            row, seen = [*row, out.logits.argmax(-1)], out.past_key_values
        self.ids = torch.cat([self.ids, torch.cat(row, 1)])
        self.sequences += 1
        return self.model.float(self.ids).logits

    def memory(self, process):
        return {}

    def check(self, outputs):
        expected = self.expected()
        float = self.perplexity(expected)
        for name, got in outputs.items():
            agree(self.name, name, got, expected, self.int8_decibels)
            perplexity = self.perplexity(got)
            change = 100 * (perplexity / float - 1)
            wrong = got[-1, -self.written - 1 : -1].argmax(-1) != self.ids[-1, -self.written :]
            same = next(iter(wrong.nonzero().flatten().tolist()), self.written)
            what = f"{self.name}: {name}: perplexity {perplexity:.2f}, {change:+.2f} % of float"
            written = f"writes the same {same} of {self.written} tokens"
            print(f"{what}; {written}; {sqnr(expected, got):.1f} dB", file=sys.stderr)
            if not abs(change) <= self.allowed:
                sys.exit(f"{what}: expected at most {self.allowed} % of {float:.2f}")

    def perplexity(self, scores):
        scores, next = scores[: self.windows, :-1], self.ids[: self.windows, 1:]
        nats = torch.nn.functional.cross_entropy(scores.flatten(0, 1), next.flatten())
        return nats.exp().item()


class Written(Decoder):
    """A text and the tokens that each model writes behind it, the most likely ones: those of ours are the same with
    guesses and without."""

    written = 128

    def __init__(self, model, name, _):
        self.name, self.model = name, model
        self.facts = model.facts | {"write": self.written, "file": str(smollm2_file())}
        self.sequences, self.before = 1, 0
        self.ids = model.texts[name.partition(" ")[2]].view(1, -1)
        self.tokens = self.ids.numel() + self.written

    def check(self, outputs):
        guessed, plain = outputs["ours"], outputs["our int4, no guesses"]
        if guessed.numel() != self.written or not torch.equal(guessed, plain):
            sys.exit(f"{self.name}: expected {self.written} tokens, the same with guesses and without")


def cases(selected):
    for name, group in itertools.groupby(selected, lambda case: case[0]):
        with tempfile.TemporaryDirectory() as folder:
            model = Model(name, folder)
            kinds = {None: Decoder, "text": Text} | dict.fromkeys(TEXTS, Written)
            found = [kinds[None if shape else name.partition(" ")[2]](model, name, shape) for _, name, shape in group]
            # Its memory is for the rivals, some of which read it again.
            model.float = None
            yield from found
