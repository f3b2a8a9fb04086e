//! Layer norm and RMS norm of rows.

use candle_core::{D, DType, Module, Result, Tensor};
use candle_nn::{LayerNorm, RmsNorm};

use super::ours::is_ours;
use crate::error;
use crate::kernels::{self, Isa};
use crate::tensor::{Elements, as_f32, from_f32_vec, mismatch};

/// `(x - mean) / sqrt(variance + eps) * weight + bias` over the last dimension: PyTorch's
/// `layer_norm`.
///
/// # Shapes
/// - `xs`: `[.., hidden]` of rank 1 or more
/// - `weight`, `bias`: `[hidden]`; `bias` is a tensor or an option of one
/// - result: the shape of `xs`
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
/// let ys = ops::layer_norm(&xs, &weight, &bias, 0.)?;
/// assert_eq!(ys.to_vec2::<f32>()?, [[-1., 1.], [-1., 1.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// When a shape does not fit, or a dtype is not a float.
pub fn layer_norm<'a>(
    xs: &Tensor,
    weight: &'a Tensor,
    bias: impl Into<Option<&'a Tensor>>,
    eps: impl Into<f64>,
) -> Result<Tensor> {
    let norm = NormOp::layer("layer_norm", weight, bias.into(), eps.into());
    Ok(norm.apply(xs, None)?)
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
pub fn add_layer_norm<'a>(
    xs: &Tensor,
    residual: &Tensor,
    weight: &'a Tensor,
    bias: impl Into<Option<&'a Tensor>>,
    eps: impl Into<f64>,
) -> Result<Tensor> {
    let norm = NormOp::layer("add_layer_norm", weight, bias.into(), eps.into());
    Ok(norm.apply(xs, Some(residual))?)
}

/// `x / sqrt(mean of x^2 + eps) * weight` over the last dimension: PyTorch's `rms_norm`.
///
/// # Shapes
/// - `xs`: `[.., hidden]` of rank 1 or more
/// - `weight`: `[hidden]`
/// - result: the shape of `xs`
///
/// The mean is taken in f32. Within `3e-6` of the exact result where weights are of order 1.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_dynquant::ops;
///
/// let xs = Tensor::new(&[[2f32, -2.], [3., 3.]], &Device::Cpu)?;
/// let ys = ops::rms_norm(&xs, &Tensor::ones(2, DType::F32, &Device::Cpu)?, 0.)?;
/// assert_eq!(ys.to_vec2::<f32>()?, [[1., -1.], [1., 1.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`layer_norm`].
pub fn rms_norm(xs: &Tensor, weight: &Tensor, eps: impl Into<f64>) -> Result<Tensor> {
    Ok(NormOp::rms("rms_norm", weight, eps.into()).apply(xs, None)?)
}

/// [`rms_norm`] of `xs + residual`, and the sum, to which a decoder adds again: one pass where both
/// are f32.
///
/// # Shapes
/// As [`rms_norm`]; `residual` and the sum have the shape of `xs`.
///
/// Both results equal an addition followed by [`rms_norm`], bit for bit.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_dynquant::ops;
///
/// let xs = Tensor::new(&[[1f32, -1.], [1., 2.]], &Device::Cpu)?;
/// let residual = Tensor::new(&[[1f32, -1.], [2., 1.]], &Device::Cpu)?;
/// let weight = Tensor::ones(2, DType::F32, &Device::Cpu)?;
/// let (ys, sum) = ops::add_rms_norm(&xs, &residual, &weight, 0.)?;
/// assert_eq!(ys.to_vec2::<f32>()?, [[1., -1.], [1., 1.]]);
/// assert_eq!(sum.to_vec2::<f32>()?, [[2., -2.], [3., 3.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`layer_norm`].
pub fn add_rms_norm(
    xs: &Tensor,
    residual: &Tensor,
    weight: &Tensor,
    eps: impl Into<f64>,
) -> Result<(Tensor, Tensor)> {
    let norm = NormOp::rms("add_rms_norm", weight, eps.into());
    Ok(norm.of_sum(xs, residual)?)
}

