//! `config.json`, read strictly: every error names the file, the key, the expected and the found
//! value.

use std::path::Path;

use anyhow::Result;
use candle_dynquant_decoder::json::Keys;

/// The sizes of the model; field names are the file's keys.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub vocab_size: usize,
    pub embedding_size: usize,
    pub hidden_size: usize,
    pub num_layers: usize,
}

impl Config {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self> {
        let keys = Keys::read(path)?;
        let size = |key| keys.size(key, None);
        Ok(Self {
            vocab_size: size("vocab_size")?,
            embedding_size: size("embedding_size")?,
            hidden_size: size("hidden_size")?,
            num_layers: size("num_layers")?,
        })
    }
}
