use candle::{DType, Result, Tensor};
use candle_dynquant::nn::Linear;
use candle_dynquant::{ops as qops, Quantizable};
use candle_nn::Module;

mod ops {
    pub fn scale(size: usize) -> f64 {
        1. / (size as f64).sqrt()
    }
}

#[derive(Clone, Quantizable)]
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

    // Queries that are scaled before.
    pub fn scaled(&self, q: &Tensor, k: &Tensor) -> Result<(Tensor, Tensor)> {
        let (b, h, len, d) = q.dims4()?;
        let factor = (d as f64).powf(-0.5);
        let first = qops::scaled_dot_product_attention(q, k, k, None, factor)?;
        let keys = k.reshape((b, h, len, d))?;
        let queries: Tensor = (keys.clone() / (d as f64).sqrt())?;
        let second = qops::scaled_dot_product_attention(&queries, &keys, &keys, None, self.scale)?;
        Ok((first, second))
    }

    // Scaled queries that are read again, and a factor that is another one by then.
    pub fn scaled_twice(&self, q: &Tensor, k: &Tensor) -> Result<Tensor> {
        let (_b, _h, len, d) = q.dims4()?;
        let scaled = (q * self.scale)?;
        let xs = qops::scaled_dot_product_attention(&scaled, k, k, None, 1.)?;
        let xs = (xs + scaled)?;
        let d = d as f64;
        let ys = (q * d)?;
        let d = len as f64;
        let ys = qops::scaled_dot_product_attention(&ys, k, k, None, 1.)?;
        (xs + ys)? * d
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

    // An image whose rows are one dimension: the `dims4` is of what it was before.
    pub fn flat(&self, x: &Tensor) -> Result<Tensor> {
        let (b, c, h, w) = x.dims4()?;
        let x = x.reshape((b, c, h * w))?.transpose(1, 2)?;
        let q = self.q.forward(&x)?;
        let k = self.q.forward(&x)?;
        let v = self.q.forward(&x)?;
        let scores = (q.matmul(&k.transpose(1, 2)?)? * self.scale)?;
        qops::softmax_last_dim(&scores)?.matmul(&v)
    }

    // What it was before is no longer known, and what another name ends with is nothing.
    pub fn unknown(&self, max: &Tensor, q: &Tensor, k: &Tensor) -> Result<Tensor> {
        let (_b, _c, _h, _w) = max.dims4()?;
        let (_b, _c, _h, _w) = q.dims4()?;
        let q = self.pooled(q)?;
        let x = self.pooled(k)?;
        let scores = q.matmul(&x.transpose(1, 2)?)?;
        qops::softmax_last_dim(&scores)?.matmul(&x)
    }

    // One branch knows it, and the code after it does not.
    pub fn branch(&self, q: &Tensor) -> Result<Tensor> {
        if q.rank() == 4 {
            let (_b, _h, _len, _d) = q.dims4()?;
        }
        let scores = q.matmul(&q.t()?)?;
        qops::softmax_last_dim(&scores)?.matmul(q)
    }

    // A cache puts keys of the same rank in their place.
    pub fn cached(&self, q: &Tensor, cache: &mut Cache) -> Result<Tensor> {
        let mut k = self.q.forward(q)?;
        let (_b, _h, _len, _d) = k.dims4()?;
        if cache.is_used() {
            k = cache.append(&k)?;
        }
        qops::scaled_dot_product_attention(q, &k, &k, None, 1.)
    }
}
// left: line 62: attention of a form that is not certain
// left: line 76: attention of a form that is not certain
// left: line 84: attention of a form that is not certain
// left: line 86: attention of a form that is not certain
// left: line 98: attention of a form that is not certain
// left: line 108: attention of a form that is not certain
// left: line 117: attention of a form that is not certain
