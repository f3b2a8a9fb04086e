//! The keys of decoders' GGUF files, as gguf 0.19 and llama.cpp name them. Keys of the architecture
//! and the tokenizer without a row are refused, other keys are reported.

use candle_dynquant_io::keys::Table;
use candle_dynquant_io::keys::Treatment::{Harmless, Only, Used};

/// The architectures, by their names in the files.
pub const ARCHITECTURES: &str =
    "llama, qwen2, qwen3, smollm3, granite, gemma3, qwen3moe, olmoe, granitemoe, lfm2, phi3";
pub const TOKENS: &str = "tokenizer.ggml.tokens";
pub const BOS: &str = "tokenizer.ggml.bos_token_id";

/// Expands rows with many long keys.
macro_rules! rows {
    ($($treatment:expr => $($key:literal)+;)+) => { &[$((&[$($key),+], $treatment)),+] };
}

/// The keys of metadata, in which `{arch}` is the architecture.
pub const METADATA: Table = Table(rows! {
    Used =>
        "general.architecture" "general.alignment" "split.no" "split.count" "split.tensors.count"
        "{arch}.context_length" "{arch}.embedding_length" "{arch}.block_count"
        "{arch}.feed_forward_length" "{arch}.attention.head_count" "{arch}.attention.head_count_kv"
        "{arch}.attention.layer_norm_rms_epsilon" "{arch}.attention.key_length"
        "{arch}.attention.value_length" "{arch}.attention.key_length_swa"
        "{arch}.attention.value_length_swa" "{arch}.attention.sliding_window"
        "{arch}.attention.sliding_window_pattern" "{arch}.rope.dimension_count"
        "{arch}.rope.dimension_count_swa" "{arch}.rope.freq_base" "{arch}.rope.freq_base_swa"
        "{arch}.rope.scaling.type" "{arch}.rope.scaling.factor"
        "{arch}.expert_count" "{arch}.expert_used_count" "{arch}.expert_feed_forward_length"
        "{arch}.shortconv.l_cache"
        "tokenizer.ggml.model" "tokenizer.ggml.pre" "tokenizer.ggml.tokens"
        "tokenizer.ggml.token_type" "tokenizer.ggml.scores" "tokenizer.ggml.merges"
        "tokenizer.ggml.bos_token_id" "tokenizer.ggml.eos_token_id" "tokenizer.ggml.eot_token_id"
        "tokenizer.ggml.eom_token_id" "tokenizer.ggml.unknown_token_id"
        "tokenizer.ggml.fim_pad_token_id" "tokenizer.ggml.fim_rep_token_id"
        "tokenizer.ggml.fim_sep_token_id" "tokenizer.ggml.add_bos_token"
        "tokenizer.ggml.add_space_prefix" "tokenizer.chat_template";
    Only(&["\"model\""]) => "general.type";
    Only(&["2"]) => "general.quantization_version";
    Only(&["\"Meta AI original pth\""]) => "{arch}.tensor_data_layout";
    Only(&["0", "1"]) => "{arch}.expert_gating_func";
    Only(&["true"]) => "{arch}.attention.causal";
    Only(&["0.0"]) =>
        "{arch}.attention.max_alibi_bias" "{arch}.attention.clamp_kqv" "{arch}.attention.scale"
        "{arch}.attn_logit_softcapping" "{arch}.final_logit_softcapping" "{arch}.logit_scale";
    Only(&["1.0"]) => "{arch}.rope.scaling.attn_factor";
    Only(&["false"]) =>
        "{arch}.use_parallel_residual" "tokenizer.ggml.add_eos_token"
        "tokenizer.ggml.add_sep_token" "tokenizer.ggml.remove_extra_whitespaces";
    Harmless("each tensor states its type") => "general.file_type";
    Harmless("defaults of sampling, which is the caller's") => "general.sampling.*";
    Harmless("the origin of the model") =>
        "general.name" "general.author" "general.version" "general.organization"
        "general.finetune" "general.basename" "general.description" "general.quantized_by"
        "general.size_label" "general.license" "general.license.*" "general.url" "general.doi"
        "general.uuid" "general.repo_url" "general.source.*" "general.base_model.*"
        "general.dataset.*" "general.tags" "general.languages" "quantize.imatrix.*" "imatrix.*";
    Harmless("the tokens are counted by their list") => "{arch}.vocab_size";
    Harmless("of embeddings, not of scores of tokens") => "{arch}.pooling_type";
    Harmless("of norms with a mean, which these decoders lack") =>
        "{arch}.attention.layer_norm_epsilon";
    Harmless("of scalings that are refused by their type") =>
        "{arch}.rope.scaling.original_context_length" "{arch}.rope.scaling.finetuned";
    Harmless("of encoders, and of batches that are filled up") =>
        "tokenizer.ggml.token_type_count" "tokenizer.ggml.seperator_token_id"
        "tokenizer.ggml.padding_token_id" "tokenizer.ggml.mask_token_id"
        "tokenizer.ggml.cls_token_id";
    Harmless("of texts around a gap, which the caller writes") =>
        "tokenizer.ggml.fim_pre_token_id" "tokenizer.ggml.fim_suf_token_id"
        "tokenizer.ggml.fim_mid_token_id" "tokenizer.ggml.prefix_token_id"
        "tokenizer.ggml.suffix_token_id" "tokenizer.ggml.middle_token_id";
    Harmless("templates for which nobody asks") =>
        "tokenizer.chat_template.*" "tokenizer.chat_templates";
    Harmless("forms of the tokenizer that llama.cpp does not read either") =>
        "tokenizer.huggingface.json" "tokenizer.rwkv.world";
});

/// Keys that mean another thing, or nothing, for other architectures.
pub const SPECIAL: [(&[&str], Table); 2] = [
    (
        &["granite", "granitemoe"],
        Table(rows! {
            Used =>
                "{arch}.attention.scale" "{arch}.embedding_scale" "{arch}.residual_scale"
                "{arch}.logit_scale";
        }),
    ),
    (
        &["phi3"],
        Table(rows! {
            Used =>
                "{arch}.rope.scaling.attn_factor" "{arch}.rope.scaling.original_context_length";
        }),
    ),
];
