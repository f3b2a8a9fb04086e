#!/usr/bin/env python3
"""The keys that transformers writes into the JSON files of decoders.

    python decoder_keys.py

Needs transformers==5.24.0 tokenizers==0.23.2. Writes decoder_keys.json: for each model_type config.json with every
attribute that its class declares, generation_config.json with every attribute, and tokenizer_config.json of a
tokenizer, as they are saved.
"""

import functools
import json
import os
import tempfile

from tokenizers import Tokenizer, models
from transformers import (
    Gemma3TextConfig,
    GenerationConfig,
    GraniteConfig,
    GraniteMoeConfig,
    GraniteMoeHybridConfig,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    OlmoeConfig,
    Phi3Config,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

SIZES = dict(
    vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
)
HERE = os.path.dirname(os.path.abspath(__file__))


def tokenizer_config():
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>", add_bos_token=True,
        extra_special_tokens=["<x>"], chat_template="{{ bos_token }}",
    )
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder, save_jinja_files=False)
        with open(os.path.join(folder, "tokenizer_config.json")) as file:
            return json.load(file)


def main():
    configs = [
        LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, Gemma3TextConfig, SmolLM3Config, GraniteConfig, Phi3Config,
        Qwen3MoeConfig, MixtralConfig, OlmoeConfig, GraniteMoeConfig,
        functools.partial(
            GraniteMoeHybridConfig, num_local_experts=0, layer_types=["full_attention"] * 2, mamba_n_heads=8
        ),
        Lfm2Config,
    ]
    files = {
        "configs": [json.loads(config(**SIZES).to_json_string(use_diff=False)) for config in configs],
        "generation_config.json": GenerationConfig().to_dict(),
        "tokenizer_config.json": tokenizer_config(),
    }
    with open(os.path.join(HERE, "decoder_keys.json"), "w") as file:
        json.dump(files, file, sort_keys=True)
        file.write("\n")


if __name__ == "__main__":
    main()
