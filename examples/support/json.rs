//! JSON files that may come from anywhere.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;

/// The longest file that is read, in bytes. Parsed, JSON takes up to a hundred times its length.
const MAX_BYTES: u64 = 4 << 20;

/// Reads a file that holds what `expected` says.
///
/// # Errors
/// When the file cannot be read, is longer than [`MAX_BYTES`], or holds something else.
pub fn read<T: DeserializeOwned>(path: &Path, expected: &str) -> Result<T> {
    let name = path.display();
    let mut bytes = Vec::new();
    // One byte more: a length that the system states may be wrong by the time of reading.
    File::open(path)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
        .with_context(|| format!("{name}: expected a readable file"))?;
    ensure!(
        bytes.len() as u64 <= MAX_BYTES,
        "{name}: expected at most {MAX_BYTES} bytes of JSON, got more"
    );
    let text = String::from_utf8(candle_dynquant_io::json::strict(bytes))
        .with_context(|| format!("{name}: expected a readable text file, in UTF-8"))?;
    serde_json::from_str(&text).with_context(|| format!("{name}: expected {expected}"))
}
