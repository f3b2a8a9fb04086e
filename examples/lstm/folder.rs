//! A folder of a character model: sizes, characters and weights, read and checked together.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::model::CharModel;
use crate::text::Vocab;

/// All that is needed to read and write texts.
pub struct Folder {
    pub path: PathBuf,
    pub vocab: Vocab,
    pub model: CharModel,
    /// Bytes of the model's tensors, all of them as f32.
    pub bytes: usize,
}

impl Folder {
    /// Reads the folder; the weights may be f64, f32, f16 or bf16 and become f32.
    pub fn read(dir: &Path, gru: bool) -> Result<Self> {
        let weights = if gru {
            "gru.safetensors"
        } else {
            "lstm.safetensors"
        };
        ensure!(
            dir.is_dir(),
            "{}: expected a folder with config.json, vocab.json and {weights}, got {}",
            dir.display(),
            if dir.exists() {
                "a file"
            } else {
                "no such folder"
            },
        );
        let config = Config::read(&dir.join("config.json"))?;
        let vocab = Vocab::read(&dir.join("vocab.json"), &config)?;
        let checkpoint = Checkpoint::read_file(&dir.join(weights))?;
        let model = CharModel::load(&config, gru, checkpoint.var_builder())?;
        Ok(Self {
            path: dir.to_owned(),
            vocab,
            model,
            bytes: checkpoint.finish("the model that config.json describes")?,
        })
    }
}
