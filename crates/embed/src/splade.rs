//! The pooling of SPLADE: a weight for each token of the vocabulary, from the logits of the model's
//! guesses of words.

use anyhow::Result;
use candle_core::{Device, Result as CandleResult, Tensor};

use crate::keys::Keys;
use crate::models::ClassHead;
use crate::tables;

/// The number of tokens whose logits are computed together, so that these take some MB.
const TOKENS: usize = 32;

/// The settings of `SpladePooling`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Splade {
    /// Whether weights are summed over tokens; else the greatest remains.
    is_sum: bool,
    /// The number of logarithms.
    logarithms: usize,
}

impl Splade {
    /// Reads a configuration of sentence-transformers.
    pub fn parse(path: &str, text: &str) -> Result<Self> {
        let expected = "the pooling of sentence-transformers";
        let keys = Keys::flat_text(path, text, expected, &tables::SPLADE_POOLING)?;
        let (strategy, function) = ("pooling_strategy", "activation_function");
        Ok(Self {
            is_sum: match keys.word(strategy)?.as_deref() {
                None | Some("max") => false,
                Some("sum") => true,
                Some(_) => return Err(keys.fault(strategy, "max or sum")),
            },
            logarithms: match keys.word(function)?.as_deref() {
                None | Some("relu") => 1,
                Some("log1p_relu") => 2,
                Some(_) => return Err(keys.fault(function, "relu or log1p_relu")),
            },
        })
    }

    /// The weights of the vocabulary by the vectors of a text's tokens, of `size` numbers each.
    pub fn pool(self, head: &ClassHead, vectors: &[f32], size: usize) -> CandleResult<Vec<f32>> {
        let logarithm = |x: f32| (0..self.logarithms).fold(x.max(0.), |x, _| x.ln_1p());
        let mut weights = Vec::new();
        for part in vectors.chunks(TOKENS * size) {
            let part = Tensor::from_slice(part, (part.len() / size, size), &Device::Cpu)?;
            for logits in head.forward(&part)?.to_vec2::<f32>()? {
                weights.resize(logits.len(), 0.);
                let pairs = weights.iter_mut().zip(logits);
                if self.is_sum {
                    pairs.for_each(|(weight, logit)| *weight += logarithm(logit));
                } else {
                    pairs.for_each(|(weight, logit)| *weight = weight.max(logit));
                }
            }
        }
        if !self.is_sum {
            weights.iter_mut().for_each(|weight| *weight = logarithm(*weight));
        }
        Ok(weights)
    }
}
