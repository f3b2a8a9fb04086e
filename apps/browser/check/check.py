#!/usr/bin/env python3
"""Uses the page of target/browser in headless Chromium: `apps/browser/check/check.py [--texts N]`.

Texts of assets/bert/heldout.tsv have the logits, bit for bit, and the tokens that the native program
gives, on each instruction set; what is typed shows its class, latency and weights; the console
stays empty. A model, a program or a word in the address that is wrong is said in words.
"""

import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

from browser import ROOT, run

HERE = pathlib.Path(__file__).resolve().parent
ISAS = ["relaxed_simd", "simd128"]


def native(target, texts):
    """The answers of the program that is not in a browser."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(texts))
        file.flush()
        command = [target / "debug/dynquant-browser", "answers", target / "browser/model", file.name]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"check: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def bits(answer):
    """The logits as bits, by label."""
    return {one["label"]: struct.pack("<f", one["logit"]) for one in answer["classes"]}


def faults_of(isa, result, expected, typed, faults):
    """Whatever is not as it should be."""
    def check(holds, what):
        if not holds:
            faults.append(f"{isa}: {what}")

    check(result["state"]["isa"] == isa, f"runs on {result['state']['isa']}")
    check(len(result["answers"]) == len(expected), f"answers: {len(result['answers'])}")
    for got, answer in zip(result["answers"], expected):
        check(bits(got) == bits(answer), f"logits of {answer['classes'][0]}: got {got['classes'][0]}")
        check((got["tokens"], got["cut"]) == (answer["tokens"], answer["cut"]), f"tokens: {got['tokens']}")
    page = result["page"]
    for shown, answer in zip(page["shown"], typed, strict=True):
        best = answer["classes"][0]
        row = f"{best['label']}{100 * best['probability']:.1f} %"
        check(len(shown["rows"]) == 5 and shown["rows"][0] == row, f"expected {row}, shown {shown['rows']}")
        check(("Only the first" in shown["note"]) == answer["cut"], f"note {shown['note']!r}")
        check(shown["latency"].endswith(" ms") and " ms of " in shown["median"], f"latency {shown}")
    facts, state = page["facts"], result["state"]
    check(facts["status"] == "", f"status {facts['status']!r}")
    check(facts["isa"] == isa, f"instruction set {facts['isa']!r}")
    check(facts["bytes"] == f"{state['bytes']:,}" and state["bytes"] * 3 < state["float_bytes"], f"bytes {facts}")
    check(facts["float-bytes"] == f"{state['float_bytes']:,}", f"bytes {facts}")
    check(facts["weights"].count(" MB") == 2 and facts["download"].endswith(" MB"), f"weights {facts}")
    quantized = [layer for layer in state["layers"] if layer["dtype"] in ("qint8", "quint8")]
    check(page["layers"] == len(state["layers"]) and len(quantized) >= 29, f"layers {page['layers']}, {len(quantized)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=200, help="texts whose logits are compared")
    parser.add_argument("--target", type=pathlib.Path, default=ROOT / "target")
    arguments = parser.parse_args()
    lines = (ROOT / "assets/bert/heldout.tsv").read_text().splitlines()[: arguments.texts]
    texts = [line.split("\t")[1] for line in lines]
    typed = texts[:5] + ["Grüße, 世界 🦀", "", "word " * 100]
    folders = {"/check/": HERE, "/": arguments.target / "browser"}
    plan = {"texts": texts, "typed": typed, "isas": ISAS, "faults": []}
    result, console = run("/check/drive.html", folders, {"/check/plan.json": plan}, 300)
    if "error" in result:
        sys.exit("\n".join([result["error"], *console[:10]]))
    faults = [f"console: {line}" for line in console]
    expected, of_typed = native(arguments.target, texts), native(arguments.target, typed)
    for isa in ISAS:
        faults_of(isa, result[isa], expected, of_typed, faults)

    # Pages that something is wrong with; their consoles are not empty.
    with tempfile.TemporaryDirectory() as bad:
        bad = pathlib.Path(bad)
        for name in ("relaxed_simd.wasm", "simd128.wasm"):
            (bad / name).write_bytes((arguments.target / "browser" / name).read_bytes()[:1000])
        cut = bad / "cut"
        cut.mkdir()
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            whole = (arguments.target / "browser/model" / name).read_bytes()
            (cut / name).write_bytes(whole if name != "model.safetensors" else whole[:-1])
        words = {
            "/?isa=mmx": 'expected relaxed_simd or simd128, got "mmx"',
            "/nothing/": ": the server answered 404",
            "/program/": "expected a WebAssembly program, got",
            "/cut/": "model/model.safetensors",
        }
        page = arguments.target / "browser"
        folders = {
            "/check/": HERE,
            "/nothing/model/": bad / "no such folder",
            "/nothing/": page,
            "/program/relaxed_simd.wasm": bad / "relaxed_simd.wasm",
            "/program/": page,
            "/cut/model/": cut,
            "/cut/": page,
            "/": page,
        }
        plan = {"texts": [], "typed": [], "isas": [], "faults": list(words)}
        result, _ = run("/check/drive.html", folders, {"/check/plan.json": plan}, 120)
    for url, expected_words in words.items():
        got = result.get("faults", result).get(url, result)
        if not isinstance(got, str) or expected_words not in got:
            faults.append(f"{url}: expected {expected_words!r}, shown {got!r}")
    if faults:
        sys.exit("\n".join(["check: fails:", *faults[:30]]))
    print(f"check: {len(texts)} texts on {' and '.join(ISAS)}, {len(typed)} typed, {len(words)} faults: as expected")


if __name__ == "__main__":
    main()
