//! Ranges of a tensor's elements, for observers.

use candle_core::Tensor;

use crate::error::{Error, Fault, Result};
use crate::kernels::{self, Extent};
use crate::tensor::{Elements, as_f32};

/// Minimum and maximum of the whole tensor, or of each index of the axis `ch_axis`.
///
/// Empty where the tensor has no elements.
pub(super) fn ranges(tensor: &Tensor, ch_axis: Option<isize>) -> Result<Vec<[f32; 2]>> {
    let tensor = as_f32(tensor, "observe")?;
    let axis = ch_axis.map(|ch_axis| axis(ch_axis, tensor.rank()));
    let axis = axis.transpose()?;
    let channels = axis.map_or(1, |axis| tensor.dims()[axis]);
    if tensor.elem_count() == 0 {
        return Ok(Vec::new());
    }
    let by_channel = match axis {
        None => tensor.clone(),
        Some(axis) => tensor.transpose(0, axis)?.contiguous()?,
    };
    let elements = Elements::new(&by_channel);
    let values = elements.as_slice()?;
    let (isa, k) = (kernels::active()?, values.len() / channels);
    let extents = match ch_axis {
        Some(_) => kernels::extents(isa, k, values),
        None => {
            let parts = kernels::extents(isa, kernels::PART, values).into_iter();
            vec![parts.fold(Extent::EMPTY, Extent::union)]
        }
    };
    if extents.iter().all(|extent| extent.finite) {
        Ok(extents.iter().map(Extent::range).collect())
    } else {
        Err(non_finite(&tensor)?)
    }
}

/// An axis counted from the front.
fn axis(ch_axis: isize, rank: usize) -> Result<usize> {
    let from_front = match ch_axis {
        0.. => Some(ch_axis.unsigned_abs()),
        _ => rank.checked_sub(ch_axis.unsigned_abs()),
    };
    from_front.filter(|axis| *axis < rank).ok_or_else(|| {
        Error::argument("ch_axis", format!("an axis of a tensor of rank {rank}"), ch_axis)
    })
}

/// The error that names the first element that is NaN or infinite.
fn non_finite(tensor: &Tensor) -> Result<Error> {
    let elements = Elements::new(tensor);
    let values = elements.as_slice::<f32>()?;
    let found = values.iter().position(|value| !value.is_finite());
    let mut at = found.unwrap_or_default();
    let mut index = vec![0; tensor.rank()];
    for (index, size) in index.iter_mut().zip(tensor.dims()).rev() {
        (*index, at) = (at % size, at / size);
    }
    Ok(Error::from(Fault::NonFiniteWeight {
        index,
        value: found.map_or(f32::NAN, |at| values[at]),
    }))
}
