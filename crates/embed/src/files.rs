//! The names and the contents of a folder's files.

use std::path::Path;

use anyhow::{Context, Result};
use candle_dynquant_io::input;

pub const CONFIG: &str = "config.json";
pub const TOKENIZER: &str = "tokenizer.json";
/// The settings of Stanford's ColBERT.
pub const ARTIFACT: &str = "artifact.metadata";
pub const ADAPTER: &str = "adapter_config.json";
/// The files in which releases of transformers before 5 also name tokens.
pub const TOKENS: [&str; 2] = ["special_tokens_map.json", ADDED_TOKENS];
pub const ADDED_TOKENS: &str = "added_tokens.json";
/// The files of image processors, newer releases' first.
#[cfg(any(feature = "hub", feature = "images"))]
pub const PROCESSORS: [&str; 2] = ["processor_config.json", "preprocessor_config.json"];
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// The largest text file that is read. Parsed, JSON takes up to a hundred times its length.
pub const MAX_TEXT: u64 = 4 << 20;
/// The largest `tokenizer.json` that is read; Gemma's has 33 MB.
pub const MAX_TOKENIZER: u64 = 64 << 20;

pub fn text(path: &Path) -> Result<String> {
    String::from_utf8(read(path, MAX_TEXT)?)
        .with_context(|| format!("{}: expected a text in UTF-8", path.display()))
}

pub fn optional_text(path: &Path) -> Result<Option<String>> {
    path.exists().then(|| text(path)).transpose()
}

pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>> {
    input::read(path, limit)
        .with_context(|| format!("{}: expected a readable file", path.display()))
}
