//! Vectors of the tokens of texts, for late interaction.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::batches::{Batches, Options, opened};
use crate::folder::Encoder;
use crate::model::Head;

/// A model that makes a vector of each token of a text (ColBERT), from a folder of PyLate, of a
/// `MultiVectorEncoder` of sentence-transformers, or of Stanford's ColBERT.
///
/// The bits of a vector do not depend on the other texts of a call, nor on the batches.
///
/// ```
/// use dynquant_embed::MultiVectorEmbedder;
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/reference/encoders/late-bert");
/// let embedder = MultiVectorEmbedder::open(folder)?;
/// let documents = embedder.embed_documents(&["snow in the city", "bread"])?;
/// let query = &embedder.embed_queries(&["winter"])?[0];
/// let scores = documents.iter().map(|it| query.max_sim(it)).collect::<Result<Vec<f32>, _>>()?;
/// assert_eq!(scores.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MultiVectorEmbedder(Batches);

/// The vectors of a text's tokens, in the order of the text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MultiVector {
    /// The number of values in a vector.
    pub dimensions: usize,
    /// The values of all vectors, one vector after the other.
    pub values: Vec<f32>,
}

impl MultiVector {
    /// The vectors, at least one.
    pub fn vectors(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.dimensions.max(1))
    }

    /// The similarity of a query to a document: the sum, over the query's vectors, of the greatest
    /// dot product with a vector of the document.
    ///
    /// ```
    /// use dynquant_embed::MultiVector;
    ///
    /// let query = MultiVector { dimensions: 2, values: vec![1., 0., 0., 1.] };
    /// let document = MultiVector { dimensions: 2, values: vec![0.6, 0.8, 1., 0.] };
    /// assert_eq!(query.max_sim(&document)?, 1.8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the document has vectors of another length, or none.
    pub fn max_sim(&self, document: &Self) -> Result<f32> {
        let [expected, got] = [self, document].map(|it| it.dimensions);
        ensure!(
            expected == got && document.vectors().len() > 0,
            "max_sim: expected a document with vectors of {expected} numbers, got {} of {got}",
            document.vectors().len(),
        );
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let greatest = |query| {
            let dots = document.vectors().map(|vector| dot(query, vector));
            dots.fold(f32::NEG_INFINITY, f32::max)
        };
        Ok(self.vectors().map(greatest).sum())
    }
}

opened!(MultiVectorEmbedder, 0, ", with vectors by [`Head::TokenEmbeddings`]");

impl MultiVectorEmbedder {
    /// Opens a folder with options.
    ///
    /// # Errors
    /// Also when an option does not fit the model, or the folder is for one vector of each text.
    pub fn open_with(dir: impl AsRef<Path>, options: Options) -> Result<Self> {
        let batches = options.open(dir.as_ref())?;
        ensure!(
            batches.encoder.config.is_multi_vector(),
            "{}: expected a model of several vectors of a text (ColBERT), got one of one vector",
            dir.as_ref().display(),
        );
        Ok(Self(batches))
    }

    /// The number of values in a vector.
    pub fn dimensions(&self) -> usize {
        self.encoder().config.embedding_size
    }

    /// The vectors of questions, behind the folder's prefix and prompt `query`, and with those of
    /// the tokens that the folder has appended to short questions.
    ///
    /// # Errors
    /// When the model fails.
    pub fn embed_queries(&self, texts: &[impl AsRef<str>]) -> Result<Vec<MultiVector>> {
        self.behind(self.encoder().prompts.query(), true, texts)
    }

    /// The vectors of texts to be searched, behind the folder's prefix and prompt of
    /// [`Embedder::embed_documents`](crate::Embedder::embed_documents), without those of
    /// punctuation or of what the folder leaves out.
    ///
    /// # Errors
    /// When the model fails.
    pub fn embed_documents(&self, texts: &[impl AsRef<str>]) -> Result<Vec<MultiVector>> {
        self.behind(self.encoder().prompts.document(), false, texts)
    }

    fn behind(
        &self,
        prompt: &str,
        is_query: bool,
        texts: &[impl AsRef<str>],
    ) -> Result<Vec<MultiVector>> {
        let (tokenizer, dimensions) = (&self.encoder().tokenizer, self.dimensions());
        let prompt = tokenizer.prompt(prompt)?.of_queries(is_query);
        let finish = |values| MultiVector { dimensions, values };
        self.0.behind(&prompt, texts, Head::TokenEmbeddings, finish)
    }
}
