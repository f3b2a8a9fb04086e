//! A folder of a character model: sizes, characters and weights, read and checked together.

use std::path::{Path, PathBuf};

use anyhow::Result;
use candle_core::{DType, Device};

use super::config::Config;
use super::model::CharModel;
use super::text::Vocab;
use crate::checkpoint::{Checkpoint, check_folder};

/// Everything that reading and writing texts needs.
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
        let weights = if gru {
            "gru.safetensors"
        } else {
            "lstm.safetensors"
        };
        check_folder(dir, &format!("config.json, vocab.json and {weights}"))?;
        let config = Config::read(&dir.join("config.json"))?;
        let vocab = Vocab::read(&dir.join("vocab.json"), &config)?;
        let path = dir.join(weights);
        let (model, bytes, is_quantized) = match quantized(&path) {
            Some(checkpoint) => {
                let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
                let bytes: u64 = checkpoint.tensors().map(|t| t.bytes).sum();
                (CharModel::load(&config, gru, vb)?, bytes as usize, true)
            }
            None => {
                let checkpoint = Checkpoint::read_file(&path)?;
                let model = CharModel::load(&config, gru, checkpoint.var_builder())?;
                let bytes = checkpoint.finish("the model that config.json describes")?;
                (model, bytes, false)
            }
        };
        Ok(Self {
            path: dir.to_owned(),
            vocab,
            model,
            bytes,
            is_quantized,
        })
    }
}

/// A file that `dynquant quantize` or `checkpoint::save` wrote.
fn quantized(path: &Path) -> Option<candle_dynquant::Checkpoint> {
    let checkpoint = candle_dynquant::Checkpoint::open(path).ok()?;
    checkpoint.is_quantized().then_some(checkpoint)
}
