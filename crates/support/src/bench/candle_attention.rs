//! Attention by candle's operations, one after the other.

use candle_core::{Result, Tensor};

/// The attention of tensors `[batch, heads, seq, head_dim]`, with a mask to add to the scores.
pub fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    scale: f32,
) -> Result<Tensor> {
    let (q, k, v) = (q.contiguous()?, k.contiguous()?, v.contiguous()?);
    let mut scores = (q * f64::from(scale))?.matmul(&k.t()?)?;
    if let Some(mask) = mask {
        scores = scores.broadcast_add(mask)?;
    }
    candle_nn::ops::softmax_last_dim(&scores)?.matmul(&v)
}
