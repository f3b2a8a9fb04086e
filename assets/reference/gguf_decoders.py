#!/usr/bin/env python3
"""Tiny random decoders as llama.cpp's converter writes them, and what the real libraries compute.

    python gguf_decoders.py [NAME ..]

Needs torch==2.9.1 transformers==4.57.6 sentencepiece==0.2.3 gguf==0.19.0; gguf_biases, gguf_smollm3,
gguf_granite, gguf_lfm2, gguf_phi3 and mixtures of experts (gguf_qwen3moe, gguf_mixtral, gguf_olmoe, gguf_granitemoe) are by
transformers==5.24.0. Writes, in decoders/, gguf_llama (Llama 3's scaling as factors of frequencies),
gguf_gemma3 (windows, and linear scaling where there is none), gguf_biases (a llama whose products
all have a bias), gguf_smollm3 and gguf_granite: NAME.gguf, with a SentencePiece vocabulary trained on
../lstm/heldout.txt; and NAME.json, the tokens that sentencepiece gives each text, and the logits
[vocab] of transformers after those of the first.
"""

import io
import json
import math
import os
import sys

import gguf
import sentencepiece
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    GraniteMoeConfig,
    GraniteMoeForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA3 = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
)
TEXTS = [
    "The river ran by the house.",
    "",
    " ",
    "  two  spaces ",
    "a\n\nb\t c\r\n",
    "1234567890 and 3.14",
    "na\u00efve caf\u00e9, \u4f60\u597d \U0001f600!",
    "\u2581 marks \u2581\u2581 as they are",
    "don't, won't; (it's)",
    "the the the thethethe tttttthhhhhheeeeee",
]


def vocabulary(prefix):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        input=os.path.join(HERE, "../lstm/heldout.txt"),
        model_writer=model,
        model_type="bpe",
        vocab_size=480,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def kind(pieces, i):
    if pieces.is_unknown(i):
        return gguf.TokenType.UNKNOWN
    if pieces.is_control(i):
        return gguf.TokenType.CONTROL
    return gguf.TokenType.BYTE if pieces.is_byte(i) else gguf.TokenType.NORMAL


