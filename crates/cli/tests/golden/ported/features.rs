//! Code for a GPU is not listed; a mask of its own in a block of it is none outside of that.
use candle::{Device, Module, Result, Tensor};
use candle_dynquant::nn::Linear;
use candle_dynquant::{ops, Quantizable};

#[derive(Quantizable)]
pub struct Attention {
    query: Linear,
    #[cfg(feature = "cuda")]
    hidden: Box<dyn Module>,
    scale: f64,
}

impl Attention {
    pub fn forward(&self, xs: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let qkv = self.query.forward(xs)?;
        let qkv = qkv.reshape((1, 12, 8, 4))?.chunk(3, 1)?;
        let q = &qkv[0].contiguous()?;
        let k = &qkv[1].contiguous()?;
        let v = &qkv[2];
        if let Device::Cuda(_) = xs.device() {
            #[cfg(feature = "cuda")]
            {
                let mask = mask.map(|mask| mask.flatten(0, 1)).transpose()?;
                let scores = library::product(q, k, mask.as_ref())?;
                let scores = candle_nn::ops::softmax_last_dim(&scores)?.matmul(v)?;
                return scores.matmul(v);
            }
            #[cfg(not(feature = "cuda"))]
            candle::bail!("`cuda` feature is not enabled")
        } else {
            ops::scaled_dot_product_attention(q, k, v, mask, self.scale)
        }
    }

    /// The mask is one of its own by then.
    pub fn shadowed(&self, xs: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let q = xs.reshape((1, 2, 8, 4))?;
        let mask = match mask {
            Some(mask) => Some(mask.unsqueeze(1)?.unsqueeze(1)?),
            None => None,
        };
        ops::scaled_dot_product_attention(&q, &q, &q, mask.as_ref(), self.scale)
    }

    /// Nothing says what this mask is.
    pub fn unknown(&self, xs: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let q = xs.reshape((1, 2, 8, 4))?;
        let mask = self.prepared(mask)?;
        let mut scores = (q.matmul(&q.t()?)? * self.scale)?;
        if let Some(mask) = mask {
            scores = scores.broadcast_add(&mask)?;
        }
        ops::softmax_last_dim(&scores)?.matmul(&q)
    }
}

#[cfg(all(feature = "cuda", not(windows)))]
mod flash {
    pub struct Flash {
        layers: Vec<Box<dyn candle_nn::Module>>,
    }
}
// left: line 62: attention of a form that is not certain