/// A norm over the last dimension.
#[derive(Clone, Copy)]
pub(crate) struct NormOp<'a> {
    pub op: &'static str,
    pub weight: &'a Tensor,
    pub bias: Option<&'a Tensor>,
    /// The factors of a residual; `None` adds it as it is.
    pub residual_weight: Option<&'a Tensor>,
    pub eps: f64,
    /// Whether the mean is subtracted.
    pub centered: bool,
}

impl<'a> NormOp<'a> {
    fn layer(op: &'static str, weight: &'a Tensor, bias: Option<&'a Tensor>, eps: f64) -> Self {
        Self { op, weight, bias, residual_weight: None, eps, centered: true }
    }

    fn rms(op: &'static str, weight: &'a Tensor, eps: f64) -> Self {
        Self { centered: false, ..Self::layer(op, weight, None, eps) }
    }

    /// The norm of `xs`, or of its sum with `residual`.
    pub fn apply(self, xs: &Tensor, residual: Option<&Tensor>) -> error::Result<Tensor> {
        let operands = self.operands(xs, residual)?;
        let ours = is_ours(self.op, &operands)?;
        if xs.elem_count() == 0 {
            return Ok(xs.zeros_like()?);
        }
        if ours {
            let [ys] = self.fused(xs, residual, |isa, xs, residual, norm| {
                [kernels::layer_norm(isa, xs, residual, norm)]
            })?;
            return from_f32_vec(ys, xs.dims(), xs.dtype());
        }
        let fast = !xs.device().is_cpu() && !operands.iter().any(|tensor| tensor.track_op());
        Ok(if fast { self.candle(xs, residual)? } else { self.composite(xs, residual)? })
    }

    /// The norm of the sum of `xs` and `residual`, and the sum.
    pub fn of_sum(self, xs: &Tensor, residual: &Tensor) -> error::Result<(Tensor, Tensor)> {
        let ours = is_ours(self.op, &self.operands(xs, Some(residual))?)?;
        if xs.elem_count() == 0 {
            return Ok((xs.zeros_like()?, xs.zeros_like()?));
        }
        if ours && [xs, residual].iter().all(|xs| xs.dtype() == DType::F32) {
            let [ys, sum] = self.fused(xs, Some(residual), |isa, xs, residual, norm| {
                kernels::layer_norm_and_sum(isa, xs, residual.unwrap_or_default(), norm)
            })?;
            let tensor = |values| from_f32_vec(values, xs.dims(), DType::F32);
            return Ok((tensor(ys)?, tensor(sum)?));
        }
        // The sum in the dtype of `xs`: halves are rounded before they are normalized. They are
        // added in f32, since candle's sum of two f16 has other bits on AArch64.
        let residual = self.weighted(residual, xs.dtype())?;
        let sum = match xs.dtype() {
            half @ (DType::F16 | DType::BF16) => {
                (xs.to_dtype(DType::F32)? + residual.to_dtype(DType::F32)?)?.to_dtype(half)?
            }
            _ => (xs + residual)?,
        };
        Ok((self.apply(&sum, None)?, sum))
    }

