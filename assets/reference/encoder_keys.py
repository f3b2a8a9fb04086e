#!/usr/bin/env python3
"""The keys that transformers and sentence-transformers know in the files of an encoder.

    python encoder_keys.py

Needs torch==2.15.0 transformers==5.24.0 sentence-transformers==6.2.0. Writes encoder_keys.json: for
config.json the attributes of each model type's configuration, for the other files the arguments that they
become and what is saved of small models. Keys of objects are written by path, such as `a.b`.
"""

import dataclasses
import inspect
import json
import tempfile
from pathlib import Path

import transformers as t
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling
from sentence_transformers.sparse_encoder.modules import SpladePooling

import encoders

HERE = Path(__file__).resolve().parent
CONFIGS = [
    t.BertConfig,
    t.RobertaConfig,
    t.XLMRobertaConfig,
    t.CamembertConfig,
    t.DistilBertConfig,
    t.MPNetConfig,
    t.ModernBertConfig,
    t.NomicBertConfig,
    t.GteConfig,
    t.Qwen3Config,
    t.Gemma3TextConfig,
    t.ElectraConfig,
    t.AlbertConfig,
    t.DebertaV2Config,
    t.T5Config,
    t.EuroBertConfig,
    t.JinaEmbeddingsV3Config,
]
TOKENIZERS = [
    t.BertTokenizer,
    t.DistilBertTokenizer,
    t.MPNetTokenizer,
    t.RobertaTokenizer,
    t.XLMRobertaTokenizer,
    t.CamembertTokenizer,
    t.Qwen2Tokenizer,
    t.GemmaTokenizer,
    t.AlbertTokenizer,
    t.DebertaV2Tokenizer,
    t.T5Tokenizer,
]


def flat(values, path=""):
    """Paths of all values; the versions of packages and the names of prompts are any."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{path}{key}.")
        else:
            yield path + key


def saved(save, *names):
    """The keys of the files of a folder."""
    with tempfile.TemporaryDirectory() as folder:
        save(folder)
        found = [json.loads((Path(folder) / name).read_text()) for name in names]
    return {key for file in found for entry in (file if isinstance(file, list) else [file]) for key in flat(entry)}


def arguments(kind):
    return set(inspect.signature(kind.__init__).parameters) - {"self", "model_name_or_path", "args", "kwargs"}


def module(kind):
    keys = set(kind.config_keys) | set(kind.config_key_renames)
    return sorted(keys)


def main():
    config = {}
    for kind in CONFIGS:
        declared = {field.name for field in dataclasses.fields(kind)}
        config[kind.model_type] = sorted(declared | set(kind().to_dict()))
    with tempfile.TemporaryDirectory() as folder:
        model = t.BertForSequenceClassification(t.BertConfig(**encoders.SIZES, num_labels=1))
        model.save_pretrained(folder)
        encoders.tokenizer(1).save_pretrained(folder)
        transformer = Transformer(folder, max_seq_length=64, do_lower_case=True)
        embedder = SentenceTransformer(
            modules=[transformer, Pooling(32)], prompts=encoders.PROMPTS, truncate_dim=16, device="cpu"
        )
        cross = CrossEncoder(folder, device="cpu", keep_in_fp32_modules=["0.model.classifier"])
        sentence = saved(embedder.save, "sentence_bert_config.json") | saved(cross.save, "sentence_bert_config.json")
        settings, modules = "config_sentence_transformers.json", "modules.json"
        files = {
            "sentence_bert_config.json": sorted(sentence | arguments(Transformer) | {"max_seq_length"}),
            settings: sorted(saved(embedder.save, settings) | saved(cross.save, settings)),
            modules: sorted(saved(embedder.save, modules) | {"kwargs"}),
            "tokenizer_config.json": sorted(saved(encoders.tokenizer(1).save_pretrained, "tokenizer_config.json")),
        }
    for kind in TOKENIZERS:
        files["tokenizer_config.json"] += saved(kind().save_pretrained, "tokenizer_config.json") | arguments(kind)
    names = set(files["tokenizer_config.json"]) - {"vocab", "merges", "_spm_precompiled_charsmap"}
    files["tokenizer_config.json"] = sorted(names)
    for kind in (Pooling, SpladePooling, Dense, LayerNorm, Normalize, LogitScore, MultiVectorMask):
        files[kind.__name__] = module(kind)
    (HERE / "encoder_keys.json").write_text(json.dumps({"config.json": config} | files) + "\n")


if __name__ == "__main__":
    main()
