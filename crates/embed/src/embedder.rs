//! Vectors of texts.

use std::path::Path;

use anyhow::{Result, anyhow, ensure};

use crate::batches::{Batches, Options};
use crate::folder::Encoder;
use crate::functions::normalized;
use crate::model::Head;

/// A model that makes vectors of texts, from a folder of sentence-transformers or transformers.
///
/// The bits of a vector do not depend on the other texts of a call, nor on the batches.
///
/// ```
/// use dynquant_embed::Embedder;
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/reference/encoders/bert");
/// let embedder = Embedder::open(folder)?;
/// let vectors = embedder.embed(&["a text", "another one"])?;
/// assert_eq!(vectors.len(), 2);
/// assert_eq!(vectors[0].len(), embedder.dimensions());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Embedder {
    batches: Batches,
    /// The number of leading values kept of a vector, if not all.
    cut: Option<usize>,
}

impl Embedder {
    /// Opens a folder with `config.json`, `tokenizer.json`, weights in safetensors, and the files
    /// of sentence-transformers, if there are any. Float weights become int8.
    ///
    /// # Errors
    /// When a file is missing, malformed, inconsistent with the others, or requires an unsupported
    /// feature.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(dir, Options::new())
    }

    /// Opens a folder with options.
    ///
    /// # Errors
    /// Also when an option does not fit the model.
    pub fn open_with(dir: impl AsRef<Path>, options: Options) -> Result<Self> {
        let batches = options.open(dir.as_ref())?;
        ensure!(
            !batches.encoder.config.is_multi_vector(),
            "{}: expected a model of one vector of a text, got one of several: see \
             MultiVectorEmbedder",
            dir.as_ref().display(),
        );
        let cut = None;
        Ok(Self { batches, cut })
    }

    /// Keeps the first numbers of each vector and normalizes again: for models that were trained
    /// for it (Matryoshka).
    ///
    /// # Errors
    /// When the vectors have fewer numbers.
    pub fn cut_to(mut self, dimensions: usize) -> Result<Self> {
        let all = self.encoder().config.embedding_size;
        ensure!(
            (1..=all).contains(&dimensions),
            "dimensions: expected 1 to {all}, got {dimensions}"
        );
        self.cut = Some(dimensions);
        Ok(self)
    }

    /// Replaces the folder's prompt of that name, such as `query` or `document`.
    #[must_use]
    pub fn with_prompt(mut self, name: &str, prompt: &str) -> Self {
        self.batches.encoder.prompts.set(name, prompt);
        self
    }

    /// The number of values in a vector.
    pub fn dimensions(&self) -> usize {
        self.cut.unwrap_or(self.encoder().config.embedding_size)
    }

    /// Whether vectors have length 1: if the folder says so, or they are cut.
    pub fn is_normalized(&self) -> bool {
        self.encoder().config.normalize || self.cut.is_some()
    }

    /// The underlying model, for lower-level calls.
    pub fn encoder(&self) -> &Encoder {
        &self.batches.encoder
    }

    /// The vectors of texts, `dimensions` numbers each, after the folder's default prompt if it has
    /// one.
    ///
    /// # Errors
    /// When a text has no tokens, or the model fails.
    pub fn embed(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>> {
        self.dense(self.encoder().prompts.default_prompt(), texts)
    }

    /// The vectors of questions, after the prompt `query`, or the default prompt.
    ///
    /// # Errors
    /// The errors of [`embed`](Self::embed).
    pub fn embed_queries(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>> {
        self.dense(self.encoder().prompts.query(), texts)
    }

    /// The vectors of texts to be searched, after the first existing prompt of `document`,
    /// `passage` and `corpus`, or the default prompt.
    ///
    /// # Errors
    /// The errors of [`embed`](Self::embed).
    pub fn embed_documents(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>> {
        self.dense(self.encoder().prompts.document(), texts)
    }

    /// The vectors of texts after the prompt of that name.
    ///
    /// # Errors
    /// Also when the prompt does not exist.
    pub fn embed_as(&self, name: &str, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>> {
        let prompt = self.encoder().prompts.named(name);
        self.dense(prompt.map_err(|e| anyhow!("prompt: {e}"))?, texts)
    }

    fn dense(&self, prompt: &str, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>> {
        let prompt = self.encoder().tokenizer.prompt(prompt)?;
        let finish = |vector| self.finished(vector);
        self.batches.behind(&prompt, texts, Head::Embedding, finish)
    }

    fn finished(&self, mut vector: Vec<f32>) -> Vec<f32> {
        vector.truncate(self.dimensions());
        if self.is_normalized() {
            return normalized(vector);
        }
        vector
    }
}

/// A vector in a quarter of the bytes: 8-bit codes with a common scale.
///
/// ```
/// use dynquant_embed::Int8Vector;
///
/// let vector = Int8Vector::of(&[0.5, -1., 0.25]);
/// assert_eq!(vector.codes, [64, -127, 32]);
/// assert!((vector.dot(&vector) - 1.3125).abs() < 0.01);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Int8Vector {
    /// The codes, -127 to 127.
    pub codes: Vec<i8>,
    /// The factor of the codes: the greatest magnitude of the vector, divided by 127.
    pub scale: f32,
}

impl Int8Vector {
    /// The vector in 8 bits; each number, all finite, is within half of `scale`.
    pub fn of(vector: &[f32]) -> Self {
        let max = vector.iter().fold(0f32, |max, x| max.max(x.abs()));
        let scale = max / 127.;
        let code = |x: &f32| {
            if scale > 0. { (x / scale).round() as i8 } else { 0 }
        };
        Self { codes: vector.iter().map(code).collect(), scale }
    }

    /// The numbers that the codes represent.
    pub fn to_f32(&self) -> Vec<f32> {
        self.codes.iter().map(|code| f32::from(*code) * self.scale).collect()
    }

    /// The dot product with another vector of the same length: the cosine, if both are normalized.
    pub fn dot(&self, other: &Self) -> f32 {
        let products = self.codes.iter().zip(&other.codes);
        let sum: i64 = products.map(|(a, b)| i64::from(*a) * i64::from(*b)).sum();
        sum as f32 * self.scale * other.scale
    }
}
