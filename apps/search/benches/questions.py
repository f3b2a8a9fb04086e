#!/usr/bin/env python3
"""Ranks of the right passages for the questions of questions.tsv on this repository's guide.

    apps/search/benches/questions.py PROGRAM MODEL [RANK..]

PROGRAM is dynquant-search, MODEL what `--model` takes, RANK what `--rank` takes (all by default). Prints the rank
of each right passage, `-` beyond the first ten, and the mean reciprocal ranks. A passage is right if it has the line
with the words in the last column.
"""
import json, pathlib, shutil, subprocess, sys, tempfile

FIRST = 10

here = pathlib.Path(__file__).resolve().parent
docs = here.parent.parent.parent / "docs"


def main(program, model, *ranks):
    ranks = ranks or ("meaning", "words", "both")
    questions = [line.split("\t") for line in (here / "questions.tsv").read_text().splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "docs"
        copy.mkdir()
        for file in docs.glob("*.md"):
            shutil.copy(file, copy)
        run(program, "index", copy, "--model", model)
        places = {rank: [place(program, copy, rank, *it[1:]) for it in questions] for rank in ranks}
    print("", *ranks, sep="\t")
    for number, (kind, question, *_) in enumerate(questions):
        print(kind, *(places[rank][number] or "-" for rank in ranks), question, sep="\t")
    for kind in ("meaning", "words", ""):
        chosen = [number for number, it in enumerate(questions) if it[0].startswith(kind)]
        means = [sum(1 / places[rank][it] for it in chosen if places[rank][it]) / len(chosen) for rank in ranks]
        print("mean of", kind or "all", *(f"{mean:.3f}" for mean in means), sep="\t")


def place(program, folder, rank, question, file, phrase):
    lines = (folder / file).read_text().splitlines()
    right = [number for number, line in enumerate(lines, 1) if phrase in line]
    if len(right) != 1:
        sys.exit(f"{file}: expected one line with {phrase!r}, got {len(right)}")
    answer = run(program, "query", "--json", "--index", folder, "-k", str(FIRST), "--rank", rank, question)
    for number, result in enumerate(json.loads(answer)["results"], 1):
        for it in result["places"]:
            if pathlib.Path(it["path"]).name == file and it["first_line"] <= right[0] <= it["last_line"]:
                return number
    return None


def run(*command):
    return subprocess.run([str(it) for it in command], check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
