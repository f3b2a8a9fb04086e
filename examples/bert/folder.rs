//! A Hugging Face folder of a BERT: configuration, tokenizer and weights, read and checked together.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use tokenizers::Tokenizer;

use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::model::Bert;

/// All that is needed to answer texts.
pub struct Folder {
    pub path: PathBuf,
    pub config: Config,
    pub tokenizer: Tokenizer,
    pub model: Bert,
    /// Bytes of the model's tensors, all of them as f32.
    pub bytes: usize,
}

impl Folder {
    /// Reads the folder; the weights may be f64, f32, f16 or bf16 and become f32.
    pub fn read(dir: &Path) -> Result<Self> {
        ensure!(
            dir.is_dir(),
            "{}: expected a folder with config.json, tokenizer.json and model.safetensors, got {}",
            dir.display(),
            if dir.exists() {
                "a file"
            } else {
                "no such folder"
            },
        );
        let config = Config::read(&dir.join("config.json"))?;
        let tokenizer = read_tokenizer(&dir.join("tokenizer.json"), &config)?;
        let checkpoint = Checkpoint::read_folder(dir, is_known_extra)?;
        let prefixed = checkpoint.has_prefix("bert.");
        let model = Bert::load(&config, prefixed, checkpoint.var_builder())?;
        ensure!(
            !model.is_classifier() || config.labels.len() >= 2,
            "{}: key \"id2label\": expected at least 2 classes, got {} (a score, not a class)",
            dir.join("config.json").display(),
            config.labels.len(),
        );
        Ok(Self {
            path: dir.to_owned(),
            config,
            tokenizer,
            model,
            bytes: checkpoint.finish("a BERT encoder, pooler and classifier")?,
        })
    }
}

/// The tokenizer without the truncation and padding its file may ask for: both are done here.
fn read_tokenizer(path: &Path, config: &Config) -> Result<Tokenizer> {
    let got = |e| anyhow::anyhow!("{}: expected a tokenizer, got {e}", path.display());
    let mut tokenizer = Tokenizer::from_file(path).map_err(got)?;
    tokenizer.with_truncation(None).map_err(got)?;
    tokenizer.with_padding(None);
    let largest = tokenizer.get_vocab(true).into_values().max();
    ensure!(
        largest.is_some_and(|id| (id as usize) < config.vocab_size),
        "{}: expected token ids below vocab_size {} of config.json, got {}",
        path.display(),
        config.vocab_size,
        largest.map_or("no tokens".to_owned(), |id| format!("id {id}")),
    );
    Ok(tokenizer)
}

/// The position numbers that old versions of transformers stored, and the heads that predict
/// masked tokens and next sentences; any other tensor without a use is an error.
fn is_known_extra(key: &str) -> bool {
    key.ends_with("embeddings.position_ids") || key.starts_with("cls.")
}
