//! Texts and their labels, tokens, and padded batches.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use candle_dynquant_io::input;
use tokenizers::{Tokenizer, TruncationParams};

use super::config::Config;
use super::model::Batch;

/// The largest file of texts, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// A line of a file.
pub struct Text {
    pub text: String,
    /// The index of the class, if the line states a label.
    pub label: Option<usize>,
}

/// Reads a file, or a pipe such as `<(command)`, with one text per line; blank lines are skipped.
///
/// A line `label<TAB>text` has a label if the model knows it. In a `labelled` file every line must
/// have a label; in other files a line without a label is all text.
pub fn read(path: &Path, labels: &[String], labelled: bool) -> Result<Vec<Text>> {
    let name = path.display();
    let content = input::read_stream(path, MAX_BYTES)
        .with_context(|| format!("{name}: expected a readable text file"))?;
    let mut texts = Vec::new();
    for (number, line) in content.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let split = line.split_once('\t').and_then(|(label, text)| {
            let label = labels.iter().position(|known| known == label)?;
            Some((Some(label), text))
        });
        ensure!(
            split.is_some() || !labelled,
            "{name}: line {}: expected a label that the model knows, a tab and a text, got {line:?}",
            number + 1,
        );
        let (label, text) = split.unwrap_or((None, line));
        let text = text.to_owned();
        texts.push(Text { text, label });
    }
    ensure!(!texts.is_empty(), "{name}: expected at least one text, got none");
    Ok(texts)
}

/// The token ids of every text.
///
/// With `seq_len`, longer texts are cut to that many tokens; without it, a text with more tokens
/// than the model has positions is an error.
pub fn tokenize(
    tokenizer: &Tokenizer,
    config: &Config,
    texts: &[&str],
    seq_len: Option<usize>,
) -> Result<Vec<Vec<u32>>> {
    let limit = config.max_position_embeddings;
    let mut tokenizer = tokenizer.clone();
    if let Some(max_length) = seq_len {
        let special = tokenizer.encode("", true).map_err(anyhow::Error::msg)?.len();
        ensure!(
            max_length > special && max_length <= limit,
            "--seq-len: expected {} to {limit} (max_position_embeddings), got {max_length}",
            special + 1,
        );
        let truncation = TruncationParams { max_length, ..Default::default() };
        let truncated = tokenizer.with_truncation(Some(truncation));
        truncated.map_err(anyhow::Error::msg)?;
    }
    let encodings = tokenizer
        .encode_batch(texts.to_vec(), true)
        .map_err(|e| anyhow::anyhow!("the tokenizer failed: {e}"))?;
    for (number, encoding) in encodings.iter().enumerate() {
        ensure!(
            (1..=limit).contains(&encoding.len()),
            "text {}: expected 1 to {limit} tokens (max_position_embeddings), got {}; --seq-len N cuts longer texts",
            number + 1,
            encoding.len(),
        );
    }
    Ok(encodings.iter().map(|e| e.get_ids().to_vec()).collect())
}

/// Batches of up to `size` texts in order, each padded to its longest text.
pub fn batches(tokens: &[Vec<u32>], size: usize, pad: u32) -> Result<Vec<Batch>> {
    let chunks = tokens.chunks(size);
    chunks.map(|rows| pad_to(rows, rows.iter().map(Vec::len).max().unwrap_or(0), pad)).collect()
}

/// A batch of `rows`, each padded to `length` tokens, which must be enough for all.
pub fn pad_to(rows: &[Vec<u32>], length: usize, pad: u32) -> Result<Batch> {
    let mut ids = Vec::with_capacity(rows.len() * length);
    let mut mask = Vec::with_capacity(rows.len() * length);
    for row in rows {
        ensure!(row.len() <= length, "expected at most {length} tokens, got {}", row.len());
        let padding = length - row.len();
        ids.extend_from_slice(row);
        ids.extend(std::iter::repeat_n(pad, padding));
        mask.extend(std::iter::repeat_n(1f32, row.len()));
        mask.extend(std::iter::repeat_n(0f32, padding));
    }
    let shape = (rows.len(), length);
    Ok(Batch {
        ids: Tensor::from_vec(ids, shape, &Device::Cpu)?,
        mask: Tensor::from_vec(mask, shape, &Device::Cpu)?,
    })
}