    /// The operands of a call, whose shapes fit.
    fn operands(
        self,
        xs: &'a Tensor,
        residual: Option<&'a Tensor>,
    ) -> error::Result<Vec<&'a Tensor>> {
        let Some(&hidden) = xs.dims().last() else {
            return Err(mismatch(self.op, "[.., hidden]", xs));
        };
        let parameters = [Some(self.weight), self.bias, self.residual_weight];
        for parameter in parameters.into_iter().flatten() {
            if parameter.dims() != [hidden] {
                return Err(mismatch(self.op, format!("[{hidden}]"), parameter));
            }
        }
        if let Some(residual) = residual.filter(|residual| residual.dims() != xs.dims()) {
            return Err(mismatch(self.op, format!("{:?}", xs.dims()), residual));
        }
        let optional = [residual, self.bias, self.residual_weight];
        let optional = optional.into_iter().flatten();
        Ok([xs, self.weight].into_iter().chain(optional).collect())
    }

    /// The result of a kernel on the operands, all f32.
    fn fused<R>(
        self,
        xs: &Tensor,
        residual: Option<&Tensor>,
        run: impl FnOnce(Isa, &[f32], Option<&[f32]>, kernels::Norm<'_>) -> R,
    ) -> error::Result<R> {
        let op = self.op;
        let isa = kernels::active()?;
        let (input, weight) = (as_f32(xs, op)?, as_f32(self.weight, op)?);
        let [residual, bias, residual_weight] = [residual, self.bias, self.residual_weight]
            .map(|tensor| tensor.map(|tensor| as_f32(tensor, op)).transpose());
        let (residual, bias, residual_weight) = (residual?, bias?, residual_weight?);
        let (input, weight) = (Elements::new(&input), Elements::new(&weight));
        let residual = residual.as_ref().map(Elements::new);
        let bias = bias.as_ref().map(Elements::new);
        let residual_weight = residual_weight.as_ref().map(Elements::new);
        let norm = kernels::Norm {
            weight: weight.as_slice()?,
            bias: bias.as_ref().map(Elements::as_slice).transpose()?,
            residual_weight: (residual_weight.as_ref()).map(Elements::as_slice).transpose()?,
            eps: self.eps as f32,
            centered: self.centered,
        };
        let residual = residual.as_ref().map(Elements::as_slice).transpose()?;
        Ok(run(isa, input.as_slice()?, residual, norm))
    }

    /// Normalizes by candle's layer, which other devices than the CPU have a kernel for, without
    /// gradients.
    fn candle(self, xs: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let sum = match residual {
            None => xs.clone(),
            Some(residual) => (xs + self.weighted(residual, xs.dtype())?)?,
        };
        let weight = self.weight.clone();
        match (self.centered, self.bias) {
            (true, Some(bias)) => LayerNorm::new(weight, bias.clone(), self.eps).forward(&sum),
            (true, None) => LayerNorm::new_no_bias(weight, self.eps).forward(&sum),
            (false, None) => RmsNorm::new(weight, self.eps).forward(&sum),
            (false, Some(_)) => self.composite(&sum, None),
        }
    }

    /// A residual with its factors.
    fn weighted(self, residual: &Tensor, dtype: DType) -> Result<Tensor> {
        let residual = residual.to_dtype(dtype)?;
        match self.residual_weight {
            None => Ok(residual),
            Some(weight) => residual.broadcast_mul(&weight.to_dtype(dtype)?),
        }
    }

    /// Normalizes by candle's operations, with gradients; half precision in f32.
    fn composite(self, xs: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let dtype = match xs.dtype() {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let mut sum = xs.to_dtype(dtype)?;
        if let Some(residual) = residual {
            sum = (sum + self.weighted(residual, dtype)?)?;
        }
        if self.centered {
            sum = sum.broadcast_sub(&sum.mean_keepdim(D::Minus1)?)?;
        }
        let variance = sum.sqr()?.mean_keepdim(D::Minus1)?;
        let normal = sum.broadcast_div(&(variance + self.eps)?.sqrt()?)?;
        let mut ys = normal.broadcast_mul(&self.weight.to_dtype(dtype)?)?;
        if let Some(bias) = self.bias {
            ys = ys.broadcast_add(&bias.to_dtype(dtype)?)?;
        }
        ys.to_dtype(xs.dtype())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// Normalizes as on other devices than the CPU, which no test has.
    #[test]
    fn candles_layer_gets_the_sum() -> Result<()> {
        let xs = Tensor::new(&[[1f32, 2., 4.]], &Device::Cpu)?;
        let residual = Tensor::new(&[[3f32, 1., 2.]], &Device::Cpu)?;
        let weight = Tensor::ones(3, DType::F32, &Device::Cpu)?;
        let norm = NormOp::layer("add_layer_norm", &weight, None, 1e-5);
        let got = norm.candle(&xs, Some(&residual))?;
        let expected = norm.candle(&(xs + residual)?, None)?;
        assert_eq!(got.to_vec2::<f32>()?, expected.to_vec2::<f32>()?);
        Ok(())
    }
}
