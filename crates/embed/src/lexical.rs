//! The sparse head of bge-m3: each token of a text has a weight by its vector.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use candle_dynquant::{Checkpoint, nn};
use candle_nn::Module;

use crate::loaded::Loaded;

/// The weights of the head, and the pickle from which they are converted.
const WEIGHTS: &str = "sparse_linear.safetensors";
const PICKLE: &str = "sparse_linear.pt";

/// A product that makes the weight of a token; a text has the greatest of equal tokens.
#[derive(Clone, Debug)]
pub(crate) struct Lexical {
    linear: nn::Linear,
    /// The tokens that have no weight.
    skipped: Vec<u32>,
    vocab: usize,
}

impl Lexical {
    /// Whether a folder has the head, by a converted file or not.
    pub fn is_in(dir: &Path) -> bool {
        dir.join(WEIGHTS).exists() || dir.join(PICKLE).exists()
    }

    /// The head of vectors with `hidden` numbers, without weights of the tokens `skipped`.
    pub fn open(dir: &Path, hidden: usize, vocab: usize, skipped: Vec<u32>) -> Result<Self> {
        let path = dir.join(WEIGHTS);
        ensure!(
            path.exists(),
            "{}: expected {WEIGHTS} beside it, since a pickle can run code: \
             scripts/convert_pytorch.py {PICKLE} {WEIGHTS}",
            dir.join(PICKLE).display(),
        );
        let loaded = Loaded::new(Checkpoint::open(&path)?);
        let linear = nn::linear_b(hidden, 1, true, loaded.var_builder());
        let linear = linear.with_context(|| format!("{}: expected a product", path.display()))?;
        loaded.check(&path.display())?;
        Ok(Self {
            linear,
            skipped,
            vocab,
        })
    }

    /// The weights of the vocabulary by a text's tokens and their vectors.
    pub fn pool(&self, ids: &[u32], vectors: &[f32]) -> Result<Vec<f32>> {
        let vectors = Tensor::from_slice(vectors, (ids.len(), ()), &Device::Cpu)?;
        let logits = self.linear.forward(&vectors)?.flatten_all()?;
        let mut weights = vec![0f32; self.vocab];
        for (&id, logit) in ids.iter().zip(logits.to_vec1()?) {
            if !self.skipped.contains(&id) {
                let weight = &mut weights[id as usize];
                *weight = weight.max(logit);
            }
        }
        Ok(weights)
    }
}
