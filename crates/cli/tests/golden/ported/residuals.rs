//! Sums that a norm reads and others too: what is one call, and what stays.
use candle::{Module, Result, Tensor};
use candle_dynquant::nn::{LayerNorm, Linear, RmsNorm};
use candle_dynquant::Quantizable;

#[derive(Clone, Quantizable)]
pub struct Block {
    first: RmsNorm,
    attention: Linear,
    second: RmsNorm,
    mlp: Linear,
    last: LayerNorm,
}

impl Block {
    fn llama(&self, x: &Tensor) -> Result<Tensor> {
        let residual = x;
        let x = self.first.forward(x)?;
        let (normal, x) = self
            .second
            .forward_add(&self.attention.forward(&x)?, residual)?;
        let residual = &x;
        let x = (self.mlp.forward(&normal)? + residual)?;
        Ok(x)
    }

    fn mistral(&self, xs: &Tensor) -> Result<Tensor> {
        let residual = xs;
        let xs = self.first.forward(xs)?;
        let xs = self.attention.forward(&xs)?;
        let (normal, xs) = self.second.forward_add(&xs, residual)?;
        let residual = &xs;
        let xs = normal.apply(&self.mlp)?;
        residual + xs
    }

    fn qwen(&self, x: &Tensor) -> Result<Tensor> {
        let h = self.first.forward(x)?;
        let h = self.attention.forward(&h)?;
        let (normal, x) = self.second.forward_add(x, &h)?;
        let h2 = normal;
        let h2 = h2.apply(&self.mlp)?;
        x + h2
    }

    /// One after the other, each of the sum before.
    fn chain(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let (normal, _) = self.first.forward_add(x, y)?;
        let (normed, y) = self.second.forward_add(&self.mlp.forward(&normal)?, y)?;
        let z = normed;
        y + z
    }

    /// Nothing else reads the sum.
    fn last(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let (normal, _) = self.second.forward_add(x, y)?;
        let x = normal;
        self.mlp.forward(&x)
    }

    /// Another norm, one that may not be computed, and what may be anything.
    fn no_sums(&self, x: &Tensor, y: &Tensor, eps: f64, is_first: bool) -> Result<Tensor> {
        let mut x = (x + y)?;
        if is_first {
            x = self.first.forward(&x)?;
        }
        let z = (&x + y)?;
        let z = (&z + self.last.forward(&z)?)?;
        let shifted = (&z + eps)?;
        let shifted = self.first.forward(&shifted)?;
        let product = (&z * y)?;
        let product = self.first.forward(&product)?;
        let far = (&z + y)?;
        let between = self.mlp.forward(&product)?;
        let far = (self.first.forward(&far)? + between)?;
        // dynquant: keep
        let kept = (&far + y)?;
        let kept = (self.first.forward(&kept)? + kept)?;
        kept + shifted
    }
}
