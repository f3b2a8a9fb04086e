//! The files of models of pictures, and of the texts in one space with them.

use candle_dynquant_io::keys::Table;
use candle_dynquant_io::keys::Treatment::{Harmless, Only, Used};

/// The keys of a model with a tower of texts and one of pictures.
#[rustfmt::skip]
pub(crate) const PAIR: Table = Table(&[
    (&["text_config", "vision_config", "text_config_dict", "vision_config_dict", "projection_dim"], Used),
    (&["logit_scale_init_value"], Harmless("the weights have the factor")),
]);

/// The keys of a tower of CLIP, SigLIP or DINOv2.
#[rustfmt::skip]
pub(crate) const TOWER: Table = Table(&[
    (&["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act",
       "layer_norm_eps", "projection_dim", "projection_size", "max_position_embeddings", "eos_token_id",
       "image_size", "patch_size", "mlp_ratio", "use_swiglu_ffn", "num_register_tokens"], Used),
    (&["num_channels"], Only(&["3"])),
    (&["qkv_bias", "vision_use_head"], Only(&["true"])),
    (&["layerscale_value", "use_mask_token"], Harmless("the weights have them")),
    (&["apply_layernorm", "reshape_hidden_states", "*out_features", "*out_indices", "stage_names"],
     Harmless("of a backbone")),
    (&["drop_path_rate"], Harmless("for training")),
    (&["bad_words_ids", "begin_suppress_tokens", "cross_attention_hidden_size", "diversity_penalty", "do_sample",
       "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_*_token_id",
       "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam*", "num_return_sequences",
       "output_scores", "prefix", "remove_invalid_values", "repetition_penalty", "return_dict_in_generate",
       "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder", "top_*",
       "typical_p", "use_bfloat16"], Harmless("for generated texts")),
]);

/// The keys of an image processor.
#[cfg(feature = "images")]
#[rustfmt::skip]
pub(crate) const PROCESSOR: Table = Table(&[
    (&["image_processor_type", "feature_extractor_type", "size", "size.shortest_edge", "size.height",
       "size.width", "resample", "do_center_crop", "crop_size", "crop_size.height", "crop_size.width",
       "rescale_factor", "image_mean", "image_std"], Used),
    (&["do_resize", "do_rescale", "do_normalize"], Only(&["true"])),
    (&["do_convert_rgb", "input_data_format", "data_format"], Harmless("pictures are RGB")),
    (&["device", "disable_grouping", "return_tensors"], Harmless("how the same numbers are computed")),
    (&["processor_class", "_valid_processor_keys", "auto_map*"], Harmless("names of what wrote the file")),
    (&["pad_size", "image_seq_length"], Harmless("without do_pad, and of models that write texts")),
    (&["do_pad", "default_to_square", "use_square_size"], Only(&["false"])),
]);
