//! Sparse vectors of texts: weights of tokens of the vocabulary.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::batches::{Batches, Options, opened};
use crate::folder::Encoder;
use crate::model::Head;

/// A model that weighs the tokens of the vocabulary by a text (SPLADE), from a folder of a
/// `SparseEncoder` of sentence-transformers; or the tokens of the text, by the head of bge-m3 in
/// `sparse_linear.pt` or `sparse_linear.safetensors`, which is preferred.
///
/// The bits of a vector do not depend on the other texts of a call, nor on the batches.
///
/// ```
/// use dynquant_embed::SparseEmbedder;
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/reference/encoders/splade");
/// let embedder = SparseEmbedder::open(folder)?;
/// let vectors = embedder.embed_documents(&["snow in the city", "bread"])?;
/// let query = &embedder.embed_queries(&["winter"])?[0];
/// let scores: Vec<f32> = vectors.iter().map(|it| it.dot(query)).collect();
/// assert_eq!(scores.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SparseEmbedder(Batches);

/// The tokens with a weight above 0, in the order of their ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SparseVector {
    /// The ids of the tokens.
    pub ids: Vec<u32>,
    /// The weight of each.
    pub weights: Vec<f32>,
}

impl SparseVector {
    /// The vector of the weights of all tokens.
    ///
    /// ```
    /// use dynquant_embed::SparseVector;
    ///
    /// let vector = SparseVector::from_dense(&[0., 2., 0., 0.5]);
    /// assert_eq!((vector.ids, vector.weights), (vec![1, 3], vec![2., 0.5]));
    /// ```
    pub fn from_dense(weights: &[f32]) -> Self {
        let all = weights.iter().zip(0..);
        let (weights, ids) = all.filter(|(weight, _)| **weight > 0.).unzip();
        Self { ids, weights }
    }

    /// The sum of the products of weights of the same tokens: the similarity of two texts.
    pub fn dot(&self, other: &Self) -> f32 {
        let mut others = other.ids.iter().zip(&other.weights).peekable();
        let mut sum = 0.;
        for (id, weight) in self.ids.iter().zip(&self.weights) {
            while others.next_if(|(other, _)| *other < id).is_some() {}
            if let Some((_, other)) = others.next_if(|(other, _)| *other == id) {
                sum += weight * other;
            }
        }
        sum
    }
}

opened!(SparseEmbedder, 0, ", with the weights of all tokens by [`Head::Sparse`]");

impl SparseEmbedder {
    /// Opens a folder with options.
    ///
    /// # Errors
    /// Also when an option does not fit the model, or the folder has neither `SpladePooling` nor the head
    /// of bge-m3.
    pub fn open_with(dir: impl AsRef<Path>, options: Options) -> Result<Self> {
        let dir = dir.as_ref();
        let batches = options.lexical().open(dir)?;
        ensure!(
            batches.encoder.config.is_sparse(),
            "{}: expected a model of sparse vectors, with SpladePooling or sparse_linear.pt, got one of \
             dense vectors",
            dir.display(),
        );
        Ok(Self(batches))
    }

    /// The vectors of texts, after the folder's default prompt if it has one.
    ///
    /// # Errors
    /// When a text has no tokens, or the model fails.
    pub fn embed(&self, texts: &[impl AsRef<str>]) -> Result<Vec<SparseVector>> {
        self.behind(self.encoder().prompts.default_prompt(), texts)
    }

    /// The vectors of questions, after the prompt `query`, or the default prompt.
    ///
    /// # Errors
    /// The errors of [`embed`](Self::embed).
    pub fn embed_queries(&self, texts: &[impl AsRef<str>]) -> Result<Vec<SparseVector>> {
        self.behind(self.encoder().prompts.query(), texts)
    }

    /// The vectors of texts to be searched, after the prompt of [`Embedder::embed_documents`](crate::Embedder::embed_documents).
    ///
    /// # Errors
    /// The errors of [`embed`](Self::embed).
    pub fn embed_documents(&self, texts: &[impl AsRef<str>]) -> Result<Vec<SparseVector>> {
        self.behind(self.encoder().prompts.document(), texts)
    }

    fn behind(&self, prompt: &str, texts: &[impl AsRef<str>]) -> Result<Vec<SparseVector>> {
        let prompt = self.encoder().tokenizer.prompt(prompt)?;
        let finish = |weights: Vec<f32>| SparseVector::from_dense(&weights);
        self.0.behind(&prompt, texts, Head::Sparse, finish)
    }
}
