"""Times our int8 against fastembed's and text-embeddings-inference, text by text and in batches: see run.sh.

Each side is a process of its own with so many threads, and keeps its models. Texts are of words that are one
token, so that all of a case have 16 or 128 tokens and nothing is padded. Every round asks each side once, and takes
the fastest of some calls; the table has the medians, and of each round's ratio, which is above 1 where ours is faster.
Sides must agree: by the cosine of their vectors, or the correlation of their scores, 0.9 or more.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time

# What is asked, tokens of a text or of a query with it, texts of a call.
CASES = [("embed", tokens, batch) for tokens in (16, 128) for batch in (1, 32)] + [("rerank", 128, 100)]
QUERY_TOKENS = 14
LEAST_AGREEMENT = 0.9


class Side:
    """A process that answers requests."""

    def __init__(self, name, threads, *command):
        names = ("RAYON_NUM_THREADS", "CANDLE_NUM_THREADS", "OMP_NUM_THREADS")
        environment = os.environ | {name: str(threads) for name in names} | {"HF_HUB_OFFLINE": "1"}
        self.name = name
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, request, calls):
        self.process.stdin.write(json.dumps(request | {"calls": calls}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended")
        return json.loads(line)


def serve(embedder, reranker, threads):
    """fastembed as a side."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType
    from fastembed.rerank.cross_encoder import TextCrossEncoder

    name = "minilm-int8"
    source = {"model": name, "sources": ModelSource(hf=name), "model_file": "model.onnx"}
    TextEmbedding.add_custom_model(**source, pooling=PoolingType.MEAN, normalization=True, dim=384)
    TextCrossEncoder.add_custom_model(**source)
    embedder = TextEmbedding(name, specific_model_path=embedder, threads=threads)
    reranker = TextCrossEncoder(name, specific_model_path=reranker, threads=threads)
    for line in sys.stdin:
        request = json.loads(line)
        texts, query, fastest = request["texts"], request.get("query"), float("inf")
        answer = {}
        for _ in range(request["calls"]):
            start = time.perf_counter()
            if query is None:
                vectors = list(embedder.embed(texts, batch_size=len(texts)))
            else:
                answer["scores"] = list(reranker.rerank(query, texts))
            fastest = min(fastest, time.perf_counter() - start)
        if query is None:
            answer["vectors"] = [vector.tolist() for vector in vectors]
        print(json.dumps(answer | {"seconds": fastest}), flush=True)


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


def agreement(ours, theirs):
    """The mean cosine of vectors; the correlation of scores, which is the cosine of what they are above the mean."""
    import numpy

    kind = "scores" if ours["scores"] else "vectors"
    a, b = (numpy.atleast_2d(numpy.array(side[kind])) for side in (ours, theirs))
    if kind == "scores":
        a, b = a - a.mean(), b - b.mean()
    lengths = numpy.linalg.norm(a, axis=1) * numpy.linalg.norm(b, axis=1)
    return float(((a * b).sum(axis=1) / lengths).mean())


def measure(ours, rivals, request, calls, rounds):
    """Our texts per second, and for each rival its own, the ratio and the agreement."""
    sides, count = [ours, *rivals], len(request["texts"])
    answers = [side.ask(request, 1) for side in sides]
    samples = [[side.ask(request, calls)["seconds"] for side in sides] for _ in range(rounds)]
    rates = [round(statistics.median(count / sample[i] for sample in samples), 1) for i in range(len(sides))]
    figures = {"ours_per_second": rates[0], "rivals": {}}
    for i, rival in enumerate(rivals, 1):
        if (agrees := agreement(answers[0], answers[i])) < LEAST_AGREEMENT:
            sys.exit(f"{rival.name}: expected answers that agree by {LEAST_AGREEMENT} or more, got {agrees:.4f}")
        low, middle, high = statistics.quantiles((sample[i] / sample[0] for sample in samples), n=4)
        figures["rivals"][rival.name] = {
            "per_second": rates[i],
            "ratio": round(middle, 2),
            "quartiles": [round(low, 2), round(high, 2)],
            "agreement": round(agrees, 4),
        }
    return figures


def main():
    if sys.argv[1:2] == ["serve"]:
        return serve(*sys.argv[2:4], int(sys.argv[4]))
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__.split("\n\n")[0])
    for option in ("--ours", "--minilm", "--onnx", "--rerankers"):
        parser.add_argument(option, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--tei", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of a case (15)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each side (2)")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds: expected 2 or more, got {options.rounds}")
    if not 1 <= options.threads <= os.cpu_count():
        parser.error(f"--threads: expected 1 to {os.cpu_count()}, got {options.threads}")
    reranker, onnx_reranker = (os.path.join(options.rerankers, name) for name in ("float", "onnx"))
    ours = Side("ours", options.threads, options.ours, options.minilm, reranker)
    python = [sys.executable, __file__, "serve", options.onnx, onnx_reranker, str(options.threads)]
    rivals = [Side("fastembed", options.threads, *python)]
    if options.tei:
        rivals.append(Side("TEI", options.threads, options.tei, options.minilm, reranker))
    vocabulary, chance, rows = words(options.minilm), random.Random(0), []
    for task, tokens, batch in CASES:
        request = {}
        if task == "rerank":
            request["query"] = " ".join(chance.choices(vocabulary, k=QUERY_TOKENS))
        # Two special ones, and a third between two texts.
        own = tokens - 2 - (QUERY_TOKENS + 1 if task == "rerank" else 0)
        request["texts"] = [" ".join(chance.choices(vocabulary, k=own)) for _ in range(batch)]
        check_lengths(options.minilm, request["texts"], own + 2)
        figures = measure(ours, rivals, request, max(2, 512 // (tokens * batch)), options.rounds)
        rows.append({"task": task, "tokens": tokens, "texts": batch, **figures})
    if options.json:
        return print(json.dumps(rows))
    print(f"{'':8}{'tokens':>6}{'texts':>7}{'ours':>10}  rival{'its texts/s':>16}{'ratio':>7}{'quartiles':>15}{'agree':>9}")
    for row in rows:
        ours = f"{row['task']:8}{row['tokens']:>6}{row['texts']:>7}{row['ours_per_second']:>10}"
        for name, rival in row["rivals"].items():
            low, high = rival["quartiles"]
            print(
                f"{ours}  {name:<10}{rival['per_second']:>11}{rival['ratio']:>7}{f'{low} to {high}':>15}"
                f"{rival['agreement']:>9}"
            )


if __name__ == "__main__":
    main()
