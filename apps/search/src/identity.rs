//! The model of an index: vectors of two models cannot be compared.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use dynquant_embed::{Encoder, ModelOptions};
use serde::{Deserialize, Serialize};

use crate::passages;

/// A model as an index records it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// Its folder, which queries read it from; `None` for the model in the program.
    model_dir: Option<String>,
    /// The preset that was asked for.
    preset: Option<String>,
    /// Its name.
    name: String,
    /// How its weights are stored.
    weights: String,
    /// The most tokens of a passage.
    tokens: usize,
    /// The hash of its files.
    digest: String,
}

impl Identity {
    /// Reads the model that `asked` names; without an option the one that an index is of, if there
    /// is one.
    ///
    /// # Errors
    /// When the model cannot be read, or the path of its folder is not UTF-8.
    pub fn open(asked: &ModelOptions, of_index: Option<&Self>) -> Result<(Encoder, Self)> {
        let is_asked = asked.model_dir.is_some() || asked.preset.is_some();
        let (options, encoder) = match of_index {
            Some(model) if !is_asked => {
                let options = model.options()?;
                let encoder = options.open().context("the model of the index")?;
                (options, encoder)
            }
            _ => (asked.clone(), asked.open()?),
        };
        let model = Self::new(&options, &encoder)?;
        Ok((encoder, model))
    }

    fn new(options: &ModelOptions, encoder: &Encoder) -> Result<Self> {
        let model_dir = options.model_dir.as_deref().map(absolute).transpose();
        Ok(Self {
            model_dir: model_dir.context("--model-dir")?,
            preset: options.preset.map(|preset| preset.to_string()),
            name: encoder.name.clone(),
            weights: encoder.dtype.clone(),
            tokens: passages::max_tokens(&encoder.tokenizer),
            digest: options.digest()?,
        })
    }

    /// The options that name this model.
    fn options(&self) -> Result<ModelOptions> {
        let preset = self.preset.as_deref().map(str::parse).transpose();
        Ok(ModelOptions {
            model_dir: self.model_dir.as_ref().map(PathBuf::from),
            preset: preset
                .map_err(anyhow::Error::msg)
                .context("the preset of the index")?,
        })
    }

    /// Whether it makes the same vectors, wherever it is.
    pub fn matches(&self, other: &Self) -> bool {
        let vectors = |it: &Self| (it.weights.clone(), it.tokens, it.digest.clone());
        vectors(self) == vectors(other)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digest = self.digest.get(..8).unwrap_or(&self.digest);
        write!(f, "{} ({}, {digest}", self.name, self.weights)?;
        match &self.model_dir {
            Some(dir) => write!(f, ", {dir})"),
            None => write!(f, ", in the program)"),
        }
    }
}

/// The path from the root of the file system.
///
/// # Errors
/// When there is no such path, or it is not UTF-8.
pub fn absolute(path: &Path) -> Result<String> {
    let name = path.display();
    let path = (path.canonicalize()).with_context(|| format!("{name}: expected a folder"))?;
    let path = path.into_os_string().into_string();
    path.map_err(|_| anyhow::anyhow!("{name}: expected a path in UTF-8"))
}
