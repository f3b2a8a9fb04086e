//! The last steps of an embedding: the cut and the normalization.

use dynquant_embed::normalized;

use crate::error::Refusal;

/// A cut to the leading numbers, and a normalization to length 1.
pub struct Finish {
    dimensions: usize,
    normalize: bool,
}

impl Finish {
    /// The steps that a request asks for, of embeddings with `all` numbers.
    pub fn new(all: usize, dimensions: Option<usize>, normalize: bool) -> Result<Self, Refusal> {
        let dimensions = dimensions.unwrap_or(all);
        if (1..=all).contains(&dimensions) {
            return Ok(Self { dimensions, normalize });
        }
        let message =
            format!("dimensions: expected 1 to {all}, which the model has, got {dimensions}");
        Err(Refusal::invalid("dimensions", message))
    }

    pub fn apply(&self, mut embedding: Vec<f32>) -> Vec<f32> {
        embedding.truncate(self.dimensions);
        if self.normalize { normalized(embedding) } else { embedding }
    }
}
