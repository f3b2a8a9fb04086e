//! Products of one input, and norms of sums: what is one call, and what stays.
use candle::{Module, Result, Tensor};
use candle_dynquant::nn::{LayerNorm, Linear};
use candle_dynquant::Quantizable;
use candle_nn::Dropout;

#[derive(Clone, Quantizable)]
pub struct Block {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    norm: LayerNorm,
    last_norm: LayerNorm,
    dropout: Dropout,
    heads: usize,
}

impl Block {
    fn split(&self, xs: &Tensor) -> Result<Tensor> {
        let (batch, len, size) = xs.dims3()?;
        xs.reshape((batch, len, self.heads, size / self.heads))
    }

    fn whole(&self, xs: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
        let [query, mut key, value] =
            Linear::forward_each([&self.query, &self.key, &self.value], xs)?;
        key = key.contiguous()?;
        Ok((query, key, value))
    }

    fn parts(&self, xs: Tensor) -> Result<(Tensor, Tensor)> {
        let [query, key, value] = Linear::forward_each([&self.query, &self.key, &self.value], &xs)?;
        let query = self.split(&query)?;
        let value = value.transpose(1, 2)?;
        Ok((query.matmul(&key)?, value))
    }

    /// None of these can be computed together.
    fn apart(&self, xs: &Tensor, ys: &Tensor) -> Result<Tensor> {
        let query = self.query.forward(xs)?;
        let key = self.key.forward(ys)?;
        let xs = self.value.forward(&key)?;
        let value = self.value.forward(&xs)?;
        let query = self.query.forward(&xs)?.add(&query)?;
        let first = self.query.forward(&query)?;
        // The same layer again.
        let second = self.query.forward(&query)?;
        let third = self.out.forward(ys)?;
        // dynquant: keep
        let fourth = self.out.forward(ys)?;
        let value = value.add(&fourth)?;
        let key = self.key.forward(ys)?.add(&value)?;
        let value = self.value.forward(ys)?;
        first + second + third + key + value
    }

    fn sums(&self, xs: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let xs = self.out.forward(xs)?;
        let xs = self.dropout.forward(&xs, false)?;
        let xs = self.norm.forward_add(&xs, residual)?;
        let residual = &xs;
        let ys = self.norm.forward_add(&self.out.forward(&xs)?, residual)?;
        self.last_norm.forward_add(&ys, residual)
    }

    fn in_a_block(&self, xs: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let mut ys = self.out.forward(xs)?;
        ys = self.norm.forward_add(&ys, residual)?;
        Ok(ys)
    }

    /// A sum that is read again, one with a number, and what may be anything.
    fn no_sums(&self, xs: &Tensor, eps: f64) -> Result<Tensor> {
        let ys = self.out.forward(xs)?;
        let sum = (&ys + xs)?;
        let normal = self.norm.forward(&sum)?;
        let shifted = self.norm.forward(&(&ys + eps)?)?;
        let product = self.norm.forward(&(&ys * xs)?)?;
        let tried = self.norm.forward(&(ys + self.out.forward(xs))?)?;
        // dynquant: keep
        let kept = self.norm.forward(&(xs + &sum)?)?;
        normal + shifted + product + tried + sum + kept
    }
}
