//! Softmax.

use candle_core::shape::Dim;
use candle_core::{D, Result, Tensor};

use super::ours::{fused, is_ours};
use crate::kernels;
use crate::tensor::mismatch;
use crate::trace;

/// `e^x / sum(e^x)` over a dimension: PyTorch's and candle's `softmax`.
///
/// Over the last dimension it is [`softmax_last_dim`], over any other candle's own.
///
/// ```
/// use candle_core::{D, Device, Tensor};
/// use candle_dynquant::ops;
///
/// let xs = Tensor::new(&[[1f32, 1.], [1., 1.]], &Device::Cpu)?;
/// assert_eq!(ops::softmax(&xs, D::Minus1)?.to_vec2::<f32>()?, [[0.5, 0.5], [0.5, 0.5]]);
/// assert_eq!(ops::softmax(&xs, 0)?.to_vec2::<f32>()?, [[0.5, 0.5], [0.5, 0.5]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// When the dimension does not exist, or a dtype is not a float.
pub fn softmax(xs: &Tensor, dim: impl Dim) -> Result<Tensor> {
    let dim = dim.to_index(xs.shape(), "softmax")?;
    is_ours("softmax", &[xs])?;
    match xs.elem_count() {
        0 => xs.zeros_like(),
        _ if dim + 1 == xs.rank() => softmax_last_dim(xs),
        _ => candle_nn::ops::softmax(xs, dim),
    }
}

/// `e^x / sum(e^x)` over the last dimension: PyTorch's `softmax(xs, -1)`.
///
/// # Shapes
/// `xs` is `[.., n]` of rank 1 or more; the result has its shape.
///
/// Within a relative error of `4e-7 + 2^-24 (max - x)`, with the row's maximum, or 1e-37, for rows
/// of up to 5,000. A row of minus infinity only is NaN, as in PyTorch, and so is one that
/// holds a NaN or plus infinity.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::ops;
///
/// let xs = Tensor::new(&[[1f32, 1.], [0., f32::NEG_INFINITY]], &Device::Cpu)?;
/// let ys = ops::softmax_last_dim(&xs)?;
/// assert_eq!(ys.to_vec2::<f32>()?, [[0.5, 0.5], [1., 0.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// When `xs` has rank 0, or a dtype that is not a float.
pub fn softmax_last_dim(xs: &Tensor) -> Result<Tensor> {
    trace::forward!("softmax");
    let op = "softmax_last_dim";
    let Some(&columns) = xs.dims().last() else {
        return Err(mismatch(op, "[.., n]", xs).into());
    };
    let candle = || {
        if xs.track_op() {
            candle_nn::ops::softmax(xs, D::Minus1)
        } else {
            candle_nn::ops::softmax_last_dim(&xs.contiguous()?)
        }
    };
    fused(op, [xs], candle, |isa, [xs]| kernels::softmax(isa, xs, columns))
}
