//! Quantized weights, and norms that multiply their residual, from a `VarBuilder`.

use candle_core::{DType, Tensor};
use candle_nn::VarBuilder;

use super::format::{EQUALIZED, FORMAT, Format, RESIDUAL};
use super::origin::{self, Origin, Parts};
use crate::error::Result;
use crate::tensor::check_float_dtype;

/// A quantized weight that a checkpoint has.
pub(crate) struct QuantizedEntry {
    loaded: Origin,
    pub format: Format,
    /// The name that it was asked for by.
    path: String,
    /// The dtype in which biases are read, and to which rows of tables are dequantized.
    dtype: DType,
}

/// The quantized weight `name`, if `vb` belongs to a checkpoint which has it and is on the CPU.
pub(crate) fn find(vb: &VarBuilder<'_>, name: &str) -> Option<QuantizedEntry> {
    let description = format!("{name}{FORMAT}");
    if !vb.device().is_cpu() || !vb.contains_tensor(&description) {
        return None;
    }
    // A backend may claim to have every tensor, as candle's backend of zeros does.
    let loaded = origin::loaded_whole(&vb.get_unchecked_dtype(&description, DType::U8).ok()?)?;
    Some(QuantizedEntry {
        format: loaded.format()?,
        loaded,
        path: vb.pp(name).prefix(),
        dtype: vb.dtype(),
    })
}

impl QuantizedEntry {
    /// The weight of `shape`, as `make` makes it of its parts.
    ///
    /// # Errors
    /// When the checkpoint has it in another shape, or as `make`.
    pub fn read<T>(&self, shape: &[usize], make: impl FnOnce(Parts) -> Result<T>) -> Result<T> {
        let read = || {
            check_float_dtype(self.dtype, "load")?;
            make(self.origin(shape).whole()?)
        };
        read().map_err(|e| e.at(&self.path))
    }

    /// The place of the weight in the checkpoint, whatever name it was asked for by.
    pub fn origin(&self, shape: &[usize]) -> Origin {
        self.loaded.clone().of_shape(shape)
    }
}

/// The path of a norm's parameters, and the factors of its residual, `[hidden]`; `None` if it has
/// none.
pub(crate) fn equalized<'a>(vb: &VarBuilder<'a>) -> Option<(VarBuilder<'a>, Tensor)> {
    let parameters = vb.pp(EQUALIZED);
    if !parameters.contains_tensor(RESIDUAL) {
        return None;
    }
    // As in `find`. If they are there but cannot be read, the caller misses `weight`.
    let factors = parameters.get_unchecked_dtype(RESIDUAL, DType::F32).ok()?;
    Some((parameters, factors))
}
