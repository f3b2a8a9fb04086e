//! The keys of `config.json`, by architecture. A key without a row is reported by programs, since
//! transformers ignores it.

use candle_dynquant_io::keys::Table;
use candle_dynquant_io::keys::Treatment::{Harmless, Only, Used};

/// The keys of all models, and keys outside of the architectures.
#[rustfmt::skip]
pub(crate) const COMMON: Table = Table(&[
    (&["architectures", "model_type", "id2label", "num_labels", "problem_type", "tie_word_embeddings",
       "tokenizer_class", "vocab_size", "sentence_transformers", "sbert_ce_default_activation_function",
       "quantization_config", "compression_config", "lora_adaptations", "lora_rank", "lora_alpha"], Used),
    (&["_name_or_path", "name_or_path", "transformers_version", "auto_map", "finetuning_task"],
     Harmless("names and versions of what wrote the file")),
    (&["dtype", "torch_dtype"], Harmless("weights are read as they are stored")),
    (&["label2id"], Harmless("id2label says the same")),
    (&["*dropout*", "*_pdrop", "initializer_*", "gradient_checkpointing"], Harmless("for training")),
    (&["output_attentions", "output_hidden_states", "return_dict", "use_return_dict", "torchscript", "output_past"],
     Harmless("what else a call returns")),
    (&["use_cache", "cache_implementation", "chunk_size_feed_forward", "*attn_implementation*"],
     Harmless("how the same numbers are computed")),
    (&["bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "mask_token_id",
       "decoder_start_token_id"], Harmless("tokenizer.json has the tokens")),
    (&["pad_token_id"], Harmless("texts are not padded")),
    (&["is_decoder", "is_encoder_decoder", "add_cross_attention", "is_causal"], Only(&["false"])),
    (&["transformers_weights", "fusion_config"], Only(&["null"])),
    (&["pruned_heads"], Only(&["{}"])),
]);

/// The keys that are made of a table of words alone.
pub(crate) const STATIC: Table =
    Table(&[(&["static_embedding", "vocab_size", "hidden_size"], Used)]);

#[rustfmt::skip]
pub(crate) const BERT: Table = Table(&[
    (&["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
       "max_position_embeddings", "type_vocab_size", "layer_norm_eps"], Used),
    (&["position_embedding_type"], Only(&["\"absolute\""])),
]);

#[rustfmt::skip]
pub(crate) const ELECTRA: Table = Table(&[
    (&["embedding_size"], Used),
    (&["summary_*"], Harmless("of a head for other tasks")),
]);

#[rustfmt::skip]
pub(crate) const ALBERT: Table = Table(&[
    (&["embedding_size", "num_hidden_groups", "inner_group_num"], Used),
    (&["net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor"],
     Harmless("transformers' ALBERT has no such key")),
]);

/// The keys of DeBERTa v2 and v3.
#[rustfmt::skip]
pub(crate) const DEBERTA: Table = Table(&[
    (&["relative_attention", "position_buckets", "max_relative_positions", "pos_att_type", "share_att_key",
       "position_biased_input", "embedding_size", "pooler_hidden_size", "pooler_hidden_act"], Used),
    (&["norm_rel_ebd"], Only(&["\"layer_norm\"", "\"none\""])),
    (&["conv_kernel_size"], Only(&["0"])),
    (&["conv_act", "conv_groups"], Harmless("without conv_kernel_size")),
    (&["attention_head_size"], Only(&["null"])),
    (&["legacy"], Harmless("of the head that guesses words")),
]);

/// The keys of RoBERTa, XLM-RoBERTa, CamemBERT and MPNet.
pub(crate) const ROBERTA: Table =
    Table(&[(&["pad_token_id", "relative_attention_num_buckets"], Used)]);

/// The keys of Jina BERT v2.
#[rustfmt::skip]
pub(crate) const JINA: Table = Table(&[
    (&["position_embedding_type", "feed_forward_type"], Used),
    (&["emb_pooler"], Harmless("1_Pooling has the pooling")),
]);

/// The keys of Jina embeddings v3, from its original code and from transformers.
#[rustfmt::skip]
pub(crate) const JINA_V3: Table = Table(&[
    (&["rotary_emb_base", "rope_theta", "rope_scaling", "rope_parameters", "task_instructions"], Used),
    (&["position_embedding_type"], Only(&["\"rotary\""])),
    (&["truncate_dim", "head_dim"], Only(&["null"])),
    (&["load_trained_adapters"], Only(&["true"])),
    (&["emb_pooler"], Harmless("1_Pooling has the pooling")),
    (&["matryoshka_dimensions"], Harmless("callers cut vectors")),
    (&["lora_main_params_trainable", "use_reentrant"], Harmless("for training")),
    (&["use_flash_attn"], Harmless("how the same numbers are computed")),
]);

#[rustfmt::skip]
pub(crate) const DISTILBERT: Table = Table(&[
    (&["hidden_size", "num_attention_heads", "num_hidden_layers", "dim", "n_heads", "n_layers", "hidden_dim", "activation", "max_position_embeddings"], Used),
    (&["sinusoidal_pos_embds"], Harmless("the weights have the rows of positions")),
    (&["tie_weights_"], Harmless("of the head that guesses words")),
]);

#[rustfmt::skip]
pub(crate) const MODERNBERT: Table = Table(&[
    (&["norm_eps", "norm_bias", "hidden_activation", "attention_bias", "mlp_bias", "layer_types",
       "rope_parameters", "local_attention", "global_attn_every_n_layers", "global_rope_theta",
       "local_rope_theta", "classifier_bias", "classifier_activation", "decoder_bias"], Used),
    (&["rope_scaling"], Only(&["null"])),
    (&["classifier_pooling"], Only(&["\"cls\"", "\"mean\""])),
    (&["sparse_prediction", "sparse_pred_ignore_index"],
     Harmless("of the head that guesses words")),
    (&["deterministic_flash_attn", "reference_compile", "repad_logits_with_grad"],
     Harmless("how the same numbers are computed")),
    (&["position_embedding_type", "layer_norm_eps"], Harmless("transformers' ModernBERT has no such key")),
]);

