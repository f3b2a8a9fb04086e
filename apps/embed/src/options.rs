//! The options of a program that name its model.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::folder::digest;
use crate::{Encoder, Preset};

/// The model of a program.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "program", derive(clap::Args))]
pub struct ModelOptions {
    /// A Hugging Face folder of an encoder, float or quantized [default: the model in the program]
    #[cfg_attr(feature = "program", arg(long, value_name = "DIR"))]
    pub model_dir: Option<PathBuf>,

    /// Weights of a float model: int8, int8_reduce_range (faster on x86-64 CPUs without VNNI), bfloat16,
    /// float16, or none to leave them as they are [default: int8]
    #[cfg_attr(feature = "program", arg(long, value_name = "NAME"))]
    pub preset: Option<Preset>,
}

impl ModelOptions {
    /// Reads the model.
    ///
    /// # Errors
    /// When a file is missing, malformed, or does not fit the others.
    pub fn open(&self) -> Result<Encoder> {
        match &self.model_dir {
            Some(dir) => Encoder::open(dir, self.preset).context("--model-dir"),
            None => Encoder::embedded(self.preset.unwrap_or_default()),
        }
    }

    /// The BLAKE3 hash of the files that decide on answers: configuration, tokenizer and weights.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn digest(&self) -> Result<String> {
        digest(self.model_dir.as_deref()).context("--model-dir")
    }
}
