//! A Hugging Face folder of a BERT: configuration, tokenizer and weights, read and checked
//! together.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use candle_dynquant_decoder::{check_folder, tokenizer};
use tokenizers::Tokenizer;

use super::config::Config;
use super::model::{Batch, Bert};
use super::texts::{self, Text};
use crate::checkpoint::{Checkpoint, load};
use crate::repository;

/// Everything needed to answer texts.
pub struct Folder {
    pub path: PathBuf,
    pub config: Config,
    pub tokenizer: Tokenizer,
    pub model: Bert,
    /// Bytes of the model's tensors, floats as f32.
    pub bytes: usize,
    /// Whether the layers were built from int8 weights of the folder.
    pub is_quantized: bool,
}

impl Folder {
    /// Reads the folder; the weights may be f64, f32, f16 or bf16 and become f32, or be quantized.
    pub fn read(dir: &Path) -> Result<Self> {
        check_folder(dir, "config.json, tokenizer.json and model.safetensors")?;
        let path = dir.join("config.json");
        let config = Config::read(&path)?;
        ensure!(
            (config.pad_token_id as usize) < config.vocab_size,
            "{}: key \"pad_token_id\": expected less than vocab_size {}, got {}",
            path.display(),
            config.vocab_size,
            config.pad_token_id,
        );
        let path_of_tokenizer = dir.join("tokenizer.json");
        let tokenizer = tokenizer::read(&path_of_tokenizer)?;
        tokenizer::check(&path_of_tokenizer, &tokenizer, config.vocab_size, false)?;
        let (model, bytes, is_quantized) = load(
            dir,
            || Checkpoint::read_folder(dir, is_known_extra),
            "a BERT encoder, pooler and classifier",
            |vb, has| Bert::load(&config, has("bert."), vb),
        )?;
        ensure!(
            !model.is_classifier() || config.labels.len() >= 2,
            "{}: key \"id2label\": expected at least 2 classes, got {} (a score, not a class)",
            path.display(),
            config.labels.len(),
        );
        Ok(Self { path: dir.to_owned(), config, tokenizer, model, bytes, is_quantized })
    }

    /// The names of a classifier's classes.
    pub fn labels(&self) -> &[String] {
        if self.model.is_classifier() { &self.config.labels } else { &[] }
    }

    /// The texts of the file given, else those with labels beside a classifier, else example
    /// sentences.
    pub fn texts(&self, given: Option<&Path>) -> Result<Vec<Text>> {
        let heldout = self.path.join("heldout.tsv");
        match given {
            Some(path) => texts::read(path, self.labels(), false),
            None if !self.labels().is_empty() && heldout.exists() => {
                texts::read(&heldout, self.labels(), true)
            }
            None => {
                let sentences = repository().join("assets/reference/minilm_sentences.txt");
                texts::read(&sentences, self.labels(), false)
            }
        }
    }

    /// The tokens of texts, at most `seq_len` of each, in batches of `size`.
    pub fn batches(
        &self,
        texts: &[&str],
        seq_len: Option<usize>,
        size: usize,
    ) -> Result<Vec<Batch>> {
        let tokens = texts::tokenize(&self.tokenizer, &self.config, texts, seq_len)?;
        texts::batches(&tokens, size, self.config.pad_token_id)
    }
}

/// Whether a tensor is known to be unused: the position numbers that old versions of transformers
/// stored, and the heads that predict masked tokens and next sentences. Any other unused tensor is
/// an error.
fn is_known_extra(key: &str) -> bool {
    key.ends_with("embeddings.position_ids") || key.starts_with("cls.")
}
