//! The options of a program that name its model.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::folder::digest;
use crate::{Embedder, Encoder, Options, Preset};

/// The model of a program.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "program", derive(clap::Args))]
pub struct ModelOptions {
    /// The model: a Hugging Face folder of an encoder, float or quantized
    #[cfg_attr(
        feature = "hub",
        doc = "(or a name on the hub such as sentence-transformers/all-MiniLM-L6-v2, or",
        doc = "NAME@REVISION, which is downloaded once)"
    )]
    #[cfg_attr(
        feature = "program",
        arg(long, alias = "model-dir", value_name = "MODEL")
    )]
    pub model: Option<PathBuf>,

    /// Weights of a float model: int8, int8_reduce_range (faster on x86-64 CPUs without VNNI), bfloat16,
    /// float16, or none to leave them as they are [default: int8]
    #[cfg_attr(feature = "program", arg(long, value_name = "NAME"))]
    pub preset: Option<Preset>,
}

impl ModelOptions {
    /// Reads the model; without one, the classifier that is part of the crate.
    ///
    /// # Errors
    /// When a file is missing, malformed, or does not fit the others, or cannot be downloaded.
    pub fn open(&self) -> Result<Encoder> {
        match self.path()? {
            Some(dir) => Encoder::open(&dir, self.preset).context(OPTION),
            None => Encoder::embedded(self.preset.unwrap_or_default()),
        }
    }

    /// Reads the model with its prompts.
    ///
    /// # Errors
    /// As [`open`](Self::open), and without a model.
    pub fn embedder(&self) -> Result<Embedder> {
        let dir = self.path()?;
        let dir = dir.context("--model: expected a model, got none")?;
        let options = match self.preset {
            Some(preset) => Options::new().preset(preset),
            None => Options::new(),
        };
        Embedder::open_with(dir, options).context(OPTION)
    }

    /// The BLAKE3 hash of the files that decide on answers: configuration, tokenizer and weights.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn digest(&self) -> Result<String> {
        digest(self.path()?.as_deref()).context(OPTION)
    }

    /// The path of the model: of a name, the folder in the hub's cache, where it is downloaded to
    /// if it is not there.
    ///
    /// # Errors
    /// When it cannot be downloaded.
    pub fn path(&self) -> Result<Option<PathBuf>> {
        let found = self.model.as_deref().map(found).transpose();
        found.context(OPTION)
    }
}

const OPTION: &str = "--model";

/// A folder that exists goes before a name.
fn found(model: &Path) -> Result<PathBuf> {
    #[cfg(feature = "hub")]
    if let Some(name) = model.to_str()
        && !model.exists()
    {
        if crate::hub::is_name(name) {
            return fetched(name);
        }
        anyhow::ensure!(
            name.contains(['/', '\\']),
            "{name}: expected a folder, or a name on the hub such as \
             sentence-transformers/all-MiniLM-L6-v2"
        );
    }
    Ok(model.to_owned())
}

#[cfg(all(feature = "hub", not(feature = "program")))]
use crate::hub::fetch as fetched;
#[cfg(all(feature = "hub", feature = "program"))]
use crate::program::fetched;
