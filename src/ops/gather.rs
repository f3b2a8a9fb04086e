//! Elements by index.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use candle_core::shape::Dim;
use candle_core::{DType, IntDType, Layout, Result, Tensor};

use crate::error;
use crate::kernels;
use crate::sizes;
use crate::tensor::{Elements, readable};

/// The elements of `xs` at `indexes` along a dimension: PyTorch's and candle's `gather`.
///
/// # Shapes
/// `xs` and `indexes`, of u8, u32 or i64, have the same rank, and no dimension of `indexes` but
/// `dim` is longer than in `xs`; the result has the shape of `indexes`.
///
/// Both may be views: indexes that `expand` repeats are read where they are. Tensors of f32 on the
/// CPU are gathered by all threads if `dim` is the last dimension and the others agree; candle's
/// own operation gathers the rest.
///
/// ```
/// use candle_core::{D, Device, Tensor};
/// use candle_dynquant::ops;
///
/// let xs = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], &Device::Cpu)?;
/// let indexes = Tensor::new(&[[2u32, 0]], &Device::Cpu)?.expand((2, 2))?;
/// assert_eq!(ops::gather(&xs, &indexes, D::Minus1)?.to_vec2::<f32>()?, [[3., 1.], [6., 4.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// When the shapes do not agree, or an index is out of range.
pub fn gather(xs: &Tensor, indexes: &Tensor, dim: impl Dim) -> Result<Tensor> {
    let dim = dim.to_index(xs.shape(), "gather")?;
    if is_empty(xs, indexes, dim) {
        return Tensor::zeros(indexes.shape(), xs.dtype(), xs.device());
    }
    sizes::allocated("gather", indexes.dims())?;
    let ys = if is_ours(xs, indexes, dim) { of_rows(xs, indexes)? } else { None };
    match ys {
        Some(ys) => Ok(ys),
        // It names the fault, too.
        None => readable(xs)?.contiguous()?.gather(&readable(indexes)?.contiguous()?, dim),
    }
}

/// Whether the result is empty and the operands are valid; candle's operation would go over the
/// rows all the same.
fn is_empty(xs: &Tensor, indexes: &Tensor, dim: usize) -> bool {
    let mut dims = xs.dims().iter().zip(indexes.dims()).enumerate();
    let fits = xs.rank() == indexes.rank()
        && dims.all(|(d, (of_xs, of_indexes))| d == dim || of_indexes <= of_xs);
    let is_index = matches!(indexes.dtype(), DType::U8 | DType::U32 | DType::I64);
    indexes.elem_count() == 0 && fits && is_index
}

fn is_ours(xs: &Tensor, indexes: &Tensor, dim: usize) -> bool {
    let on_cpu = xs.device().is_cpu() && indexes.device().is_cpu();
    let same_rows = dim + 1 == xs.rank()
        && indexes.rank() == xs.rank()
        && indexes.dims()[..dim] == xs.dims()[..dim];
    let is_empty = xs.elem_count() == 0 || indexes.elem_count() == 0;
    on_cpu && same_rows && !is_empty && xs.dtype() == DType::F32 && !xs.track_op()
}

/// `None` where candle's operation names the fault.
fn of_rows(xs: &Tensor, indexes: &Tensor) -> error::Result<Option<Tensor>> {
    let xs = xs.contiguous()?;
    let indexes = match indexes.stride() {
        [.., 1] => indexes.clone(),
        _ => indexes.contiguous()?,
    };
    let ys = match indexes.dtype() {
        DType::U8 => look_up::<u8>(&xs, &indexes)?,
        DType::U32 => look_up::<u32>(&xs, &indexes)?,
        DType::I64 => look_up::<i64>(&xs, &indexes)?,
        _ => None,
    };
    let tensor = |ys| Tensor::from_vec(ys, indexes.shape(), xs.device());
    Ok(ys.map(tensor).transpose()?)
}

/// Elements of the rows of contiguous `xs` at the rows of `indexes`, whose elements lie side by
/// side; `None` if there is an index that is too large.
fn look_up<I: IntDType>(xs: &Tensor, indexes: &Tensor) -> error::Result<Option<Vec<f32>>> {
    let (Some(&columns), Some(&count)) = (xs.dims().last(), indexes.dims().last()) else {
        return Ok(None);
    };
    let (xs, indexes) = (Elements::new(xs), Elements::new(indexes));
    let (source, places) = (xs.as_slice::<f32>()?, indexes.strided::<I>()?);
    let mut ys = vec![0.; indexes.layout().shape().elem_count()];
    let valid = AtomicBool::new(true);
    kernels::for_each_row(&mut ys, count, |row, ys| {
        let source = &source[row * columns..][..columns];
        let places = &places[start(indexes.layout(), row)..][..count];
        let mut all = true;
        for (y, place) in ys.iter_mut().zip(places) {
            match source.get(place.as_usize()) {
                Some(x) => *y = *x,
                None => all = false,
            }
        }
        if !all {
            valid.store(false, Relaxed);
        }
    });
    Ok(valid.into_inner().then_some(ys))
}

/// The distance of a row of a view from its first row.
fn start(layout: &Layout, row: usize) -> usize {
    let axes = layout.dims().iter().zip(layout.stride()).rev().skip(1);
    let step = |(start, row): (usize, usize), (dim, stride): (&usize, &usize)| {
        (start + row % dim * stride, row / dim)
    };
    axes.fold((0, row), step).0
}
