//! Which calls the kernels answer.

use candle_core::{DType, Tensor};

use crate::error::Result;
use crate::kernels::{self, Isa};
use crate::tensor::{Elements, as_f32, check_float, from_f32_vec};

/// Whether the kernels here compute this, or candle's own operations.
///
/// # Errors
/// When a tensor has a dtype that is not a float.
pub fn is_ours(op: &'static str, tensors: &[&Tensor]) -> Result<bool> {
    let mut ours = true;
    for tensor in tensors {
        check_float(tensor, op)?;
        let here = tensor.device().is_cpu() && !tensor.track_op();
        ours &= here && tensor.dtype() != DType::F64;
    }
    Ok(ours)
}

/// The result of `kernel` on the elements of tensors as f32, in the shape and the dtype of the first;
/// of `candle` where the kernels do not compute this.
///
/// # Errors
/// As [`is_ours`].
pub fn fused<const N: usize>(
    op: &'static str,
    tensors: [&Tensor; N],
    candle: impl FnOnce() -> candle_core::Result<Tensor>,
    kernel: impl FnOnce(Isa, [&[f32]; N]) -> Vec<f32>,
) -> candle_core::Result<Tensor> {
    let (ours, xs) = (is_ours(op, &tensors)?, tensors[0]);
    if xs.elem_count() == 0 {
        return xs.zeros_like();
    }
    if !ours {
        return candle();
    }
    let f32s = tensors.iter().map(|tensor| as_f32(tensor, op));
    let f32s = f32s.collect::<Result<Vec<_>>>()?;
    let elements: Vec<_> = f32s.iter().map(Elements::new).collect();
    let mut slices = [&[][..]; N];
    for (slice, elements) in slices.iter_mut().zip(&elements) {
        *slice = elements.as_slice()?;
    }
    let ys = kernel(kernels::active()?, slices);
    Ok(from_f32_vec(ys, xs.dims(), xs.dtype())?)
}
