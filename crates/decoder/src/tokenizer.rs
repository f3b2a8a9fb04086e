//! `tokenizer.json` of a model.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_dynquant_io::{input, json};
use tokenizers::Tokenizer;

/// The largest file that is read, in bytes; Gemma's has 33 MB.
const MAX_BYTES: u64 = 64 << 20;

/// Reads a file, without the truncation and padding that it may request.
pub fn read(path: &Path) -> Result<Tokenizer> {
    let name = path.display();
    let got = |e| anyhow::anyhow!("{name}: expected a tokenizer, got {e}");
    let bytes = input::read(path, MAX_BYTES)
        .with_context(|| format!("{name}: expected a readable file"))?;
    let mut tokenizer = Tokenizer::from_bytes(json::strict(bytes)).map_err(got)?;
    tokenizer.with_truncation(None).map_err(got)?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}

/// Checks that each token of the tokenizer at `path` has a row in the model's table; `added` tokens
/// may lack a row where texts that contain them are refused.
pub fn check(path: &Path, tokenizer: &Tokenizer, vocab_size: usize, added: bool) -> Result<()> {
    let largest = tokenizer.get_vocab(!added).into_values().max();
    ensure!(
        largest.is_some_and(|id| (id as usize) < vocab_size),
        "{}: expected token ids below vocab_size {vocab_size} of config.json, got {}",
        path.display(),
        largest.map_or("no tokens".to_owned(), |id| format!("id {id}")),
    );
    Ok(())
}
