"""The accuracy of every preset on real checkpoints, in one table (docs/presets.md has it).

    python3 scripts/presets.py [--minilm DIR] [--spec FILE] [--json]

Runs the bert and lstm examples with each preset: sentence embeddings of all-MiniLM-L6-v2 (fetched by
scripts/fetch_minilm.sh into target/minilm unless DIR is given) against its float self, accuracy of
assets/bert on held-out texts, perplexity of assets/lstm on held-out text; with rules in a FILE as well.
Prints a table in Markdown, or one JSON object. Takes some minutes; needs cargo, and pip for the download.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def presets():
    """The names in the example's help."""
    command = ["cargo", "run", "--release", "--quiet", "--example", "bert", "--", "--help"]
    text = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout
    return re.findall(r"\w+", re.search(r"Preset: ([\w,\s]+)\[default", text)[1])


def example(name, *options):
    """The JSON object that an example prints."""
    command = ["cargo", "run", "--release", "--quiet", "--example", name, "--", "--json", *options]
    if sys.stderr.isatty():
        print(" ".join(["example", name, *options]), file=sys.stderr)
    return json.loads(subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE).stdout)


def measure(minilm, preset, *options, by="--preset"):
    """The figures of one preset; float's too, which are the same in every run."""
    embeddings = example("bert", "--model-dir", minilm, by, preset, *options)
    bert = example("bert", by, preset, *options)
    row = {
        "weights": embeddings["quantized"]["weight_bytes"] / embeddings["float"]["weight_bytes"],
        "model": embeddings["quantized"]["total_bytes"] / embeddings["float"]["total_bytes"],
        **{key: embeddings["quantized"][key] for key in ("sqnr_db", "cosine_mean", "cosine_min")},
        "accuracy": bert["quantized"]["accuracy"],
    }
    float_ = {"weights": 1, "model": 1, "accuracy": bert["float"]["accuracy"]}
    if not options:
        for kind, flags in {"lstm": [], "gru": ["--gru"]}.items():
            result = example("lstm", by, preset, *flags)
            row[kind], float_[kind] = (result[side]["perplexity"] for side in ("quantized", "float"))
    return float_, row


def table(rows):
    formats = {
        "weights": ("swapped weights", "{:.1%}"),
        "model": ("whole MiniLM", "{:.1%}"),
        "sqnr_db": ("MiniLM SQNR", "{:.1f} dB"),
        "cosine_mean": ("mean cosine", "{:.4f}"),
        "cosine_min": ("worst cosine", "{:.4f}"),
        "accuracy": ("`assets/bert` accuracy", "{:.2%}"),
        "lstm": ("LSTM perplexity", "{:.4f}"),
        "gru": ("GRU perplexity", "{:.4f}"),
    }
    print("| preset | " + " | ".join(head for head, _ in formats.values()) + " |")
    print("|---" * (len(formats) + 1) + "|")
    for name, row in rows.items():
        cells = (form.format(row[key]) if key in row else "" for key, (_, form) in formats.items())
        print(f"| {name} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minilm", metavar="DIR", help="all-MiniLM-L6-v2")
    parser.add_argument("--spec", metavar="FILE", help="rules in YAML or JSON, one more row")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    args = parser.parse_args()
    minilm = str(Path(args.minilm or ROOT / "target/minilm").resolve())
    if not args.minilm:
        subprocess.run([ROOT / "scripts/fetch_minilm.sh", minilm], check=True, stdout=sys.stderr)
    rows = {"float": None}
    for preset in presets():
        rows["float"], rows[f"`{preset}`"] = measure(minilm, preset)
    _, rows["`int8` and `embeddings()`"] = measure(minilm, "int8", "--embeddings")
    if args.spec:
        _, rows[f"`{args.spec}`"] = measure(minilm, str(Path(args.spec).resolve()), by="--spec")
    print(json.dumps(rows)) if args.json else table(rows)


if __name__ == "__main__":
    main()
