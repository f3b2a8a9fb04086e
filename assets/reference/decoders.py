#!/usr/bin/env python3
"""Tiny random decoders of each family, and the logits that transformers computes.

    python decoders.py [NAME ..]

Needs torch==2.9.1 transformers==4.57.6 safetensors==0.8.0; smollm3, phi3, the granites, lfm2 and mixtures of
experts are by transformers==5.24.0. Writes, for each family, decoders/NAME.json (config.json) and decoders/NAME.safetensors: the
weights under transformers' names, `ids` [1, tokens] and `logits` [tokens, vocab].
"""

import json
import os
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    GraniteMoeConfig,
    GraniteMoeForCausalLM,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "decoders")
TOKENS = 24
SIZES = dict(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    initializer_range=0.3,
)
SCALING = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
SMALL = SIZES | {"intermediate_size": 16}
GRANITE = dict(embedding_multiplier=6.0, attention_multiplier=0.2, residual_multiplier=0.4, logits_scaling=3.0)
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "llama3": (LlamaForCausalLM, LlamaConfig(**SIZES, rope_theta=500000.0, rope_scaling=SCALING)),
    "mistral": (MistralForCausalLM, MistralConfig(**SIZES, sliding_window=9)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES, rope_theta=1000000.0)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=16)),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(
            **(SIZES | {"num_hidden_layers": 3}),
            head_dim=8,
            query_pre_attn_scalar=12,
            sliding_window=7,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        ),
    ),
    "smollm3": (
        SmolLM3ForCausalLM,
        SmolLM3Config(**(SIZES | {"num_hidden_layers": 4}), pad_token_id=0, tie_word_embeddings=True),
    ),
    "phi3": (
        Phi3ForCausalLM,
        Phi3Config(
            **SIZES,
            pad_token_id=0,
            eos_token_id=2,
            original_max_position_embeddings=32,
            rope_parameters=dict(
                rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75,
                short_factor=[1.0, 1.1, 1.3], long_factor=[2.0, 3.0, 4.0],
            ),
        ),
    ),
    "granite": (GraniteForCausalLM, GraniteConfig(**SIZES, **GRANITE, tie_word_embeddings=True)),
    "granite4": (
        GraniteMoeHybridForCausalLM,
        GraniteMoeHybridConfig(
            **SIZES,
            **GRANITE,
            num_local_experts=0,
            num_experts_per_tok=0,
            shared_intermediate_size=40,
            position_embedding_type="rope",
            layer_types=["full_attention"] * 2,
            mamba_n_heads=8,
        ),
    ),
    "qwen3_moe": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(
            **(SMALL | {"num_hidden_layers": 3}), head_dim=8, num_experts=6, num_experts_per_tok=3,
            moe_intermediate_size=16, norm_topk_prob=True, mlp_only_layers=[1],
        ),
    ),
    "mixtral": (MixtralForCausalLM, MixtralConfig(**SMALL, num_local_experts=4, sliding_window=9)),
    "olmoe": (OlmoeForCausalLM, OlmoeConfig(**SMALL, num_experts=5, num_experts_per_tok=2)),
    "granite_moe": (
        GraniteMoeForCausalLM,
        GraniteMoeConfig(**SMALL, **GRANITE, num_local_experts=4, num_experts_per_tok=2),
    ),
    "lfm2": (
        Lfm2ForCausalLM,
        Lfm2Config(
            **(SIZES | {"num_hidden_layers": 4}), block_multiple_of=16, conv_bias=True,
            layer_types=["conv", "full_attention", "conv", "conv"],
        ),
    ),
}


def main():
    os.makedirs(HERE, exist_ok=True)
    for seed, (name, (kind, config)) in enumerate(MODELS.items()):
        if sys.argv[1:] and name not in sys.argv:
            continue
        torch.manual_seed(seed)
        config._attn_implementation = "eager"
        model = kind(config).eval()
        with torch.no_grad():
            for key, tensor in model.named_parameters():
                # Norms and biases that are not what they begin with.
                if tensor.dim() == 1:
                    tensor.add_(torch.randn_like(tensor) * 0.3)
            ids = torch.randint(0, config.vocab_size, (1, TOKENS))
            logits = model(ids).logits[0]
        tensors = {k: v.contiguous().clone() for k, v in model.state_dict().items()}
        if any(tensor.dim() == 3 for tensor in tensors.values()):
            # As files have them.
            with tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder)
                tensors = load_file(os.path.join(folder, "model.safetensors"))
        if config.tie_word_embeddings:
            tensors.pop("lm_head.weight", None)
        tensors |= {"ids": ids, "logits": logits}
        save_file(tensors, os.path.join(HERE, f"{name}.safetensors"))
        with open(os.path.join(HERE, f"{name}.json"), "w") as f:
            json.dump(json.loads(config.to_json_string()) | {"tie_word_embeddings": config.tie_word_embeddings}, f, sort_keys=True)
            f.write("\n")
        print(name, float(logits.abs().max()))


if __name__ == "__main__":
    main()
