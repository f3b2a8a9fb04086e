//! Code for a GPU is not listed; a mask of its own in a block of it is none outside of that.
use candle::{Device, Module, Result, Tensor};
use candle_nn::Linear;

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
            let scores = q.matmul(&k.t()?)?;
            let mut scores = (scores * self.scale)?;
            if let Some(mask) = mask {
                scores = scores.add(mask)?;
            }
            let probs = candle_nn::ops::softmax_last_dim(&scores)?;
            probs.matmul(&v.contiguous()?)
        }
    }
}

#[cfg(all(feature = "cuda", not(windows)))]
mod flash {
    pub struct Flash {
        layers: Vec<Box<dyn candle_nn::Module>>,
    }
}
