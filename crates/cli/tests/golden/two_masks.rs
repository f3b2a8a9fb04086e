use candle::{Result, Tensor, D};
use candle_nn::ops::softmax_last_dim;

// Two masks, one after the other.
pub fn both(q: &Tensor, k: &Tensor, v: &Tensor, bias: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let (_b, _h, _len, size) = q.dims4()?;
    let scores = (q.matmul(&k.t()?)? / (size as f64).sqrt())?;
    let scores = scores.broadcast_add(bias)?;
    let scores = scores.broadcast_add(mask)?;
    softmax_last_dim(&scores)?.matmul(v)
}

pub struct Window {
    bias: Tensor,
    scale: f64,
}

impl Window {
    // The second is optional, by a statement.
    pub fn forward(&self, q: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (_b, _h, _len, _size) = q.dims4()?;
        let scores = (q.matmul(&q.transpose(D::Minus2, D::Minus1)?)? * self.scale)?;
        let mut scores = scores.broadcast_add(&self.bias)?;
        if let Some(mask) = mask {
            scores = scores.broadcast_add(mask)?;
        }
        let weights = softmax_last_dim(&scores)?;
        weights.matmul(v)
    }

    // By an expression.
    pub fn matched(&self, q: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (_b, _h, _len, _size) = q.dims4()?;
        let scores = (q.matmul(&q.t()?)? * self.scale)?;
        let scores = scores.broadcast_add(&self.bias)?;
        let scores = match mask {
            Some(mask) => scores.broadcast_add(mask)?,
            None => scores,
        };
        softmax_last_dim(&scores)?.matmul(v)
    }

    // The first is optional.
    pub fn turned(&self, q: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (_b, _h, _len, _size) = q.dims4()?;
        let mut scores = (q.matmul(&q.t()?)? * self.scale)?;
        if let Some(mask) = mask {
            scores = scores.broadcast_add(mask)?;
        }
        let scores = (scores + &self.bias)?;
        softmax_last_dim(&scores)?.matmul(v)
    }

    // A cast mask may be of another dtype than the other one.
    pub fn cast(&self, q: &Tensor, v: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (_b, _h, _len, _size) = q.dims4()?;
        let scores = (q.matmul(&q.t()?)? * self.scale)?;
        let scores = scores.broadcast_add(&self.bias)?;
        let scores = scores.broadcast_add(&mask.to_dtype(scores.dtype())?)?;
        softmax_last_dim(&scores)?.matmul(v)
    }
}
