"""CTranslate2: its int8, per channel and per row as ours, f32 between the products."""

# /// script
# dependencies = ["ctranslate2==4.8.5"]
# ///

import json
import os
from functools import lru_cache

import ctranslate2
import numpy as np
import transformers
from ctranslate2.converters import TransformersConverter

# Of weights that it lacks, which are of a pooler that is not called.
transformers.logging.set_verbosity_error()


def bert(case, tensors):
    model = encoder(case["folder"])
    ids = ctranslate2.StorageView.from_array(tensors["ids"].astype(np.int32))
    batch, seq = tensors["ids"].shape
    lengths = ctranslate2.StorageView.from_array(np.full(batch, seq, np.int32))
    return {"ctranslate2 int8": lambda: np.asarray(model.forward_batch(ids, lengths).last_hidden_state)}


@lru_cache(1)
def encoder(folder):
    # The converter insists on a tokenizer.
    with open(os.path.join(folder, "config.json")) as file:
        size = json.load(file)["vocab_size"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    with open(os.path.join(folder, "vocab.txt"), "w") as file:
        file.writelines(f"{token}\n" for token in [*special, *range(size - len(special))])
    out = os.path.join(folder, "ctranslate2")
    TransformersConverter(folder).convert(out, quantization="int8")
    return ctranslate2.Encoder(
        out, device="cpu", compute_type="int8", inter_threads=1, intra_threads=int(os.environ["OMP_NUM_THREADS"])
    )
