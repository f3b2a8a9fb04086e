//! Runs many texts through a model, in batches of similar lengths.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::folder::Encoder;
use crate::model::{Head, Task};
use crate::preset::Preset;
use crate::tokenizer::each;
use crate::tokens::{Direction, Prompt, Tokens};

/// The constructor without options, and the underlying model, of a type that answers in batches.
macro_rules! opened {
    ($model:ty, $batches:tt, $calls:literal) => {
        impl $model {
            /// Opens a folder as [`Embedder::open`](crate::Embedder::open) does.
            ///
            /// # Errors
            /// The errors of [`open_with`](Self::open_with).
            pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
                Self::open_with(dir, Options::new())
            }

            #[doc = concat!("The underlying model, for lower-level calls", $calls, ".")]
            pub fn encoder(&self) -> &Encoder {
                &self.$batches.encoder
            }
        }
    };
}
pub(crate) use opened;

/// The most tokens of a batch of several texts, so that the activations of a layer stay in some MB.
pub(crate) const MOST_TOKENS: usize = 8192;

/// The options for opening and running a model.
///
/// ```
/// use dynquant_embed::{Options, Preset};
///
/// let options = Options::new()
///     .preset(Preset::NONE)
///     .batch_size(64)
///     .max_tokens(256)
///     .on_progress(|done, all| eprintln!("{done} of {all}"));
/// ```
pub struct Options {
    pub(crate) preset: Option<Preset>,
    pub(crate) task: Option<String>,
    pub(crate) equalize: Option<Vec<String>>,
    /// Whether the head of bge-m3 is read if the folder has it.
    pub(crate) is_lexical: bool,
    pub(crate) batch_size: usize,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) progress: Option<Box<Progress>>,
}

/// A callback with the number of texts that are done, and of all texts.
type Progress = dyn Fn(usize, usize) + Send + Sync;

impl Default for Options {
    fn default() -> Self {
        Self {
            preset: None,
            task: None,
            equalize: None,
            is_lexical: false,
            batch_size: 32,
            max_tokens: None,
            progress: None,
        }
    }
}

impl Options {
    /// The defaults: int8 if the weights are float, 32 texts per batch, the model's maximum of
    /// tokens.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the quantization of float weights; an error for a folder that is already quantized.
    #[must_use]
    pub fn preset(self, preset: Preset) -> Self {
        Self { preset: Some(preset), ..self }
    }

    /// Adds the adapters of a task to the weights, such as `retrieval.query` of jina-embeddings-v3, and
    /// makes its prompt the default. Without a task weights are used without adapters.
    #[must_use]
    pub fn task(self, task: impl Into<String>) -> Self {
        Self { task: Some(task.into()), ..self }
    }

    /// Equalizes the norms of a float model before it is quantized, by running it on a few texts
    /// typical of its use, such as 16 sentences: its int8 answers are then closer to float, at the
    /// same speed. See [`equalize`](candle_dynquant::equalize()).
    ///
    /// ```
    /// use dynquant_embed::{Embedder, Options};
    ///
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/reference/encoders/bert");
    /// let texts = ["The museum opens at nine.", "How do I reset my password?"];
    /// let embedder = Embedder::open_with(folder, Options::new().equalize(texts))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn equalize(self, texts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { equalize: Some(texts.into_iter().map(Into::into).collect()), ..self }
    }

    /// Sets the most texts of a batch, which does not change the bits of answers.
    #[must_use]
    pub fn batch_size(self, batch_size: usize) -> Self {
        Self { batch_size, ..self }
    }

    /// Sets the most tokens of a text, including special tokens; longer texts are cut at their end.
    #[must_use]
    pub fn max_tokens(self, max_tokens: usize) -> Self {
        Self { max_tokens: Some(max_tokens), ..self }
    }

    /// Sets a callback for the end of each batch, with the number of texts that are done, and of
    /// all.
    #[must_use]
    pub fn on_progress(self, progress: impl Fn(usize, usize) + Send + Sync + 'static) -> Self {
        Self { progress: Some(Box::new(progress)), ..self }
    }

    pub(crate) fn lexical(self) -> Self {
        Self { is_lexical: true, ..self }
    }

    fn check(&self) -> Result<()> {
        ensure!(self.batch_size > 0, "batch_size: expected 1 or more, got 0");
        Ok(())
    }

    #[cfg(feature = "images")]
    pub(crate) fn check_pictures(&self) -> Result<()> {
        let none = "expected no such option of a model of pictures";
        ensure!(self.equalize.is_none(), "equalize: {none}");
        ensure!(self.max_tokens.is_none(), "max_tokens: {none}");
        ensure!(self.task.is_none(), "task: {none}");
        self.check()
    }

    pub(crate) fn open(self, dir: &Path) -> Result<Batches> {
        self.check()?;
        let (task, texts) = (self.task.as_deref(), self.equalize.as_deref());
        let mut encoder = Encoder::open_with(dir, self.preset, task, texts, self.is_lexical)?;
        if let Some(limit) = self.max_tokens {
            let most = encoder.config.max_tokens;
            ensure!(
                limit <= most,
                "max_tokens: expected at most {most}, which the model takes, got {limit}"
            );
            encoder.tokenizer.limit(limit).context("max_tokens")?;
        }
        Ok(Batches { encoder, size: self.batch_size, progress: self.progress })
    }
}

pub(crate) struct Batches {
    pub encoder: Encoder,
    size: usize,
    progress: Option<Box<Progress>>,
}

impl Batches {
    /// The answers to texts behind a prompt, cut at their end, each changed by `finish`.
    pub fn behind<T: Clone + Default>(
        &self,
        prompt: &Prompt,
        texts: &[impl AsRef<str>],
        head: Head,
        finish: impl Fn(Vec<f32>) -> T,
    ) -> Result<Vec<T>> {
        let (tokenizer, cut) = (&self.encoder.tokenizer, Some(Direction::Right));
        let encode = |text: &_| tokenizer.encode_behind(prompt, AsRef::as_ref(text), cut);
        self.answer_as(&each(texts, encode)?, head, finish)
    }

    pub fn answer(&self, texts: &[Tokens], head: Head) -> Result<Vec<Vec<f32>>> {
        self.answer_as(texts, head, |answer| answer)
    }

    /// The answers to all texts in order, each changed by `finish`.
    pub fn answer_as<T: Clone + Default>(
        &self,
        texts: &[Tokens],
        head: Head,
        finish: impl Fn(Vec<f32>) -> T,
    ) -> Result<Vec<T>> {
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|&index| texts[index].len());
        let mut answers = vec![T::default(); texts.len()];
        let mut rest = order.as_slice();
        while !rest.is_empty() {
            // The last text of a batch is its longest.
            let fits = |&count: &usize| count * texts[rest[count - 1]].len() <= MOST_TOKENS;
            let count = (1..=self.size.min(rest.len())).rev().find(fits);
            let (batch, others) = rest.split_at(count.unwrap_or(1));
            let tasks: Vec<Task<'_>> =
                batch.iter().map(|&index| Task { tokens: &texts[index], head }).collect();
            let of_batch = self.encoder.model.answer(&tasks)?;
            for (&index, answer) in batch.iter().zip(of_batch) {
                answers[index] = finish(answer);
            }
            rest = others;
            if let Some(progress) = &self.progress {
                progress(texts.len() - rest.len(), texts.len());
            }
        }
        Ok(answers)
    }
}
