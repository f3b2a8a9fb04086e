//! The perplexity of a text.

use anyhow::Result;
use candle_core::{Device, Tensor};
use candle_dynquant_decoder::Decoder;
use serde::Serialize;

/// How well a model predicts a text.
#[derive(Clone, Copy, Serialize)]
pub struct Perplexity {
    /// Tokens that were predicted.
    pub tokens: usize,
    /// The exponential of the mean negative log probability.
    pub perplexity: f64,
}

impl Perplexity {
    /// Reads the text in windows of `context` tokens, each from an empty cache; `tick` gets the
    /// number of windows, once for each.
    pub fn measure(
        model: &Decoder,
        tokens: &[u32],
        context: usize,
        mut tick: impl FnMut(usize),
    ) -> Result<Self> {
        let (mut nats, mut count) = (0., 0);
        let windows = (tokens.len() - 1).div_ceil(context);
        for start in (0..tokens.len() - 1).step_by(context) {
            let part = &tokens[start..tokens.len().min(start + context + 1)];
            let (seen, next) = (&part[..part.len() - 1], &part[1..]);
            let seen = Tensor::new(seen, &Device::Cpu)?.unsqueeze(0)?;
            let scores = model.all(&seen, &mut model.cache())?.squeeze(0)?;
            for (scores, token) in scores.to_vec2::<f32>()?.iter().zip(next) {
                nats += surprise(scores, *token as usize);
            }
            count += next.len();
            tick(windows);
        }
        Ok(Self { tokens: count, perplexity: (nats / count as f64).exp() })
    }
}

/// The negative log of a token's probability.
fn surprise(scores: &[f32], token: usize) -> f64 {
    let top = scores.iter().fold(f32::NEG_INFINITY, |top, x| top.max(*x));
    let sum: f64 = scores.iter().map(|x| f64::from(x - top).exp()).sum();
    sum.ln() - f64::from(scores[token] - top)
}
