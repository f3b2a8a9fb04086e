//! Which calls the kernels answer.

use candle_core::{DType, Tensor};

use crate::error::Result;
use crate::tensor::check_float;

/// Whether the kernels here compute this, or candle's own operations.
///
/// # Errors
/// When a tensor has a dtype that is no float.
pub fn is_ours(op: &'static str, tensors: &[&Tensor]) -> Result<bool> {
    let mut ours = true;
    for tensor in tensors {
        check_float(tensor, op)?;
        let here = tensor.device().is_cpu() && !tensor.track_op();
        ours &= here && tensor.dtype() != DType::F64;
    }
    Ok(ours)
}
