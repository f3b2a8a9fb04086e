//! What observers see of a tensor: its elements as f32, and their ranges.

use candle_core::{DType, Storage, Tensor};

use crate::error::{Error, Result};
use crate::kernels::Range;

/// Least and greatest element of the whole tensor, or of each index of the axis `ch_axis`.
///
/// Empty where the tensor has no elements.
pub(super) fn ranges(tensor: &Tensor, ch_axis: Option<isize>) -> Result<Vec<[f32; 2]>> {
    let tensor = as_f32(tensor)?;
    let channels = match ch_axis {
        None => 1,
        Some(ch_axis) => tensor.dim(axis(ch_axis, tensor.rank())?)?,
    };
    if tensor.elem_count() == 0 {
        return Ok(Vec::new());
    }
    let by_channel = match ch_axis {
        None => tensor.clone(),
        Some(ch_axis) => tensor.transpose(0, axis(ch_axis, tensor.rank())?)?,
    };
    let ranges = with_slice(&by_channel, |values| {
        let channels = values.chunks(values.len() / channels);
        channels.map(Range::of).collect::<Vec<_>>()
    })?;
    match ranges.iter().all(|range| range.finite) {
        true => Ok(ranges.iter().map(|range| [range.min, range.max]).collect()),
        false => Err(non_finite(&tensor)?),
    }
}

/// Calls `f` with the elements of a tensor of finite f32, in row order.
pub(super) fn with_slice<T>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> T) -> Result<T> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let values = match &*storage {
        Storage::Cpu(storage) => storage.as_slice::<f32>()?,
        _ => &[],
    };
    let start = layout.start_offset();
    Ok(f(&values[start..start + layout.shape().elem_count()]))
}

/// A float tensor on the CPU as f32.
pub(super) fn as_f32(tensor: &Tensor) -> Result<Tensor> {
    check_cpu_float(tensor, "observe")?;
    Ok(tensor.to_dtype(DType::F32)?)
}

/// That a tensor is one the observers and the quantized layers can read.
pub(crate) fn check_cpu_float(tensor: &Tensor, op: &'static str) -> Result<()> {
    if !tensor.device().is_cpu() {
        return Err(Error::UnsupportedDevice {
            op,
            got: format!("{:?}", tensor.device().location()),
        });
    }
    match tensor.dtype() {
        DType::F32 | DType::F16 | DType::BF16 | DType::F64 => Ok(()),
        got => Err(Error::UnsupportedDType {
            op,
            expected: "f32, f16, bf16 or f64",
            got,
        }),
    }
}

/// An axis counted from the front.
fn axis(ch_axis: isize, rank: usize) -> Result<usize> {
    let from_front = match ch_axis {
        0.. => Some(ch_axis.unsigned_abs()),
        _ => rank.checked_sub(ch_axis.unsigned_abs()),
    };
    from_front
        .filter(|axis| *axis < rank)
        .ok_or_else(|| Error::InvalidArgument {
            what: "ch_axis",
            expected: format!("an axis of a tensor of rank {rank}"),
            got: ch_axis.to_string(),
        })
}

/// The error that names the first element that is NaN or infinite.
fn non_finite(tensor: &Tensor) -> Result<Error> {
    with_slice(tensor, |values| {
        let found = values.iter().position(|value| !value.is_finite());
        let mut at = found.unwrap_or_default();
        let mut index = vec![0; tensor.rank()];
        for (index, size) in index.iter_mut().zip(tensor.dims()).rev() {
            (*index, at) = (at % size, at / size);
        }
        Error::NonFiniteWeight {
            index,
            value: found.map_or(f32::NAN, |at| values[at]),
        }
    })
}
