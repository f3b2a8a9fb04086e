use candle::{Result, Tensor};
use candle_nn::ops::softmax_last_dim;

// Comments stay above what stands for the code.
pub fn stays(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (_b, _h, _len, size) = q.dims4()?;

    // Attention of all heads.
    let scores = q.matmul(&k.t()?)?; // [b, h, q, k]

    // Scaled.
    let scores = (scores * 0.5)?;
    let scores = softmax_last_dim(&scores)?; // over the keys

    scores.matmul(v)
}

// Comments go where something else stands there.
pub fn goes(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (_b, _h, len, _size) = q.dims4()?;
    // The product.
    let scores = q.matmul(&k.t()?)?; // [b, h, q, k]
    // Half of the queries.
    let half = len / 2;
    // Probabilities.
    let scores = softmax_last_dim(&scores)?;
    // The context.
    let context = scores.matmul(v)?;
    context.narrow(2, 0, half)
}

// A table of a step: a mask, with its comments.
pub fn masked(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let (_b, _h, _len, _size) = q.dims4()?;
    // Attention of all heads.
    let mut scores = q.matmul(&k.t()?)?;
    // The mask is additive.
    if let Some(mask) = mask {
        scores = scores.broadcast_add(mask)?; // [b, 1, 1, k]
    }
    /* Probabilities. */
    let scores = softmax_last_dim(&scores)?;
    scores.matmul(v)
}
