//! Command-line options that select a model.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::batches::Options;
use crate::embedder::Embedder;
use crate::files::text;
use crate::folder::{Encoder, digest};
use crate::preset::Preset;

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
    #[cfg_attr(feature = "program", arg(long, alias = "model-dir", value_name = "MODEL"))]
    pub model: Option<PathBuf>,

    /// The weights of a float model.
    #[cfg_attr(feature = "program", arg(long, value_name = "NAME", help = Preset::help()))]
    pub preset: Option<Preset>,

    /// Equalizes a float model before it is quantized, by the texts of this file, one per line: a
    /// few texts typical of its use
    #[cfg_attr(feature = "program", arg(long, value_name = "FILE"))]
    pub equalize: Option<PathBuf>,

    /// The task whose adapters are added to the weights of jina-embeddings-v3, and whose prompt stands
    /// before texts
    #[cfg_attr(feature = "program", arg(long, value_name = "NAME"))]
    pub task: Option<String>,
}

impl ModelOptions {
    /// Reads the model, or the built-in classifier if no model is given.
    ///
    /// # Errors
    /// When a file is missing, malformed, or does not fit the others, or cannot be downloaded.
    pub fn open(&self) -> Result<Encoder> {
        match self.path()? {
            Some(dir) => {
                let encoder = self.options()?.lexical().open(&dir).context(OPTION)?.encoder;
                #[cfg(feature = "program")]
                encoder.tell_notes();
                Ok(encoder)
            }
            None => {
                for (option, is_given) in
                    [("--equalize", self.equalize.is_some()), ("--task", self.task.is_some())]
                {
                    ensure!(!is_given, "{option}: expected a model with it, got none");
                }
                Encoder::embedded(self.preset.unwrap_or_default())
            }
        }
    }

    /// Reads the model with its prompts.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open), and a missing model.
    pub fn embedder(&self) -> Result<Embedder> {
        let dir = self.path()?;
        let dir = dir.context("--model: expected a model, got none")?;
        let embedder = Embedder::open_with(dir, self.options()?).context(OPTION)?;
        #[cfg(feature = "program")]
        embedder.encoder().tell_notes();
        Ok(embedder)
    }

    /// The options for opening the model.
    ///
    /// # Errors
    /// When the texts of `equalize` cannot be read.
    pub fn options(&self) -> Result<Options> {
        let (preset, task, equalize) = (self.preset, self.task.clone(), self.texts()?);
        Ok(Options { preset, task, equalize, ..Options::new() })
    }

    /// The texts of `equalize`, without empty lines.
    fn texts(&self) -> Result<Option<Vec<String>>> {
        let Some(path) = &self.equalize else {
            return Ok(None);
        };
        let texts = text(path).context("--equalize")?;
        let texts = texts.lines().filter(|line| !line.trim().is_empty());
        Ok(Some(texts.map(str::to_owned).collect()))
    }

    /// The BLAKE3 hash of the files that decide on answers: configuration, tokenizer and weights,
    /// the task, and the texts of `equalize`.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn digest(&self) -> Result<String> {
        let mut parts = vec![digest(self.path()?.as_deref()).context(OPTION)?];
        parts.extend(self.task.clone().map(|task| format!("task {task}")));
        parts.extend(self.texts()?.into_iter().flatten());
        match &parts[..] {
            [digest] => Ok(digest.clone()),
            parts => Ok(blake3::hash(parts.join("\n").as_bytes()).to_string()),
        }
    }

    /// The path of the model; for a name, the folder in the hub's cache, downloaded if missing.
    ///
    /// # Errors
    /// When the model cannot be downloaded.
    pub fn path(&self) -> Result<Option<PathBuf>> {
        let found = self.model.as_deref().map(found).transpose();
        found.context(OPTION)
    }
}

const OPTION: &str = "--model";

/// The folder of a model; an existing folder takes precedence over a name.
fn found(model: &Path) -> Result<PathBuf> {
    #[cfg(feature = "hub")]
    if let Some(name) = model.to_str()
        && !model.exists()
    {
        if candle_dynquant_io::hub::is_name(name) || candle_dynquant_decoder::hub::is_file(name) {
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
