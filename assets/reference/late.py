#!/usr/bin/env python3
"""Tiny random models of late interaction (ColBERT), with the token vectors of the tools that write them.

    python late.py NAME..

Needs torch 2.9.1 and pylate==1.6.0 (transformers 5.3.0, sentence-transformers 5.3.0), but for "late-native"
transformers==5.24.0 and sentence-transformers==6.2.0. Writes a folder encoders/NAME as the tool
saves it, with weights in float16, and in it expected.json: `texts` and `questions`, with the vectors of the
tokens of each, `documents` and `queries`, and `scores` of each document by the first question (MaxSim).
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import transformers as t
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

HERE = Path(__file__).resolve().parent / "encoders"
WORDS = "the a of river city snow winter bread market runs falls on old by library is open . , ! ?".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]"]
TEXTS = [
    "the river runs by the city.",
    "snow falls, on the old city!",
    "bread",
    "the market is open, the library is open. is the old market by the river? snow falls on bread, winter!",
    "an unknown river",
]
QUERIES = ["which city is by the river?", "bread", "the old market of the city is open by the library of snow, bread"]
SIZES = dict(
    vocab_size=28,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=40,
    pad_token_id=0,
    initializer_range=0.2,
)


def tokenizer():
    vocab = {word: i for i, word in enumerate(SPECIAL + WORDS)}
    made = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(s, vocab[s]) for s in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ends)
    names = dict(unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    return t.PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=40, model_input_names=["input_ids", "attention_mask"], **names
    )


def randomize(model, seed):
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_((parameter + 0.2 * noise).half().float())
    return model.eval()


def saved(model):
    folder = Path(tempfile.mkdtemp())
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def write(name, model, queries, documents):
    """The folder of a model, or its files as they are, and the answers."""
    folder = HERE / name
    if not isinstance(model, Path):
        shutil.rmtree(folder, ignore_errors=True)
        model.save(str(folder), create_model_card=False)
    for path in folder.rglob("*.safetensors"):
        save_file({k: v.half() for k, v in load_file(path).items()}, path, metadata={"format": "pt"})
    lists = lambda vectors: [torch.as_tensor(it).tolist() for it in vectors]
    query = torch.as_tensor(queries[0])
    scores = [(query @ torch.as_tensor(it).T).max(1).values.sum().item() for it in documents]
    expected = dict(texts=TEXTS, questions=QUERIES, queries=lists(queries), documents=lists(documents), scores=scores)
    rounded = json.loads(json.dumps(expected), parse_float=lambda x: float(f"{float(x):.7g}"))
    (folder / "expected.json").write_text(json.dumps(rounded))
    (folder / "README.md").unlink(missing_ok=True)
    for path in folder.rglob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text())) + "\n")


def encoded(name, made, saved):
    encode = lambda texts, is_query: made.encode(texts, is_query=is_query, batch_size=2)
    write(name, saved, encode(QUERIES, True), encode(TEXTS, False))


def pylate(name, model, seed, dense, **options):
    from pylate import models

    layers = [models.Dense(*sizes, activation_function=function, **more) for *sizes, function, more in dense]
    transformer = __import__("sentence_transformers").models.Transformer(saved(randomize(model, seed)))
    made = models.ColBERT(modules=[transformer, *layers], device="cpu", **options)
    encoded(name, randomize(made, seed + 1), made)


def native(seed):
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize

    config = t.DistilBertConfig(
        vocab_size=28, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=40, initializer_range=0.2
    )
    modules = [
        Dense(32, 16, activation_function=torch.nn.Identity(), module_input_name="token_embeddings"),
        MultiVectorMask(skiplist_words=[",", ".", "~"], skiplist_tasks=["query", "document"]),
        Normalize(module_input_name="token_embeddings"),
    ]
    expansion = dict(strategy="min", length=12, attend=False)
    model = saved(randomize(t.DistilBertModel(config), seed))
    transformer = Transformer(model, document_length=18, query_expansion=expansion)
    modules = [randomize(module, seed + 1) for module in modules]
    made = MultiVectorEncoder(modules=[transformer, *modules], prompts=dict(query="the "), device="cpu")
    encode = lambda texts, method: method(texts, batch_size=2)
    write("late-native", made, encode(QUERIES, made.encode_query), encode(TEXTS, made.encode_document))


def stanford(seed):
    """The names and files of Stanford's checkpoints, with a product large enough to be quantized."""
    from pylate import models

    folder = HERE / "late-stanford"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = randomize(t.BertModel(t.BertConfig(**SIZES), add_pooling_layer=False), seed)
    model.config.architectures = ["HF_ColBERT"]
    model.config.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    weights = {f"bert.{k}": v for k, v in model.state_dict().items()}
    save_file(weights | {"linear.weight": torch.randn(32, 32).half()}, folder / "model.safetensors")
    metadata = dict(dim=32, query_maxlen=10, doc_maxlen=16, query_token_id="[unused0]", doc_token_id="[unused1]")
    metadata |= dict(mask_punctuation=True, attend_to_mask_tokens=False, similarity="cosine", nbits=1, bsize=32)
    (folder / "artifact.metadata").write_text(json.dumps(metadata))
    made = models.ColBERT(str(folder), device="cpu", model_kwargs=dict(dtype="float32"))
    encoded("late-stanford", made, folder)


MODERN = SIZES | dict(num_hidden_layers=4, local_attention=10, cls_token_id=2, sep_token_id=3, global_attn_every_n_layers=3)
IDENTITY = torch.nn.Identity()
MADE = {
    "late-bert": lambda s: pylate(
        "late-bert",
        t.BertModel(t.BertConfig(**SIZES), add_pooling_layer=False),
        s,
        [(32, 24, torch.nn.GELU(), dict(use_residual=True)), (24, 16, IDENTITY, dict(bias=False))],
        query_length=12,
        document_length=20,
    ),
    "late-modernbert": lambda s: pylate(
        "late-modernbert",
        t.ModernBertModel(t.ModernBertConfig(**MODERN)),
        s,
        [(32, 16, IDENTITY, dict(bias=False))],
        query_length=16,
        document_length=30,
        attend_to_expansion_tokens=True,
        skiplist_words=[",", "~"],
        query_prefix="[unused0]",
        document_prefix="",
    ),
    "late-native": native,
    "late-stanford": stanford,
}


def main():
    for name in sys.argv[1:]:
        MADE[name](1000 + 100 * list(MADE).index(name))
        print(name)


if __name__ == "__main__":
    main()
