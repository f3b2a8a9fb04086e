//! A Hugging Face folder of a BERT: configuration, tokenizer and weights, read and checked
//! together.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use candle_core::{DType, Device};
use tokenizers::Tokenizer;

use super::config::Config;
use super::model::Bert;
use crate::checkpoint::{Checkpoint, check_folder};
use crate::tokenizer;

/// Everything that answering texts needs.
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
        tokenizer::check(&path_of_tokenizer, &tokenizer, config.vocab_size)?;
        let (model, bytes, is_quantized) = match quantized(dir) {
            Some(checkpoint) => {
                let prefixed = checkpoint.tensors().any(|t| t.name.starts_with("bert."));
                let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
                let bytes: u64 = checkpoint.tensors().map(|t| t.bytes).sum();
                (Bert::load(&config, prefixed, vb)?, bytes as usize, true)
            }
            None => {
                let checkpoint = Checkpoint::read_folder(dir, is_known_extra)?;
                let prefixed = checkpoint.has_prefix("bert.");
                let model = Bert::load(&config, prefixed, checkpoint.var_builder())?;
                let bytes = checkpoint.finish("a BERT encoder, pooler and classifier")?;
                (model, bytes, false)
            }
        };
        ensure!(
            !model.is_classifier() || config.labels.len() >= 2,
            "{}: key \"id2label\": expected at least 2 classes, got {} (a score, not a class)",
            path.display(),
            config.labels.len(),
        );
        Ok(Self {
            path: dir.to_owned(),
            config,
            tokenizer,
            model,
            bytes,
            is_quantized,
        })
    }
}

/// The checkpoint of a folder that `dynquant quantize` or `checkpoint::save` wrote.
fn quantized(dir: &Path) -> Option<candle_dynquant::Checkpoint> {
    let checkpoint = candle_dynquant::Checkpoint::open(dir).ok()?;
    checkpoint.is_quantized().then_some(checkpoint)
}

/// The position numbers that old versions of transformers stored, and the heads that predict
/// masked tokens and next sentences; any other tensor without a use is an error.
fn is_known_extra(key: &str) -> bool {
    key.ends_with("embeddings.position_ids") || key.starts_with("cls.")
}
