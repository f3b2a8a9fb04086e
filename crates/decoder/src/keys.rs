//! The keys of a decoder's JSON files: all that transformers 5.24 writes for this family.

use anyhow::{Result, bail};
use candle_dynquant_io::keys::Table;
use candle_dynquant_io::keys::Treatment::{Harmless, Only, Used};
use serde_json::{Map, Value};

use crate::family::Family;

const ABSENT: &[&str] = &["null"];
const OFF: &[&str] = &["null", "false"];

/// The keys of `config.json`, for every model.
#[rustfmt::skip]
const CONFIG: Table = Table(&[
    (&["model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling",
        "rope_parameters", "tie_word_embeddings", "eos_token_id", "bos_token_id"], Used),
    (&["partial_rotary_factor"], Only(&["null", "1", "1.0"])),
    (&["pretraining_tp"], Only(&["null", "1"])),
    (&["is_encoder_decoder", "use_mrope"], Only(OFF)),
    (&["per_layer_config", "*_logit_softcapping", "original_max_position_embeddings"], Only(ABSENT)),
    (&["quantization_config", "compression_config"], Harmless("read with the weights")),
    (&["architectures"], Harmless("each tensor is checked by its name")),
    (&["attention_dropout", "initializer_range"], Harmless("of training")),
    (&["dtype", "torch_dtype"], Harmless("tensors state their own")),
    (&["pad_token_id", "use_cache", "chunk_size_feed_forward", "_attn_implementation*", "_experts_implementation*"],
        Harmless("the scores are the same")),
    (&["output_*", "return_dict", "tie_last_hidden_states"], Harmless("further outputs")),
    (&["id2label", "label2id", "num_labels", "problem_type"], Harmless("of classifiers' heads")),
    (&["transformers_version", "_name_or_path", "name_or_path", "_commit_hash"], Harmless("origin")),
    (&["is_causal"], Only(&["null", "true"])),
]);

#[rustfmt::skip]
const LLAMA: Table = Table(&[
    (&["hidden_act", "attention_bias", "mlp_bias"], Used),
    // transformers keeps only a window of keys then, in some of its calls.
    (&["sliding_window", "attention_chunk_size", "layer_types"], Only(ABSENT)),
]);
#[rustfmt::skip]
const MISTRAL: Table = Table(&[
    (&["hidden_act", "sliding_window"], Used),
    // transformers takes the model for another family then.
    (&["layer_types"], Only(ABSENT)),
]);
#[rustfmt::skip]
const QWEN2: Table = Table(&[
    (&["hidden_act", "use_sliding_window", "sliding_window", "max_window_layers", "layer_types"], Used),
]);
#[rustfmt::skip]
const QWEN3: Table = Table(&[
    (&["hidden_act", "use_sliding_window", "sliding_window", "max_window_layers", "layer_types", "attention_bias"], Used),
]);
#[rustfmt::skip]
const GEMMA3: Table = Table(&[
    (&["hidden_activation", "attention_bias", "query_pre_attn_scalar", "layer_types", "sliding_window",
        "sliding_window_pattern", "rope_local_base_freq"], Used),
    (&["use_bidirectional_attention"], Only(OFF)),
    (&["_sliding_window_pattern"], Harmless("layer_types says it")),
]);

#[rustfmt::skip]
const SMOLLM3: Table = Table(&[
    (&["hidden_act", "attention_bias", "mlp_bias", "use_sliding_window", "sliding_window", "layer_types", "no_rope_layers",
        "no_rope_layer_interval"], Used),
    (&["max_window_layers", "pretraining_tp"], Harmless("its class does not read it")),
]);
#[rustfmt::skip]
const GRANITE: Table = Table(&[
    (&["hidden_act", "attention_bias", "mlp_bias", "embedding_multiplier", "attention_multiplier", "residual_multiplier",
        "logits_scaling"], Used),
]);
#[rustfmt::skip]
const PHI3: Table = Table(&[
    (&["hidden_act", "sliding_window", "partial_rotary_factor", "original_max_position_embeddings"], Used),
    (&["attention_bias"], Only(OFF)),
    (&["embd_pdrop", "resid_pdrop"], Harmless("of training")),
    (&["auto_map"], Harmless("code of older versions")),
]);
#[rustfmt::skip]
const PHI3_ROPE: Table = Table(&[
    (&["partial_rotary_factor", "short_factor", "attention_factor"], Used),
    (&["long_factor"], Harmless("of positions that a text may not have")),
]);
#[rustfmt::skip]
const QWEN3_MOE: Table = Table(&[
    (&["hidden_act", "attention_bias", "num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size",
        "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"], Used),
    (&["use_sliding_window"], Only(OFF)),
    (&["sliding_window", "max_window_layers"], Harmless("of windows, which are refused")),
    (&["router_aux_loss_coef"], Harmless("of training")),
]);
#[rustfmt::skip]
const MIXTRAL: Table = Table(&[
    (&["hidden_act", "sliding_window", "num_local_experts", "num_experts_per_tok"], Used),
    (&["router_aux_loss_coef", "router_jitter_noise"], Harmless("of training")),
]);
#[rustfmt::skip]
const OLMOE: Table = Table(&[
    (&["hidden_act", "attention_bias", "num_experts", "num_local_experts", "num_experts_per_tok", "norm_topk_prob"], Used),
    (&["clip_qkv"], Only(ABSENT)),
    (&["router_aux_loss_coef"], Harmless("of training")),
]);
#[rustfmt::skip]
const GRANITE_MOE: Table = Table(&[
    (&["hidden_act", "attention_bias", "embedding_multiplier", "attention_multiplier", "residual_multiplier",
        "logits_scaling", "num_local_experts", "num_experts_per_tok"], Used),
    (&["router_aux_loss_coef"], Harmless("of training")),
]);
#[rustfmt::skip]
const GRANITE_MOE_HYBRID: Table = Table(&[
    (&["hidden_act", "attention_bias", "embedding_multiplier", "attention_multiplier", "residual_multiplier",
        "logits_scaling", "layer_types", "shared_intermediate_size", "position_embedding_type"], Used),
    (&["num_local_experts"], Only(&["null", "0"])),
    (&["normalization_function"], Only(&["null", "\"rmsnorm\""])),
    (&["num_experts_per_tok", "router_aux_loss_coef", "mamba_*", "time_step_*"],
        Harmless("of layers that layer_types and num_local_experts refuse")),
    (&["init_method"], Harmless("of training")),
]);

