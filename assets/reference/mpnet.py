#!/usr/bin/env python3
"""Sentence embeddings of all-mpnet-base-v2, in float.

    python mpnet.py DIR

DIR is where scripts/fetch_mpnet.sh has put the model. Needs torch==2.15.0 transformers==5.24.0
sentence-transformers==6.2.0. Writes mpnet.safetensors: `float_alone`, f32 [12, 768], what `encode` gives for
each of the first 12 sentences of minilm_sentences.txt in a batch of its own. Sums depend on their order, so
compare with a tolerance (1e-5 on an element is ample).
"""

import sys
from pathlib import Path

from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer

HERE = Path(__file__).resolve().parent
SENTENCES = 12


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} DIR")
    sentences = (HERE / "minilm_sentences.txt").read_text(encoding="utf-8").splitlines()[:SENTENCES]
    model = SentenceTransformer(sys.argv[1], device="cpu")
    save_file({"float_alone": model.encode(sentences, batch_size=1)}, HERE / "mpnet.safetensors")


if __name__ == "__main__":
    main()
