//! The files of sentence-transformers, with nested keys by path. A key without a row is refused,
//! except in `config_sentence_transformers.json`, whose unknown keys sentence-transformers ignores.

use candle_dynquant_io::keys::Table;
use candle_dynquant_io::keys::Treatment::{Harmless, Only, Used};

/// The keys of `sentence_bert_config.json` and of its other names.
#[rustfmt::skip]
pub(crate) const SENTENCE: Table = Table(&[
    (&["max_seq_length", "do_lower_case", "transformer_task", "module_output_name",
       "processing_kwargs.text.max_length", "processing_kwargs.chat_template.add_generation_prompt"], Used),
    (&["modality_config", "processing_kwargs", "processing_kwargs.text", "processing_kwargs.common",
       "processing_kwargs.chat_template", "*_args", "*_kwargs"], Only(&["{}"])),
    (&["processing_kwargs.chat_template.restore_suffix"], Only(&["true"])),
    (&["processing_kwargs.text.truncation"], Only(&["true", "\"longest_first\""])),
    (&["processing_kwargs.text.padding", "processing_kwargs.common.return_tensors", "unpad_inputs"],
     Harmless("texts are not padded")),
    (&["modality_config.text.method", "modality_config.message.method"], Only(&["\"forward\""])),
    (&["modality_config.text.method_output_name", "modality_config.message.method_output_name"],
     Only(&["\"last_hidden_state\"", "\"logits\""])),
    (&["modality_config.message.format"], Only(&["\"flat\""])),
    (&["query_length", "document_length", "query_expansion.strategy", "query_expansion.length",
       "query_expansion.attend", "query_expansion.token"], Used),
    (&["query_expansion", "tokenizer_name_or_path"], Only(&["null"])),
    (&["*_args.trust_remote_code", "*_kwargs.trust_remote_code"], Harmless("no file is run")),
    (&["model_args.*dtype", "model_kwargs.*dtype"], Harmless("weights are read as they are stored")),
    (&["model_args.attn_implementation", "model_kwargs.attn_implementation", "*.use_memory_efficient_attention",
       "*.unpad_inputs", "config_args.use_cache", "config_kwargs.use_cache", "backend"],
     Harmless("how the same numbers are computed")),
    (&["model_args.add_pooling_layer", "model_kwargs.add_pooling_layer"], Harmless("embeddings do without it")),
    (&["tokenizer_args.padding_side", "processor_kwargs.padding_side"], Harmless("texts are not padded")),
]);

/// The keys of `config_sentence_transformers.json`.
#[rustfmt::skip]
pub(crate) const PROMPTS: Table = Table(&[
    (&["prompts", "prompts.*", "default_prompt_name", "truncate_dim", "activation_fn"], Used),
    (&["model_type"], Only(&["\"SentenceTransformer\"", "\"CrossEncoder\"", "\"SparseEncoder\"",
                             "\"ColBERT\"", "\"MultiVectorEncoder\""])),
    (&["__version__", "__version__.*", "requirements", "requirements.*"],
     Harmless("versions of Python's packages")),
    (&["similarity_fn_name"], Harmless("callers compare vectors")),
    (&["keep_in_fp32_modules"], Harmless("activations between layers are f32")),
]);

/// The keys of late interaction: PyLate's in `config_sentence_transformers.json`, which has those of
/// `PROMPTS`, too, and those of `artifact.metadata` by Stanford's ColBERT.
#[rustfmt::skip]
pub(crate) const LATE: Table = Table(&[
    (&["query_prefix", "document_prefix", "query_length", "document_length", "attend_to_expansion_tokens",
       "do_query_expansion", "skiplist_words", "query_token_id", "doc_token_id", "query_maxlen", "doc_maxlen",
       "attend_to_mask_tokens", "mask_punctuation", "dim"], Used),
    (&["similarity"], Only(&["\"cosine\""])),
    (&["interaction"], Only(&["\"colbert\""])),
    (&["relu"], Only(&["false"])),
    (&["root", "experiment", "name", "rank", "nranks", "amp", "gpus", "overwrite", "avoid_fork_if_possible", "checkpoint",
       "triples", "collection", "queries", "index_*", "bsize", "accumsteps", "lr", "maxsteps", "save_every", "resume",
       "warmup", "warmup_bert", "nway", "use_ib_negatives", "reranker", "distillation_alpha", "ignore_scores",
       "model_name", "nbits", "kmeans_niters", "ncells", "centroid_score_threshold", "ndocs", "load_index_with_mmap",
       "query_token", "doc_token", "meta", "meta.*", "version", "git*"],
     Harmless("for training and indexes")),
]);

/// The keys of a MultiVectorMask's `config.json`.
pub(crate) const MULTI_VECTOR_MASK: Table = Table(&[
    (&["skiplist_words", "skiplist_tasks"], Used),
    (&["keep_only_token_ids"], Only(&["null"])),
]);

/// The keys of the entries of `modules.json`.
#[rustfmt::skip]
pub(crate) const MODULES: Table = Table(&[
    (&["type", "path"], Used),
    (&["idx", "name"], Harmless("entries are in their order")),
    (&["kwargs"], Only(&["[]", "[\"task\"]"])),
]);

/// The keys of a Pooling's `config.json`.
#[rustfmt::skip]
pub(crate) const POOLING: Table = Table(&[
    (&["embedding_dimension", "word_embedding_dimension", "pooling_mode", "include_prompt", "pooling_mode_cls_token", "pooling_mode_max_tokens", "pooling_mode_mean_tokens",
       "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens",
       "pooling_mode_lasttoken"], Used),
    (&["pooling_mode_*"], Only(&["false"])),
]);

/// The keys of a SpladePooling's `config.json`.
pub(crate) const SPLADE_POOLING: Table = Table(&[
    (&["pooling_strategy", "activation_function"], Used),
    (&["embedding_dimension", "word_embedding_dimension"], Harmless("config.json has vocab_size")),
]);

/// The keys of a Dense's `config.json`.
#[rustfmt::skip]
pub(crate) const DENSE: Table = Table(&[
    (&["in_features", "out_features", "bias", "activation_function", "module_input_name",
       "module_output_name", "use_residual"], Used),
]);

/// The keys of a LayerNorm's `config.json`.
pub(crate) const LAYER_NORM: Table = Table(&[(&["dimension"], Used)]);

/// The keys of a Normalize's `config.json`.
pub(crate) const NORMALIZE: Table = Table(&[(&["module_input_name", "module_output_name"], Used)]);

/// The keys of a LogitScore's `config.json`.
pub(crate) const LOGIT_SCORE: Table =
    Table(&[(&["true_token_id", "false_token_id", "module_input_name"], Used)]);
