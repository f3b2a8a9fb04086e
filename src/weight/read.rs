//! Quantized weights, and norms that multiply their residual, from a `VarBuilder`.

use candle_core::{DType, Tensor};
use candle_nn::VarBuilder;

use super::format::{EQUALIZED, FORMAT, Format, RESIDUAL};
use super::origin::{self, Handed, Origin, Parts};
use crate::error::Result;
use crate::tensor::check_float_dtype;

/// A quantized weight that a checkpoint has.
pub(crate) struct Found {
    handed: Handed,
    pub format: Format,
    /// The name that it was asked for by.
    path: String,
    /// Biases are read in it, and rows of tables dequantized to it.
    dtype: DType,
}

/// The quantized weight `name`, if `vb` belongs to a checkpoint which has it and is on the CPU.
pub(crate) fn find(vb: &VarBuilder<'_>, name: &str) -> Option<Found> {
    let description = format!("{name}{FORMAT}");
    if !vb.device().is_cpu() || !vb.contains_tensor(&description) {
        return None;
    }
    // A backend that claims to have every tensor, as candle's of zeros does, is no checkpoint.
    let answer = vb.get_unchecked_dtype(&description, DType::U8).ok()?;
    let handed = origin::handed_as(&answer)?;
    Some(Found {
        format: handed.format()?,
        handed,
        path: vb.pp(name).prefix(),
        dtype: vb.dtype(),
    })
}

impl Found {
    /// The weight of `shape`, as `make` makes it of its parts.
    ///
    /// # Errors
    /// When the checkpoint has it in another shape, or as `make`.
    pub fn read<T>(&self, shape: [usize; 2], make: impl FnOnce(Parts) -> Result<T>) -> Result<T> {
        let read = || {
            check_float_dtype(self.dtype, "load")?;
            make(self.origin(shape).whole()?)
        };
        read().map_err(|e| e.at(&self.path))
    }

    /// Where the weight is in the checkpoint, whatever name it was asked for by.
    pub fn origin(&self, shape: [usize; 2]) -> Origin {
        self.handed.clone().whole(shape)
    }
}

/// Where a norm's parameters are, and the factors of its residual, `[hidden]`; `None` if it has
/// none.
pub(crate) fn equalized<'a>(vb: &VarBuilder<'a>) -> Option<(VarBuilder<'a>, Tensor)> {
    let own = vb.pp(EQUALIZED);
    if !own.contains_tensor(RESIDUAL) {
        return None;
    }
    // As in `find`. If they are there but cannot be read, the caller misses `weight`.
    let factors = own.get_unchecked_dtype(RESIDUAL, DType::F32).ok()?;
    Some((own, factors))
}
