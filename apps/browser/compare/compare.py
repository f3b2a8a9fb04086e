#!/usr/bin/env python3
"""The comparison that run.sh prepares: medians of rounds in which all are timed in turns.

Fails where the logits of ours and of onnxruntime-web are not of the same model.
"""

import argparse
import json
import math
import pathlib
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "check"))

from browser import ROOT, run  # noqa: E402

ISAS, FORMS = ["relaxed_simd", "simd128"], ["fused", "plain"]
MODELS = [
    {"name": "bert", "lengths": [16, 64], "vocabulary": 4800},
    {"name": "minilm-sizes", "lengths": [16, 64, 128], "vocabulary": 4800},
]
# Both are int8 with activations of 8 bits, but by other scales.
MIN_DECIBELS = 10


def decibels(got, expected):
    noise = sum((a - b) ** 2 for a, b in zip(got, expected, strict=True))
    return 10 * math.log10(sum(b * b for b in expected) / noise) if noise else math.inf


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--json", action="store_true", help="prints one JSON object")
    parser.add_argument("--target", type=pathlib.Path, default=ROOT / "target")
    arguments = parser.parse_args()
    own = (arguments.target / "browser-compare").resolve()
    folders = {
        "/compare/": HERE,
        "/ort/": own / "node_modules/onnxruntime-web/dist",
        "/models/": own / "models",
        "/": arguments.target.resolve() / "browser",
    }
    plan = {"models": MODELS, "isas": ISAS, "forms": FORMS, "rounds": arguments.rounds, "milliseconds": 20}
    result, console = run("/compare/compare.html", folders, {"/compare/plan.json": plan}, 900)
    if "error" in result:
        sys.exit("\n".join([result["error"], *console[:10]]))
    rows = []
    for case in result["results"]:
        logits = case["logits"]
        for caller, got in logits.items():
            agreement = decibels(got, logits[ISAS[0]])
            if agreement < MIN_DECIBELS or (caller in ISAS and got != logits[ISAS[0]]):
                sys.exit(f"{case['model']} 1x{case['length']}: {caller}: {agreement:.1f} dB from {ISAS[0]}")
        medians = {caller: statistics.median(times) for caller, times in case["times"].items()}
        rows.append({"model": case["model"], "tokens": case["length"], "milliseconds": medians})
    if arguments.json:
        print(json.dumps({"version": result["version"], "browser": result["agent"], "rows": rows}))
        return
    print(f"onnxruntime-web {result['version']}, {result['agent']}; ms a call, median of {arguments.rounds} rounds")
    print("| model | tokens | ours, relaxed SIMD | ours, simd128 | onnxruntime-web, fused | plain | ours, times as fast |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        times = row["milliseconds"]
        cells = [f"{times[caller]:.3f}" for caller in ISAS + FORMS]
        ratio = min(times[form] for form in FORMS) / times[ISAS[0]]
        print("|", " | ".join([row["model"], f"1 x {row['tokens']}", *cells, f"{ratio:.2f}"]), "|")


if __name__ == "__main__":
    main()