#[rustfmt::skip]
const LFM2: Table = Table(&[
    (&["norm_eps", "tie_embedding", "block_ff_dim", "block_auto_adjust_ff_dim", "block_ffn_dim_multiplier",
        "block_multiple_of", "full_attn_idxs", "layer_types", "conv_L_cache", "conv_bias"], Used),
    (&["rms_norm_eps", "block_*", "conv_*", "num_heads", "use_pos_enc"], Harmless("its class does not read it")),
]);

/// The defaults of keys where they differ from `Config`'s.
#[rustfmt::skip]
const DEFAULTS: [(Table, &str); 14] = [
    (LLAMA, "{}"),
    (MISTRAL, r#"{"num_key_value_heads": 8, "sliding_window": 4096}"#),
    (QWEN2, r#"{"num_key_value_heads": 32, "sliding_window": 4096}"#),
    (QWEN3, r#"{"num_key_value_heads": 32, "sliding_window": 4096, "head_dim": 128}"#),
    (GEMMA3, r#"{"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096, "query_pre_attn_scalar": 256,
        "rope_theta": 1e6, "rope_local_base_freq": 1e4}"#),
    (SMOLLM3, r#"{"num_key_value_heads": 4, "rope_theta": 2e6, "tie_word_embeddings": true}"#),
    (GRANITE, r#"{"attention_multiplier": 1.0}"#),
    (PHI3, r#"{"rms_norm_eps": 1e-5}"#),
    (QWEN3_MOE, r#"{"num_key_value_heads": 4, "num_experts_per_tok": 8, "moe_intermediate_size": 768}"#),
    (MIXTRAL, r#"{"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_experts_per_tok": 2}"#),
    (OLMOE, r#"{"rms_norm_eps": 1e-5, "num_experts_per_tok": 8}"#),
    (GRANITE_MOE, r#"{"attention_multiplier": 1.0, "num_experts_per_tok": 2}"#),
    (GRANITE_MOE_HYBRID, r#"{"attention_multiplier": 1.0, "shared_intermediate_size": 1024}"#),
    (LFM2, r#"{"intermediate_size": 12288, "num_key_value_heads": 8, "norm_eps": 1e-5, "rope_theta": 1e6,
        "tie_word_embeddings": true}"#),
];

/// The keys of `rope_scaling` and `rope_parameters` in `config.json`.
#[rustfmt::skip]
const ROPE: Table = Table(&[
    (&["rope_theta", "rope_type", "type", "factor", "low_freq_factor", "high_freq_factor",
        "original_max_position_embeddings"], Used),
    (&["partial_rotary_factor"], Only(&["null", "1", "1.0"])),
]);

/// The keys of `generation_config.json`.
#[rustfmt::skip]
pub const GENERATION: Table = Table(&[
    (&["eos_token_id", "do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"], Used),
    (&["bos_token_id", "pad_token_id", "decoder_start_token_id"], Harmless("of prompts and batches")),
    (&["max_length", "max_new_tokens", "max_time"], Harmless("the caller states a length")),
    (&["use_cache", "cache_*", "max_cache_len", "*compile*", "low_memory", "prefill_chunk_size", "use_mtp", "assistant_*",
        "*_assistant*", "speculation_type", "target_lookbehind", "continuous_batching_config", "max_matching_ngram_size",
        "prompt_lookup_num_tokens"], Harmless("of speed")),
    (&["output_*", "return_dict_in_generate", "num_return_sequences"], Harmless("further outputs")),
    (&["transformers_version", "_from_model_config", "_commit_hash", "trust_remote_code"], Harmless("origin")),
    (&["remove_invalid_values"], Harmless("scores that are NaN are an error")),
    (&["early_stopping", "length_penalty", "diversity_penalty"], Harmless("of beams only")),
    (&["num_beams", "num_beam_groups"], Only(&["null", "1"])),
    (&["min_length", "min_new_tokens", "*no_repeat_ngram_size"], Only(&["null", "0"])),
    (&["top_h", "stop_strings", "bad_words_ids", "forced_*_token_id", "exponential_decay_length_penalty",
        "*suppress_tokens", "sequence_bias", "watermarking_config", "penalty_alpha", "dola_layers", "constraints",
        "force_words_ids"], Only(ABSENT)),
    (&["typical_p", "encoder_repetition_penalty", "guidance_scale"], Only(&["null", "1", "1.0"])),
    (&["epsilon_cutoff", "eta_cutoff"], Only(&["null", "0", "0.0"])),
    (&["renormalize_logits", "token_healing"], Only(OFF)),
]);

/// The keys of `tokenizer_config.json` and `special_tokens_map.json`.
#[rustfmt::skip]
pub const TOKENIZER: Table = Table(&[
    (&["add_bos_token", "add_eos_token"], Harmless("tokenizer.json says it, for transformers, too")),
    (&["chat_template", "*_token", "added_tokens_decoder", "additional_special_tokens", "extra_special_tokens",
        "add_prefix_space", "tokenizer_class"], Used),
    (&[ "backend", "auto_map", "processor_class",
        "legacy", "from_slow", "*vocab*", "merges*", "sp_model_kwargs", "errors", "unk_id",
        "tokenizer_file", "spaces_between_special_tokens", "do_lower_case", "strip_accents", "tokenize_chinese_chars"],
        Harmless("tokenizer.json says it")),
    (&["model_max_length", "max_length", "stride", "trunc*", "pad*"], Harmless("of batches; config.json has the limit")),
    (&["clean_up_tokenization_spaces"], Harmless("texts are decoded as the tokenizer has them")),
    (&["use_default_system_prompt"], Harmless("of templates that no file has")),
    (&["name_or_path", "special_tokens_map_file", "is_local", "local_files_only", "transformers_version"],
        Harmless("origin")),
    (&["model_input_names", "return_token_type_ids", "model_specific_special_tokens"], Harmless("of other models")),
    (&["split_special_tokens", "fix_mistral_regex"], Only(OFF)),
]);

/// The keys of a model's `config.json` that `Config` reads, with the defaults of its class, and the
/// keys that no table has.
///
/// # Errors
/// When a key asks for a feature that this model lacks.
pub fn config(family: Family, all: Map<String, Value>) -> Result<(Value, Vec<String>)> {
    let (of_family, defaults) = DEFAULTS[family as usize];
    let mut used: Map<String, Value> = serde_json::from_str(defaults)?;
    let mut unknown = Vec::new();
    for (key, value) in all {
        let rows = [of_family, CONFIG].into_iter().find(|table| table.treatment(&key).is_some());
        let Some(rows) = rows else {
            // The settings of generation are read where no other file has them.
            if GENERATION.treatment(&key).is_none() {
                unknown.push(key);
            }
            continue;
        };
        rows.check([(&*key, value.to_string())])?;
        if rows.treatment(&key) == Some(Used) {
            used.insert(key, value);
        }
    }
    for key in ["rope_scaling", "rope_parameters"] {
        rope(family, key, used.get(key))?;
    }
    Ok((used.into(), unknown))
}

/// Checks an object of rotary embeddings, or an object per type of layer.
fn rope(family: Family, key: &str, value: Option<&Value>) -> Result<()> {
    let keys = value.and_then(Value::as_object);
    for (name, value) in keys.into_iter().flatten() {
        if ["full_attention", "sliding_attention"].contains(&&**name) {
            rope(family, key, Some(value))?;
        } else if family == Family::Phi3 && PHI3_ROPE.treatment(name).is_some() {
            continue;
        } else if let [unknown] = ROPE.check([(&**name, value.to_string())])?[..] {
            bail!("key {key:?}: {unknown:?} is not computed");
        }
    }
    Ok(())
}

/// The notes on a file whose keys do not change the model's answers.
pub fn notes(table: Table, keys: &Map<String, Value>) -> Vec<String> {
    let note = |(key, value): (&String, &Value)| match table.check([(&**key, value.to_string())]) {
        Err(refused) => Some(format!("{refused}: not computed")),
        Ok(unknown) if !unknown.is_empty() => Some(format!("key {key:?}: not known")),
        Ok(_) => None,
    };
    keys.iter().filter_map(note).collect()
}
