use candle::{DType, Result, Tensor};
use candle_dynquant::nn::{Linear, Module};
use candle_dynquant::{ops as qops, Quantizable};

mod ops {
    pub fn scale(size: usize) -> f64 {
        1. / (size as f64).sqrt()
    }
}

#[derive(Quantizable)]
pub struct Attention {
    q: Linear,
    heads: usize,
    size: usize,
    scale: f64,
}

impl Attention {
    // Heads and batch are one dimension.
    pub fn three(&self, xs: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (b, len, _) = xs.dims3()?;
        let shape = (b * self.heads, len, self.size);
        let q = (self.q.forward(xs)? * ops::scale(self.size))?.reshape(shape)?;
        let k = self.q.forward(xs)?.reshape(shape)?;
        qops::scaled_dot_product_attention(
            &q.unsqueeze(0)?,
            &k.unsqueeze(0)?,
            &k.unsqueeze(0)?,
            mask,
            1.,
        )?
        .squeeze(0)
    }

    // Apart for the mask only.
    pub fn apart(&self, xs: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (b, len, _) = xs.dims3()?;
        let shape = (b * self.heads, len, self.size);
        let q = self.q.forward(xs)?.reshape(shape)?.to_dtype(DType::F32)?;
        let k = self.q.forward(xs)?.reshape(shape)?.to_dtype(DType::F32)?;
        let ys = qops::scaled_dot_product_attention(
            &q.reshape((b, self.heads, len, ()))?,
            &k.reshape((b, self.heads, len, ()))?,
            &k.reshape((b, self.heads, len, ()))?,
            mask,
            1.,
        )?
        .flatten_to(1)?
        .to_dtype(xs.dtype())?;
        ys.reshape((b, self.heads, len, self.size))
    }

    // A scale after the mask, a softmax of another dimension, scores that are read again: as they are.
    pub fn others(&self, q: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (_b, _h, _len, _d) = q.dims4()?;
        let a = (q.matmul(&q.t()?)?.broadcast_add(mask)? * self.scale)?;
        let a = qops::softmax_last_dim(&a)?.matmul(q)?;
        let b = q.matmul(&q.t()?)?;
        let b = qops::softmax(&b, 1)?.matmul(q)?;
        (a + b)
    }
}
// left: line 57: attention of a form that is not certain
// left: line 59: attention of a form that is not certain
