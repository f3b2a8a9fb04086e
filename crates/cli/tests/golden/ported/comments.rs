use candle::{Result, Tensor};
use candle_dynquant::ops;

// Comments stay above what stands for the code.
pub fn stays(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (_b, _h, _len, size) = q.dims4()?;

    // Attention of all heads.
    ops::scaled_dot_product_attention(q, k, v, None, 0.5)
}

// Comments go where something else stands there.
pub fn goes(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (_b, _h, len, _size) = q.dims4()?;
    // Half of the queries.
    let half = len / 2;
    // The context.
    let context = ops::scaled_dot_product_attention(q, k, v, None, 1.)?;
    context.narrow(2, 0, half)
}

// A table of a step: a mask, with its comments.
pub fn masked(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let (_b, _h, _len, _size) = q.dims4()?;
    // Attention of all heads.
    ops::scaled_dot_product_attention(q, k, v, mask, 1.)
}
