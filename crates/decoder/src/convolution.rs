//! The short convolutions of LFM2.

use anyhow::Result;
use candle_core::{Result as CandleResult, Tensor};
use candle_dynquant::{Quantizable, nn};
use candle_nn::{Module, VarBuilder};

use crate::cache::LayerCache;
use crate::config::Config;

/// A gated convolution over the last tokens, each feature alone:
/// `out_proj(c * convolution(b * x))`, where `b`, `c` and `x` are the parts of `in_proj`.
#[derive(Quantizable, Clone)]
pub struct ShortConvolution {
    in_proj: nn::Linear,
    out_proj: nn::Linear,
    /// The factors of inputs, from the first of the last tokens to the token, `[features]` each.
    #[quantizable(skip)]
    factors: Vec<Tensor>,
    #[quantizable(skip)]
    bias: Option<Tensor>,
}

impl ShortConvolution {
    pub fn load(config: &Config, vb: &VarBuilder<'_>) -> Result<Self> {
        let (size, kernel) = (config.hidden_size, config.kernel_size());
        let (vb, bias) = (vb.pp("conv"), config.conv_bias);
        let linear = |out, name| nn::linear_b(size, out, bias, vb.pp(name));
        let conv = vb.pp("conv");
        let weight = if config.is_gguf {
            conv.get((size, kernel), "weight")?
        } else {
            conv.get((size, 1, kernel), "weight")?.squeeze(1)?
        };
        let factor = |index| weight.narrow(1, index, 1)?.squeeze(1)?.contiguous();
        Ok(Self {
            in_proj: linear(3 * size, "in_proj")?,
            out_proj: linear(size, "out_proj")?,
            factors: (0..kernel).map(factor).collect::<CandleResult<_>>()?,
            bias: bias.then(|| conv.get(size, "bias")).transpose()?,
        })
    }

    /// Maps `[rows, hidden]` to `[rows, hidden]`, where `shapes` are the batch size and number of
    /// tokens of each part.
    pub fn forward(
        &self,
        xs: &Tensor,
        shapes: &[[usize; 2]],
        caches: &mut [&mut LayerCache],
    ) -> CandleResult<Tensor> {
        let parts = self.in_proj.forward(xs)?.chunk(3, 1)?;
        let [b, c, x] = &parts[..] else {
            candle_core::bail!("convolution: expected 3 parts, got {}", parts.len());
        };
        let (gated, mut start) = ((b * x)?, 0);
        let mut sums = Vec::with_capacity(shapes.len());
        for (&[batch, tokens], cache) in shapes.iter().zip(caches) {
            let LayerCache::Convolution(past) = cache else {
                candle_core::bail!("cache: expected one of a convolution, got one of attention");
            };
            let new = gated.narrow(0, start, batch * tokens)?;
            let new = new.reshape((batch, tokens, ()))?;
            let all = past.extend(&new, self.factors.len() - 1)?;
            let mut sum = new.zeros_like()?;
            for (index, factor) in self.factors.iter().enumerate() {
                sum = (sum + all.narrow(1, index, tokens)?.broadcast_mul(factor)?)?;
            }
            sums.push(sum.flatten_to(1)?);
            start += batch * tokens;
        }
        let mut sum = Tensor::cat(&sums, 0)?;
        if let Some(bias) = &self.bias {
            sum = sum.broadcast_add(bias)?;
        }
        self.out_proj.forward(&(c * sum)?)
    }
}
