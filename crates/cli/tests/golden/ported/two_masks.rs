use candle::{Result, Tensor};
use candle_dynquant::ops;
use candle_dynquant::ops::softmax_last_dim;

// Two masks, one after the other.
pub fn both(q: &Tensor, k: &Tensor, v: &Tensor, bias: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let (_b, _h, _len, size) = q.dims4()?;
    ops::scaled_dot_product_attention(
        q,
        k,
        v,
        &bias.broadcast_add(mask)?,
        1. / (size as f64).sqrt(),
    )
}

pub struct Window {
    bias: Tensor,
    scale: f64,
}

impl Window {
    // The second is optional, by a statement.
    pub fn forward(&self, q: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (_b, _h, _len, _size) = q.dims4()?;
        ops::scaled_dot_product_attention(
            q,
            q,
            v,
            &match mask {
                Some(mask) => self.bias.broadcast_add(mask)?,
                None => self.bias.clone(),
            },
            self.scale,
        )
    }

    // By an expression.
    pub fn matched(&self, q: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (_b, _h, _len, _size) = q.dims4()?;
        ops::scaled_dot_product_attention(
            q,
            q,
            v,
            &match mask {
                Some(mask) => self.bias.broadcast_add(mask)?,
                None => self.bias.clone(),
            },
            self.scale,
        )
    }

    // The first is optional.
    pub fn turned(&self, q: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (_b, _h, _len, _size) = q.dims4()?;
        ops::scaled_dot_product_attention(
            q,
            q,
            v,
            &match mask {
                Some(mask) => self.bias.broadcast_add(mask)?,
                None => self.bias.clone(),
            },
            self.scale,
        )
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
// left: line 60: attention of a form that is not certain