def factors(config):
    """Of each frequency, what llama.cpp divides it by."""
    out = []
    for i in range(config.head_dim // 2):
        wave = 2 * math.pi * config.rope_theta ** (2 * i / config.head_dim)
        turns = LLAMA3["original_max_position_embeddings"] / wave
        low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
        share = min(1.0, max(0.0, (turns - low) / (high - low)))
        out.append(1 / (share + (1 - share) / LLAMA3["factor"]))
    return torch.tensor(out, dtype=torch.float32)


def interleaved(weight, heads):
    """Rows of queries and keys in the order in which llama.cpp turns pairs."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def pairs(writer, config, tensors):
    """Queries and keys as of a llama."""
    head_dim = config.hidden_size // config.num_attention_heads
    for name in tensors:
        if "q_proj" in name:
            tensors[name] = interleaved(tensors[name], config.num_attention_heads)
        if "k_proj" in name:
            tensors[name] = interleaved(tensors[name], config.num_key_value_heads)
    writer.add_rope_dimension_count(head_dim)


def llama(writer, config, tensors):
    pairs(writer, config, tensors)
    if not config.attention_bias:
        writer.add_tensor("rope_freqs.weight", factors(config).numpy())


def granite(writer, config, tensors):
    pairs(writer, config, tensors)
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def experts(writer, config, tensors):
    """The matrices of experts, each of them a tensor."""
    for name in [name for name in tensors if ".block_sparse_moe." in name]:
        new = name.replace("block_sparse_moe", "mlp").replace("router", "gate")
        tensors[new] = tensors.pop(name)
    for name in [name for name in tensors if name.endswith("experts.gate_up_proj")]:
        path = name.removesuffix("gate_up_proj")
        gate, up = tensors.pop(name).chunk(2, dim=1)
        parts = {"gate_proj": gate, "up_proj": up, "down_proj": tensors.pop(path + "down_proj")}
        tensors |= {f"{path}{part}.weight": tensor for part, tensor in parts.items()}
    writer.add_expert_count(config.num_local_experts if hasattr(config, "num_local_experts") else config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)


def mixtral(writer, config, tensors):
    pairs(writer, config, tensors)
    experts(writer, config, tensors)


def granite_moe(writer, config, tensors):
    granite(writer, config, tensors)
    experts(writer, config, tensors)


def qwen3moe(writer, config, tensors):
    experts(writer, config, tensors)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)


def lfm2(writer, config, tensors):
    """A layer without heads of keys has a convolution."""
    for name in tensors:
        if name.endswith("conv.conv.weight"):
            tensors[name] = tensors[name].squeeze(1)
    heads = [config.num_key_value_heads if kind == "full_attention" else 0 for kind in config.layer_types]
    writer.add_head_count_kv(heads)
    writer.add_shortconv_l_cache(config.conv_L_cache)


def phi3(writer, config, tensors):
    """Factors of frequencies for short and long texts, and of cosines and sines."""
    parameters = config.rope_parameters
    rotated = int(config.hidden_size // config.num_attention_heads * parameters["partial_rotary_factor"])
    writer.add_rope_dimension_count(rotated)
    first = config.original_max_position_embeddings
    writer.add_rope_scaling_orig_ctx_len(first)
    stretched = config.max_position_embeddings / first
    writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretched) / math.log(first)))
    writer.add_sliding_window(config.sliding_window or 0)
    for kind in "short", "long":
        values = torch.tensor(parameters[f"{kind}_factor"], dtype=torch.float32)
        writer.add_tensor(f"rope_factors_{kind}.weight", values.numpy())


def gemma3(writer, config, tensors):
    for name in tensors:
        if name.endswith("norm.weight"):
            tensors[name] = tensors[name] + 1
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_sliding_window(config.sliding_window)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(config.rope_scaling["factor"])
    writer.add_add_space_prefix(False)


def write(name, own, kind_of_model, config, prefix, architecture=None):
    if sys.argv[1:] and name not in sys.argv:
        return
    torch.manual_seed(0)
    config.vocab_size = 480
    config._attn_implementation = "eager"
    model = kind_of_model(config).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.dim() == 1:
                tensor.add_(torch.randn_like(tensor) * 0.3)
    pieces = vocabulary(prefix)
    tokens = [[pieces.bos_id()] + pieces.encode(text) for text in TEXTS]
    with torch.no_grad():
        logits = model(torch.tensor(tokens[:1])).logits[0, -1]

    out = os.path.join(HERE, "decoders", f"gguf_{name}")
    writer = gguf.GGUFWriter(out + ".gguf", architecture or name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    if own is not lfm2:
        writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(getattr(config, "norm_eps", None) or config.rms_norm_eps)
    parameters = getattr(config, "rope_parameters", None) or {}
    writer.add_rope_freq_base(parameters.get("rope_theta") or getattr(config, "rope_theta", 10000.0))
    writer.add_tokenizer_model("llama")
    ids = range(pieces.vocab_size())
    writer.add_token_list([pieces.id_to_piece(i) for i in ids])
    writer.add_token_scores([pieces.get_score(i) for i in ids])
    writer.add_token_types([kind(pieces, i) for i in ids])
    writer.add_bos_token_id(pieces.bos_id())
    writer.add_eos_token_id(pieces.eos_id())
    writer.add_unk_token_id(pieces.unk_id())
    tensors = dict(model.state_dict())
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    own(writer, config, tensors)
    names = gguf.get_tensor_name_map(writer_arch(architecture or name), config.num_hidden_layers)
    for key, tensor in tensors.items():
        writer.add_tensor(names.get_name(key, try_suffixes=(".weight", ".bias")), tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    texts = [{"text": text, "ids": ids} for text, ids in zip(TEXTS, tokens)]
    with open(out + ".json", "w") as f:
        json.dump({"texts": texts, "logits": logits.tolist()}, f)
        f.write("\n")
    print(name, os.path.getsize(out + ".gguf"), [len(ids) for ids in tokens], float(logits.abs().max()))


def writer_arch(name):
    return next(arch for arch, text in gguf.MODEL_ARCH_NAMES.items() if text == name)


def main():
    sizes = dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.3)
    config = LlamaConfig(
        **sizes, hidden_size=32, intermediate_size=48, num_hidden_layers=2, rope_theta=500000.0, rope_scaling=LLAMA3
    )
    write("llama", llama, LlamaForCausalLM, config, True)
    config = Gemma3TextConfig(
        **sizes, hidden_size=16, intermediate_size=24, num_hidden_layers=7, head_dim=8, query_pre_attn_scalar=8,
        sliding_window=7, rope_scaling=dict(rope_type="linear", factor=8.0),
    )
    write("gemma3", gemma3, Gemma3ForCausalLM, config, False)
    config = LlamaConfig(
        **sizes, hidden_size=32, intermediate_size=48, num_hidden_layers=2, attention_bias=True, mlp_bias=True,
        tie_word_embeddings=True,
    )
    write("biases", llama, LlamaForCausalLM, config, True, "llama")
    small = sizes | dict(hidden_size=32, intermediate_size=48, pad_token_id=0)
    config = SmolLM3Config(**small, num_hidden_layers=5, tie_word_embeddings=True)
    write("smollm3", pairs, SmolLM3ForCausalLM, config, True)
    config = GraniteConfig(
        **small, num_hidden_layers=2, embedding_multiplier=6.0, attention_multiplier=0.2, residual_multiplier=0.4,
        logits_scaling=3.0,
    )
    write("granite", granite, GraniteForCausalLM, config, True)
    few = small | dict(num_hidden_layers=1, intermediate_size=32, tie_word_embeddings=True)
    config = Qwen3MoeConfig(
        **few, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True
    )
    write("qwen3moe", qwen3moe, Qwen3MoeForCausalLM, config, True)
    write("mixtral", mixtral, MixtralForCausalLM, MixtralConfig(**few, num_local_experts=4), True, "llama")
    config = OlmoeConfig(**(few | dict(num_key_value_heads=4, tie_word_embeddings=False)), num_experts=4, num_experts_per_tok=2)
    write("olmoe", experts, OlmoeForCausalLM, config, True)
    config = GraniteMoeConfig(
        **few, num_local_experts=4, embedding_multiplier=6.0, attention_multiplier=0.2, residual_multiplier=0.4,
        logits_scaling=3.0,
    )
    write("granitemoe", granite_moe, GraniteMoeForCausalLM, config, True)
    config = Lfm2Config(
        **small, num_hidden_layers=3, block_auto_adjust_ff_dim=False, layer_types=["conv", "full_attention", "conv"]
    )
    write("lfm2", lfm2, Lfm2ForCausalLM, config, True)
    config = Phi3Config(
        **small, num_hidden_layers=2, eos_token_id=2, original_max_position_embeddings=32,
        rope_parameters=dict(
            rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75, short_factor=[1.0, 1.1, 1.3],
            long_factor=[2.0, 3.0, 4.0],
        ),
    )
    write("phi3", phi3, Phi3ForCausalLM, config, True)


if __name__ == "__main__":
    main()
