//! Layer norm and softmax of rows.

use candle_core::{D, DType, Result, Tensor};

use super::is_ours;
use crate::kernels::{self, Isa, Norm};
use crate::tensor::{Elements, as_f32, from_f32_vec, mismatch};

/// `(x - mean) / sqrt(variance + eps) * weight + bias` over the last dimension: PyTorch's
/// `layer_norm`.
///
/// # Shapes
/// - `xs`: `[.., hidden]` of rank 1 or more
/// - `weight`, `bias`: `[hidden]`
/// - result: that of `xs`
///
/// Mean and variance are taken in f32, the variance from differences to the mean. Within
/// `3e-6 (1 + |mean|)` of the exact result where weights, biases and deviations are of order 1.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_dynquant::ops;
///
/// let xs = Tensor::new(&[[1f32, 3.], [2., 6.]], &Device::Cpu)?;
/// let (weight, bias) = (xs.ones_like()?.get(0)?, xs.zeros_like()?.get(0)?);
/// let ys = ops::layer_norm(&xs, &weight, Some(&bias), 0.)?;
/// assert_eq!(ys.to_vec2::<f32>()?, [[-1., 1.], [-1., 1.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// When a shape is another, or a dtype is no float.
pub fn layer_norm(xs: &Tensor, weight: &Tensor, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    normalize("layer_norm", xs, None, weight, bias, eps)
}

/// [`layer_norm`] of `xs + residual`, without the sum in memory: a transformer's "add and norm".
///
/// # Shapes
/// As [`layer_norm`]; `residual` has the shape of `xs`.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_dynquant::ops;
///
/// let xs = Tensor::new(&[[1f32, 2.], [2., 4.]], &Device::Cpu)?;
/// let residual = Tensor::new(&[[0f32, 1.], [0., 2.]], &Device::Cpu)?;
/// let weight = Tensor::ones(2, DType::F32, &Device::Cpu)?;
/// let ys = ops::add_layer_norm(&xs, &residual, &weight, None, 0.)?;
/// assert_eq!(ys.to_vec2::<f32>()?, [[-1., 1.], [-1., 1.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`layer_norm`].
pub fn add_layer_norm(
    xs: &Tensor,
    residual: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    normalize("add_layer_norm", xs, Some(residual), weight, bias, eps)
}

fn normalize(
    op: &'static str,
    xs: &Tensor,
    residual: Option<&Tensor>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let Some(&hidden) = xs.dims().last() else {
        return Err(mismatch(op, "[.., hidden]", xs).into());
    };
    for parameter in [Some(weight), bias].into_iter().flatten() {
        if parameter.dims() != [hidden] {
            return Err(mismatch(op, format!("[{hidden}]"), parameter).into());
        }
    }
    if let Some(residual) = residual.filter(|residual| residual.dims() != xs.dims()) {
        return Err(mismatch(op, format!("{:?}", xs.dims()), residual).into());
    }
    let optional = [residual, bias];
    let tensors: Vec<_> = [xs, weight]
        .into_iter()
        .chain(optional.into_iter().flatten())
        .collect();
    let ours = is_ours(op, &tensors)?;
    if xs.elem_count() == 0 {
        return xs.zeros_like();
    }
    if !ours {
        return composite(xs, residual, weight, bias, eps);
    }
    let isa = Isa::active()?;
    let (input, weight) = (as_f32(xs, op)?, as_f32(weight, op)?);
    let [residual, bias] =
        [residual, bias].map(|tensor| tensor.map(|tensor| as_f32(tensor, op)).transpose());
    let (residual, bias) = (residual?, bias?);
    let (input, weight) = (Elements::of(&input), Elements::of(&weight));
    let residual = residual.as_ref().map(Elements::of);
    let bias = bias.as_ref().map(Elements::of);
    let norm = Norm {
        weight: weight.as_slice()?,
        bias: bias.as_ref().map(Elements::as_slice).transpose()?,
        eps: eps as f32,
    };
    let residual = residual.as_ref().map(Elements::as_slice).transpose()?;
    let ys = kernels::layer_norm(isa, input.as_slice()?, residual, norm);
    Ok(from_f32_vec(ys, xs.dims(), xs.dtype())?)
}

/// The same by candle's own operations; half precision in f32.
fn composite(
    xs: &Tensor,
    residual: Option<&Tensor>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let dtype = match xs.dtype() {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let mut sum = xs.to_dtype(dtype)?;
    if let Some(residual) = residual {
        sum = (sum + residual.to_dtype(dtype)?)?;
    }
    let centered = sum.broadcast_sub(&sum.mean_keepdim(D::Minus1)?)?;
    let variance = centered.sqr()?.mean_keepdim(D::Minus1)?;
    let normal = centered.broadcast_div(&(variance + eps)?.sqrt()?)?;
    let mut ys = normal.broadcast_mul(&weight.to_dtype(dtype)?)?;
    if let Some(bias) = bias {
        ys = ys.broadcast_add(&bias.to_dtype(dtype)?)?;
    }
    ys.to_dtype(xs.dtype())
}

/// `e^x / sum(e^x)` over the last dimension: PyTorch's `softmax(xs, -1)`.
///
/// # Shapes
/// `xs` is `[.., n]` of rank 1 or more; the result has its shape.
///
/// Within a relative error of `4e-7 + 2^-24 (max - x)`, with the row's maximum, or 1e-37, for rows
/// of up to 5,000. A row of nothing but minus infinity is NaN, as in PyTorch, and so is one that
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
/// When `xs` has rank 0, or a dtype that is no float.
pub fn softmax_last_dim(xs: &Tensor) -> Result<Tensor> {
    let op = "softmax_last_dim";
    let Some(&columns) = xs.dims().last() else {
        return Err(mismatch(op, "[.., n]", xs).into());
    };
    let ours = is_ours(op, &[xs])?;
    if xs.elem_count() == 0 {
        return xs.zeros_like();
    }
    if !ours {
        return candle_nn::ops::softmax(xs, D::Minus1);
    }
    let isa = Isa::active()?;
    let input = as_f32(xs, op)?;
    let ys = kernels::softmax(isa, Elements::of(&input).as_slice()?, columns);
    Ok(from_f32_vec(ys, xs.dims(), xs.dtype())?)
}
