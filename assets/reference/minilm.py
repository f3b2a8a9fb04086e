"""Sentence embeddings of all-MiniLM-L6-v2: in float, and quantized by torch's quantize_dynamic.

Makes:   minilm.safetensors, from the sentences in minilm_sentences.txt (one a line)
Command: python minilm.py DIR          where scripts/fetch_minilm.sh has put the model in DIR
Pinned:  torch==2.9.1 transformers==5.23.0 tokenizers==0.23.3 numpy==2.4.6 safetensors==0.8.0,
         Python 3.11, engine x86

An embedding is BertModel's last hidden state, averaged over the tokens of the attention mask and
divided by its Euclidean norm. Everything is f32; attention is transformers' "eager" one. The tokenizer
is the folder's tokenizer.json with the truncation it names itself, 128 tokens (no sentence here is that
long), and padding to the longest sentence of the batch; all token type ids are 0.

Tensors, f32:
    float_alone        [8, 384]    the first 8 sentences, each in a batch of its own, no padding
    float_batched      [48, 384]   all sentences in file order, batches of 16, padded
    torch_default      [48, 384]   the same batches after quantize_dynamic(model): per-tensor weights
    torch_per_channel  [48, 384]   ... after quantize_dynamic(model, {Linear: per_channel_dynamic_qconfig})
    input_ids, attention_mask      i64 [48, longest], the tokens of every sentence, 0 beyond a batch's padding
    lengths                        i32 [3], the padded length of each batch
Metadata: for each of the other three against float_batched: mean_cosine, worst_cosine and sqnr_db,
10 log10(sum |reference|^2 / sum |reference - other|^2) over all elements.

Float results depend on the order of summation, so compare them with a tolerance (1e-5 on an element
is ample). The quantized ones inherit that: a last-bit difference before a layer may move one of its
activation codes.
"""

import pathlib
import sys

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, __version__ as tokenizers_version
from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic

import fixture

BATCH = 16
ALONE = 8


def embed(model, batch):
    """[b, 384] embeddings of one encoded batch."""
    ids = torch.tensor([encoding.ids for encoding in batch])
    mask = torch.tensor([encoding.attention_mask for encoding in batch])
    with torch.no_grad():
        hidden = model(input_ids=ids, attention_mask=mask, token_type_ids=torch.zeros_like(ids)).last_hidden_state
    weights = mask.unsqueeze(-1).to(torch.float32)
    mean = (hidden * weights).sum(1) / weights.sum(1)
    return (mean / mean.norm(dim=1, keepdim=True)).numpy()


def compare(reference, other):
    """The three figures, in double."""
    a, b = reference.astype(np.float64), other.astype(np.float64)
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return {
        "mean_cosine": round(float(cosine.mean()), 6),
        "worst_cosine": round(float(cosine.min()), 6),
        "sqnr_db": round(float(10 * np.log10((a**2).sum() / ((a - b) ** 2).sum())), 2),
    }


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} DIR")
    folder = pathlib.Path(sys.argv[1])
    sentences = (fixture.FOLDER / "minilm_sentences.txt").read_text(encoding="utf-8").splitlines()
    assert len(sentences) == 48

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.truncation["max_length"] == 128
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    batches = [tokenizer.encode_batch(sentences[i : i + BATCH]) for i in range(0, len(sentences), BATCH)]
    lengths = [len(batch[0].ids) for batch in batches]
    assert max(lengths) < 128

    load = lambda: transformers.BertModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    run = lambda model: np.concatenate([embed(model, batch) for batch in batches])
    model = load()
    alone = np.concatenate([embed(model, tokenizer.encode_batch([sentence])) for sentence in sentences[:ALONE]])
    batched = run(model)
    default = quantize_dynamic(load())
    per_channel = quantize_dynamic(load(), {torch.nn.Linear: per_channel_dynamic_qconfig})
    swapped = [name for name, module in default.named_modules() if type(module) is torch.ao.nn.quantized.dynamic.Linear]
    print(f"{len(swapped)} Linear layers quantized, padded lengths {lengths}")

    tensors = {"float_alone": alone, "float_batched": batched, "torch_default": run(default), "torch_per_channel": run(per_channel)}
    figures = {
        "float_alone": compare(batched[:ALONE], alone),
        "torch_default": compare(batched, tensors["torch_default"]),
        "torch_per_channel": compare(batched, tensors["torch_per_channel"]),
    }
    for key in ("ids", "attention_mask"):
        padded = np.zeros((len(sentences), max(lengths)), dtype=np.int64)
        for row, encoding in enumerate(encoding for batch in batches for encoding in batch):
            padded[row, : len(encoding.ids)] = getattr(encoding, key)
        tensors["input_ids" if key == "ids" else key] = padded
    tensors["lengths"] = np.array(lengths, dtype=np.int32)
    versions = {"transformers": transformers.__version__, "tokenizers": tokenizers_version}
    fixture.save("minilm", "minilm.py", "none", tensors, **versions, **figures, truncation="128", batch=str(BATCH))
    for name, values in figures.items():
        print(name, values)
    assert np.abs(np.linalg.norm(batched, axis=1) - 1).max() < 1e-6


if __name__ == "__main__":
    main()
