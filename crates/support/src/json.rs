//! JSON files that may come from anywhere.

use std::path::Path;

use anyhow::{Context, Result};
use candle_dynquant_io::{input, json};
use serde::de::DeserializeOwned;

/// The longest file that is read, in bytes. Parsed, JSON takes up to a hundred times its length.
const MAX_BYTES: u64 = 4 << 20;

/// Reads a file that holds what `expected` says.
///
/// # Errors
/// When the file cannot be read, is longer than `MAX_BYTES`, or holds something else.
pub fn read<T: DeserializeOwned>(path: &Path, expected: &str) -> Result<T> {
    let name = path.display();
    let bytes = input::read(path, MAX_BYTES)
        .with_context(|| format!("{name}: expected a readable file"))?;
    parse(&name.to_string(), bytes, expected)
}

/// As [`read`], from the bytes of the file `name`.
///
/// # Errors
/// When they hold something else.
pub fn parse<T: DeserializeOwned>(name: &str, bytes: Vec<u8>, expected: &str) -> Result<T> {
    let text = String::from_utf8(json::strict(bytes))
        .with_context(|| format!("{name}: expected a readable text file, in UTF-8"))?;
    serde_json::from_str(&text).with_context(|| format!("{name}: expected {expected}"))
}
