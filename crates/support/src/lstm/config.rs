//! `config.json`, read strictly: every fault names the file, the key, what was expected and what
//! came.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use crate::json;

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
        let keys = Keys {
            path: path.to_owned(),
            map: read_object(path)?,
        };
        Ok(Self {
            vocab_size: keys.size("vocab_size")?,
            embedding_size: keys.size("embedding_size")?,
            hidden_size: keys.size("hidden_size")?,
            num_layers: keys.size("num_layers")?,
        })
    }
}

/// A file that holds one JSON object.
pub fn read_object(path: &Path) -> Result<Map<String, Value>> {
    json::read(path, "a JSON object")
}

/// The keys of the file, with its path for error messages.
struct Keys {
    path: PathBuf,
    map: Map<String, Value>,
}

impl Keys {
    fn size(&self, key: &str) -> Result<usize> {
        match self.map.get(key).map(|value| (value, value.as_u64())) {
            // No real model comes near the limit, and products of two sizes stay in a usize.
            Some((_, Some(size @ 1..=0x7fff_ffff))) => Ok(size as usize),
            got => bail!(
                "{}: key {key:?}: expected a positive integer below 2^31, got {}",
                self.path.display(),
                got.map_or("no such key".to_owned(), |(value, _)| value.to_string()),
            ),
        }
    }
}
