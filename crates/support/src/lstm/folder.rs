//! A folder of a character model: sizes, characters and weights, read and checked together.

use std::path::{Path, PathBuf};

use anyhow::Result;
use candle_dynquant_decoder::check_folder;

use super::config::Config;
use super::model::CharModel;
use super::text::Vocab;
use crate::checkpoint::{Checkpoint, load};

/// Everything needed to read and write texts.
pub struct Folder {
    pub path: PathBuf,
    pub vocab: Vocab,
    pub model: CharModel,
    /// Bytes of the model's tensors, floats as f32.
    pub bytes: usize,
    /// Whether the layers were built from quantized weights of the file.
    pub is_quantized: bool,
}

impl Folder {
    /// Reads the folder; the weights may be f64, f32, f16 or bf16 and become f32, or be quantized.
    pub fn read(dir: &Path, gru: bool) -> Result<Self> {
        let weights = if gru { "gru.safetensors" } else { "lstm.safetensors" };
        check_folder(dir, &format!("config.json, vocab.json and {weights}"))?;
        let config = Config::read(&dir.join("config.json"))?;
        let vocab = Vocab::read(&dir.join("vocab.json"), &config)?;
        let path = dir.join(weights);
        let (model, bytes, is_quantized) = load(
            &path,
            || Checkpoint::read_file(&path),
            "the model that config.json describes",
            |vb, _| CharModel::load(&config, gru, vb),
        )?;
        Ok(Self { path: dir.to_owned(), vocab, model, bytes, is_quantized })
    }
}
