"""Times our int8 against fastembed's, text by text and in batches: see run.sh.

Each side is a process of its own with so many threads, and keeps its model. Texts are of words that are one
token, so that all of a case have 16 or 128 tokens and fastembed pads nothing. Every round asks each side
once, and takes the fastest of some calls; the table has the medians, and of each round's ratio, which is
above 1 where ours is faster. The cosine is of the two sides' vectors, and must be 0.9 or more.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time

CASES = [(tokens, batch) for tokens in (16, 128) for batch in (1, 32)]
LEAST_COSINE = 0.9


class Side:
    """A process that answers requests."""

    def __init__(self, threads, *command):
        names = ("RAYON_NUM_THREADS", "CANDLE_NUM_THREADS", "OMP_NUM_THREADS")
        environment = os.environ | {name: str(threads) for name in names} | {"HF_HUB_OFFLINE": "1"}
        self.name = command[0]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, texts, calls):
        self.process.stdin.write(json.dumps({"texts": texts, "calls": calls}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended")
        return json.loads(line)


def serve(folder, threads):
    """fastembed as a side."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    name = "minilm-int8"
    TextEmbedding.add_custom_model(
        model=name, pooling=PoolingType.MEAN, normalization=True, sources=ModelSource(hf=name), dim=384,
        model_file="model.onnx",
    )
    model = TextEmbedding(name, specific_model_path=folder, threads=threads)
    for line in sys.stdin:
        request = json.loads(line)
        texts, fastest = request["texts"], float("inf")
        for _ in range(request["calls"]):
            start = time.perf_counter()
            vectors = list(model.embed(texts, batch_size=len(texts)))
            fastest = min(fastest, time.perf_counter() - start)
        print(json.dumps({"seconds": fastest, "vectors": [vector.tolist() for vector in vectors]}), flush=True)


def words(folder):
    """The words of the vocabulary that are one token."""
    with open(os.path.join(folder, "vocab.txt"), encoding="utf-8") as file:
        vocabulary = file.read().split()
    return [word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 2]


def check_lengths(folder, texts, count):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    for text in texts:
        if (got := len(tokenizer.encode(text).ids)) != count:
            sys.exit(f"expected a text of {count} tokens, got {got}: {text}")


def cosine(ours, theirs):
    import numpy

    a, b = (numpy.array(side) for side in (ours, theirs))
    lengths = numpy.linalg.norm(a, axis=1) * numpy.linalg.norm(b, axis=1)
    return float(((a * b).sum(axis=1) / lengths).mean())


def measure(sides, texts, calls, rounds):
    ours, theirs = (side.ask(texts, 1) for side in sides)
    agreement = cosine(ours["vectors"], theirs["vectors"])
    if agreement < LEAST_COSINE:
        sys.exit(f"expected vectors with a cosine of {LEAST_COSINE} or more, got {agreement:.4f}")
    samples = [[side.ask(texts, calls)["seconds"] for side in sides] for _ in range(rounds)]
    rates = [statistics.median(len(texts) / sample[side] for sample in samples) for side in (0, 1)]
    ratios = [theirs / ours for ours, theirs in samples]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "ours_per_second": round(rates[0], 1),
        "fastembed_per_second": round(rates[1], 1),
        "ratio": round(middle, 2),
        "quartiles": [round(low, 2), round(high, 2)],
        "cosine": round(agreement, 4),
    }


def main():
    if sys.argv[1:2] == ["serve"]:
        return serve(sys.argv[2], int(sys.argv[3]))
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__.split("\n\n")[0])
    for option in ("--ours", "--minilm", "--onnx"):
        parser.add_argument(option, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of a case (15)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each side (2)")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds: expected 2 or more, got {options.rounds}")
    if not 1 <= options.threads <= os.cpu_count():
        parser.error(f"--threads: expected 1 to {os.cpu_count()}, got {options.threads}")
    sides = [
        Side(options.threads, options.ours, options.minilm),
        Side(options.threads, sys.executable, __file__, "serve", options.onnx, str(options.threads)),
    ]
    vocabulary, chance, rows = words(options.minilm), random.Random(0), []
    for tokens, batch in CASES:
        texts = [" ".join(chance.choices(vocabulary, k=tokens - 2)) for _ in range(batch)]
        check_lengths(options.minilm, texts, tokens)
        figures = measure(sides, texts, max(2, 512 // (tokens * batch)), options.rounds)
        rows.append({"tokens": tokens, "batch": batch, **figures})
    if options.json:
        return print(json.dumps(rows))
    print(f"{'tokens':>6}{'batch':>7}{'ours':>10}{'fastembed':>11}  texts/s{'ratio':>7}{'quartiles':>15}{'cosine':>9}")
    for row in rows:
        low, high = row["quartiles"]
        print(
            f"{row['tokens']:>6}{row['batch']:>7}{row['ours_per_second']:>10}{row['fastembed_per_second']:>11}"
            f"         {row['ratio']:>7}{f'{low} to {high}':>15}{row['cosine']:>9}"
        )


if __name__ == "__main__":
    main()
