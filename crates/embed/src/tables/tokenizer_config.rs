//! `tokenizer_config.json`, with nested keys by path. The tokenizer itself is in `tokenizer.json`,
//! so a key without a row is only reported by programs.

use candle_dynquant_io::keys::Table;
use candle_dynquant_io::keys::Treatment::{Harmless, Only, Used};

#[rustfmt::skip]
pub(crate) const TOKENIZER_CONFIG: Table = Table(&[
    (&["model_max_length", "model_input_names", "tokenizer_class", "do_lower_case", "strip_accents",
       "tokenize_chinese_chars", "keep_accents", "split_by_punct"], Used),
    (&["truncation_side"], Only(&["\"right\""])),
    (&["split_special_tokens"], Only(&["false"])),
    (&["do_basic_tokenize"], Only(&["true"])),
    (&["*_token", "*_token.*", "*_tokens", "*_tokens.*", "*_special_tokens*", "added_tokens_decoder*",
       "model_specific_special_tokens*", "add_prefix_space", "trim_offsets", "vocab_type", "sp_model_kwargs*",
       "wordpieces_prefix", "remove_space", "extra_ids", "unk_id", "use_default_system_prompt"],
     Harmless("tokenizer.json has them")),
    (&["padding_side", "pad_to_multiple_of", "pad_token_type_id"], Harmless("texts are not padded")),
    (&["max_length", "stride", "truncation_strategy"], Harmless("for calls that name no other")),
    (&["chat_template*"], Harmless("chat_template.jinja is read for pairs")),
    (&["clean_up_tokenization_spaces", "errors", "spaces_between_special_tokens", "legacy",
       "use_fast", "from_slow"], Harmless("for texts of tokens")),
    (&["backend", "auto_map*", "is_local", "local_files_only", "name_or_path", "special_tokens_map_file",
       "tokenizer_file", "vocab_file", "processor_class", "never_split"], Harmless("names of what wrote the file")),
]);