/// The keys of Nomic BERT, in GPT-2's terms and in BERT's.
#[rustfmt::skip]
pub(crate) const NOMIC: Table = Table(&[
    (&["n_embd", "n_head", "n_layer", "n_inner", "n_positions", "layer_norm_epsilon", "head_dim",
       "rotary_emb_base", "rope_theta", "rope_scaling", "rope_parameters", "qkv_proj_bias",
       "mlp_fc1_bias", "mlp_fc2_bias"], Used),
    (&["activation_function"], Only(&["\"swiglu\"", "\"gelu\""])),
    (&["prenorm", "use_rms_norm", "rotary_emb_interleaved", "causal", "parallel_block",
       "scale_attn_by_inverse_layer_idx"], Only(&["false"])),
    (&["scale_attn_weights"], Only(&["true"])),
    (&["rotary_emb_fraction"], Only(&["1.0", "1"])),
    (&["rotary_scaling_factor", "rotary_emb_scale_base"], Only(&["null"])),
    (&["num_experts", "moe_top_k", "moe_normalize_expert_weights", "expert_choice_router", "num_shared_experts",
       "ffn_div"], Used),
    (&["moe_every_n_layers"], Only(&["2", "0", "-1"])),
    (&["moe_impl", "router_aux_loss_coef"], Harmless("for training, or how the same numbers are computed")),
    (&["max_trained_positions"], Harmless("without rotary_scaling_factor")),
    (&["parallel_block_tied_norm"], Harmless("without parallel_block")),
    (&["use_flash_attn", "fused_*", "use_xentropy", "pad_vocab_size_multiple",
       "reorder_and_upcast_attn", "dense_seq_output", "last_layer_subset"],
     Harmless("how the same numbers are computed")),
    (&["summary_*"], Harmless("of a head for other tasks")),
]);

/// The keys of GTE, from its original code and from transformers.
#[rustfmt::skip]
pub(crate) const GTE: Table = Table(&[
    (&["rope_theta", "rope_scaling", "rope_parameters"], Used),
    (&["position_embedding_type"], Only(&["\"rope\""])),
    (&["layer_norm_type"], Only(&["\"layer_norm\""])),
    (&["pack_qkv"], Only(&["true"])),
    (&["logn_attention_scale"], Only(&["false"])),
    (&["logn_attention_clip1"], Harmless("without logn_attention_scale")),
    (&["unpad_inputs", "use_memory_efficient_attention"], Harmless("how the same numbers are computed")),
]);

/// The keys of Qwen3 and Gemma 3.
#[rustfmt::skip]
pub(crate) const DECODER: Table = Table(&[
    (&["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
       "intermediate_size", "max_position_embeddings", "rms_norm_eps", "attention_bias", "layer_types",
       "rope_theta", "rope_parameters", "pad_token_id"], Used),
    (&["attn_logit_softcapping", "final_logit_softcapping"], Only(&["null"])),
]);

#[rustfmt::skip]
pub(crate) const QWEN3: Table = Table(&[
    (&["hidden_act", "rope_scaling"], Used),
    (&["use_sliding_window"], Only(&["false"])),
    (&["is_causal"], Only(&["true"])),
    (&["sliding_window", "max_window_layers"], Harmless("without use_sliding_window")),
]);

#[rustfmt::skip]
pub(crate) const EUROBERT: Table = Table(&[
    (&["hidden_act", "rope_scaling", "mlp_bias", "classifier_pooling"], Used),
    // The name in the original code, which transformers does not read.
    (&["clf_pooling"], Only(&["\"late\""])),
    (&["pretraining_tp"], Harmless("how the same numbers are computed")),
    (&["mask_token", "pad_token"], Harmless("tokenizer.json has the tokens")),
]);

/// The keys of T5, in T5's terms and those that transformers also takes.
#[rustfmt::skip]
pub(crate) const T5: Table = Table(&[
    (&["d_model", "d_kv", "d_ff", "num_layers", "num_heads", "hidden_size", "head_dim", "num_hidden_layers",
       "num_attention_heads", "relative_attention_num_buckets", "relative_attention_max_distance",
       "layer_norm_epsilon", "feed_forward_proj", "is_gated_act", "dense_act_fn"], Used),
    (&["is_encoder_decoder", "num_decoder_layers", "scale_decoder_outputs", "task_specific_params"],
     Harmless("of the decoder")),
    (&["n_positions"], Harmless("tokenizer_config.json limits texts")),
]);

#[rustfmt::skip]
pub(crate) const GEMMA3: Table = Table(&[
    (&["hidden_activation", "query_pre_attn_scalar", "sliding_window", "sliding_window_pattern",
       "rope_local_base_freq", "use_bidirectional_attention"], Used),
    (&["_sliding_window_pattern"], Harmless("layer_types says the same")),
    (&["rope_scaling"], Only(&["null"])),
]);

/// The keys of the objects `rope_parameters` and `rope_scaling`.
#[rustfmt::skip]
pub(crate) const ROPE: Table = Table(&[
    (&["rope_theta", "rope_type", "type", "factor"], Used),
    (&["partial_rotary_factor"], Only(&["1.0", "1"])),
    (&["original_max_position_embeddings"], Harmless("of kinds that are refused")),
]);
