#!/usr/bin/env python3
"""Whether this crate and transformers with compressed-tensors read each other's int8 folders.

    scripts/check_transformers.py [--debug]

Installs the packages below into target/transformers, unless the interpreter that runs it has them, builds the command
`dynquant` and the example bert (--debug: without optimization), and quantizes assets/bert with both libraries. Each
folder is then answered by both readers. Prints how far the logits are from the float model's and from the other
reader's, and ends with 1 where one is below 30 dB: what differs is how activations are rounded, u8 between the minimum
and the maximum of a row here, int8 of both signs there.
"""

import argparse
import importlib.metadata
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

PINNED = {"torch": "2.10.0", "transformers": "4.57.6", "compressed-tensors": "0.20.0", "accelerate": "1.15.0"}
ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "assets/bert"
TEXTS = [
    "fast key-value store with an HTTP interface",
    "board game with hexagonal fields and dice",
    "library of numerical routines for sparse matrices",
    "plugin that highlights syntax in the editor",
    "fonts for mathematical typesetting",
    "mail transport agent for small servers",
    "bindings of the graphics toolkit for Python",
    "tools to inspect packages and their dependencies",
]


def install():
    """Runs this script again where the packages are."""

    def version(name):
        try:
            return importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            return None

    if all(version(name) == pinned for name, pinned in PINNED.items()):
        return
    venv = ROOT / "target/transformers"
    if Path(sys.prefix) == venv:
        sys.exit(f"{venv} has other versions: remove it")
    python = venv / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    packages = [f"{name}=={pinned}" for name, pinned in PINNED.items()]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    sys.exit(subprocess.run([python, *sys.argv]).returncode)


def build(debug):
    profile = [] if debug else ["--release"]
    cargo = ["cargo", "build", "--quiet", *profile]
    subprocess.run([*cargo, "--package", "dynquant"], cwd=ROOT, check=True)
    subprocess.run([*cargo, "--example", "bert"], cwd=ROOT, check=True)
    return ROOT / "target" / ("debug" if debug else "release")


def theirs(folder):
    """The logits of transformers."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForSequenceClassification

    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    tokenizer.enable_padding()
    tokens = tokenizer.encode_batch(TEXTS)
    ids, mask = (torch.tensor([getattr(t, name) for t in tokens]) for name in ("ids", "attention_mask"))
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask).logits


def ours(folder, built, parent):
    """The logits of the example bert."""
    import torch

    texts = parent / "texts.txt"
    texts.write_text("".join(f"{text}\n" for text in TEXTS))
    command = [built / "examples/bert", "--model-dir", folder, "--texts", texts, "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return torch.tensor(json.loads(done.stdout)["answers"])


def write_theirs(out):
    """assets/bert as compressed-tensors quantizes it: the preset W8A8, the classifier float."""
    import torch
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationConfig,
        QuantizationStatus,
        apply_quantization_config,
        preset_name_to_scheme,
    )
    from compressed_tensors.quantization.utils import calculate_qparams
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(MODEL, dtype=torch.float32).eval()
    scheme = preset_name_to_scheme("W8A8", ["Linear"])
    scheme.format = "int-quantized"
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["classifier"], format="int-quantized")
    apply_quantization_config(model, config)
    for module in model.modules():
        if getattr(module, "quantization_scheme", None) is None:
            continue
        low, high = module.weight.amin(1, keepdim=True), module.weight.amax(1, keepdim=True)
        scale, _ = calculate_qparams(low, high, module.quantization_scheme.weights)
        module.weight_scale.data.copy_(scale)
        module.quantization_status = QuantizationStatus.FROZEN
    compressor = ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    model.save_pretrained(out)
    compressor.update_config(out)
    path = out / "config.json"
    written = json.loads(path.read_text())
    written.setdefault("quantization_config", compressor.quantization_config.model_dump(mode="json"))
    path.write_text(json.dumps(written, indent=1))
    (out / "tokenizer.json").write_bytes((MODEL / "tokenizer.json").read_bytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--debug", action="store_true")
    debug = parser.parse_args().debug
    install()
    warnings.simplefilter("ignore")
    built = build(debug)
    with tempfile.TemporaryDirectory() as name:
        parent = Path(name)
        folders = {"`dynquant quantize`": [], "`dynquant quantize --embeddings`": ["--embeddings"]}
        written = {}
        for number, (writer, options) in enumerate(folders.items()):
            written[writer] = parent / str(number)
            command = [built / "dynquant", "quantize", MODEL, "-o", written[writer], *options]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        written["compressed-tensors, W8A8"] = parent / "theirs"
        write_theirs(parent / "theirs")
        expected = theirs(MODEL)
        sqnr = lambda a, b: (10 * (a.square().sum() / (a - b).square().sum()).log10()).item()
        print("| written by | transformers against float | this crate against float | one against the other |")
        print("|---|---|---|---|")
        worst = float("inf")
        for writer, folder in written.items():
            answers = theirs(folder), ours(folder, built, parent)
            figures = [sqnr(expected, answer) for answer in answers] + [sqnr(*answers)]
            print(f"| {writer} | " + " | ".join(f"{figure:.1f} dB" for figure in figures) + " |")
            worst = min(worst, *figures)
    sys.exit(worst < 30)


if __name__ == "__main__":
    main()
