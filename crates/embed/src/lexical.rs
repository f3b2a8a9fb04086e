//! The sparse head of bge-m3: each token of a text has a weight by its vector.

use std::path::Path;

use anyhow::{Context, Result};
use candle_core::{Device, Tensor};
use candle_dynquant::{Checkpoint, nn};
use candle_nn::Module;

use crate::loaded::Loaded;
use crate::state_dict;

/// The files that may have the weights of the head; the first is used.
pub(crate) const FILES: [&str; 2] = ["sparse_linear.safetensors", "sparse_linear.pt"];

/// A product that makes the weight of a token; a text has the greatest of equal tokens.
#[derive(Clone, Debug)]
pub(crate) struct Lexical {
    linear: nn::Linear,
    /// The tokens that have no weight.
    skipped: Vec<u32>,
    vocab: usize,
}

impl Lexical {
    /// The head in a folder, of vectors with `size` numbers, without weights of the tokens `skipped`.
    pub fn open(dir: &Path, size: usize, vocab: usize, skipped: Vec<u32>) -> Result<Option<Self>> {
        let mut paths = FILES.iter().map(|file| dir.join(file));
        let Some(path) = paths.find(|path| path.exists()) else {
            return Ok(None);
        };
        let place = path.display().to_string();
        let checkpoint = if path.ends_with(FILES[0]) {
            Checkpoint::open(&path)?
        } else {
            Checkpoint::from_bytes(&place, state_dict::safetensors(&path)?)?
        };
        let loaded = Loaded::new(checkpoint);
        let linear = nn::linear_b(size, 1, true, loaded.var_builder());
        let linear = linear.with_context(|| format!("{place}: expected a product"))?;
        loaded.check(&place)?;
        Ok(Some(Self { linear, skipped, vocab }))
    }

    /// The weights of the vocabulary by a text's tokens and their vectors.
    pub fn pool(&self, ids: &[u32], vectors: &[f32]) -> Result<Vec<f32>> {
        let vectors = Tensor::from_slice(vectors, (ids.len(), ()), &Device::Cpu)?;
        let logits = self.linear.forward(&vectors)?.flatten_all()?;
        let mut weights = vec![0f32; self.vocab];
        for (&id, logit) in ids.iter().zip(logits.to_vec1()?) {
            if !self.skipped.contains(&id) {
                let weight = &mut weights[id as usize];
                // Not by `max`, which would hide a number that is none.
                *weight = if logit <= *weight { *weight } else { logit };
            }
        }
        Ok(weights)
    }
}
