//! Pooling and upsampling of images.

use candle_core::{Result, Tensor, ToUsize2};

use super::ours::is_ours;
use crate::kernels;
use crate::tensor::{Elements, as_f32, from_f32_vec, mismatch};
use crate::trace;

/// The greatest element of each window: [`max_pool2d_with_stride`] of windows side by side.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::ops;
///
/// let xs = Tensor::arange(0f32, 16., &Device::Cpu)?.reshape((1, 1, 4, 4))?;
/// let ys = ops::max_pool2d(&xs, 2)?;
/// assert_eq!(ys.flatten_all()?.to_vec1::<f32>()?, [5., 7., 13., 15.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`max_pool2d_with_stride`].
pub fn max_pool2d(xs: &Tensor, kernel_size: impl ToUsize2) -> Result<Tensor> {
    let kernel_size = kernel_size.to_usize2();
    max_pool2d_with_stride(xs, kernel_size, kernel_size)
}

/// The greatest element of each window, a `stride` behind the one before: candle's method of this
/// name, and PyTorch's `max_pool2d` without padding.
///
/// A window with a NaN gives NaN, as in PyTorch; candle's depends on where it is.
///
/// # Shapes
/// - xs: `[batch, channels, height, width]`
/// - output: `[batch, channels, (height - kernel_height) / stride + 1, ..]`, in the dtype of `xs`
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::ops;
///
/// let xs = Tensor::arange(0f32, 9., &Device::Cpu)?.reshape((1, 1, 3, 3))?;
/// let ys = ops::max_pool2d_with_stride(&xs, 2, 1)?;
/// assert_eq!(ys.flatten_all()?.to_vec1::<f32>()?, [4., 5., 7., 8.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// When `xs` is not a batch of images, or smaller than a window, or a size or a stride is 0.
pub fn max_pool2d_with_stride(
    xs: &Tensor,
    kernel_size: impl ToUsize2,
    stride: impl ToUsize2,
) -> Result<Tensor> {
    trace::forward!("max_pool2d");
    let (kernel, stride) = (kernel_size.to_usize2(), stride.to_usize2());
    let ours = is_ours("max_pool2d", &[xs])?;
    let outputs = |size: usize, kernel: usize, stride: usize| {
        let left = size.checked_sub(kernel).filter(|_| kernel > 0)?;
        Some(left.checked_div(stride)? + 1)
    };
    let size = match *xs.dims() {
        [_, _, height, width] => {
            outputs(height, kernel.0, stride.0).zip(outputs(width, kernel.1, stride.1))
        }
        _ => None,
    };
    let Some((rows, columns)) = size else {
        let expected = format!(
            "[batch, channels, height, width], at least one window of {kernel:?} with stride \
             {stride:?}, both above 0"
        );
        return Err(mismatch("max_pool2d", expected, xs).into());
    };
    let [batch, channels, height, width] = <[usize; 4]>::try_from(xs.dims()).unwrap_or_default();
    if !ours {
        return xs.max_pool2d_with_stride(kernel, stride);
    }
    let input = as_f32(xs, "max_pool2d")?;
    let elements = Elements::new(&input);
    let ys = kernels::max_pool2d(
        kernels::active()?,
        elements.as_slice()?,
        [batch * channels, height, width],
        kernel.into(),
        stride.into(),
    );
    Ok(from_f32_vec(ys, &[batch, channels, rows, columns], xs.dtype())?)
}

/// Images of another size, each element the nearest one before it: candle's method of this name.
///
/// # Shapes
/// - xs: `[batch, channels, from_height, from_width]`
/// - output: `[batch, channels, height, width]`, in the dtype of `xs`
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::ops;
///
/// let xs = Tensor::new(&[[[[1f32, 2.]]]], &Device::Cpu)?;
/// let ys = ops::upsample_nearest2d(&xs, 2, 4)?;
/// assert_eq!(ys.flatten_all()?.to_vec1::<f32>()?, [1., 1., 2., 2., 1., 1., 2., 2.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// When `xs` is not a batch of images, or has no elements.
pub fn upsample_nearest2d(xs: &Tensor, height: usize, width: usize) -> Result<Tensor> {
    trace::forward!("upsample_nearest2d");
    let ours = is_ours("upsample_nearest2d", &[xs])?;
    let [batch, channels, rows, columns] = match <[usize; 4]>::try_from(xs.dims()) {
        Ok(dims) if !dims.contains(&0) => dims,
        _ => {
            let expected = "[batch, channels, height, width], none of them 0";
            return Err(mismatch("upsample_nearest2d", expected, xs).into());
        }
    };
    let shape = [batch, channels, height, width];
    let len = crate::sizes::allocated("upsample_nearest2d", &shape)?;
    if len == 0 {
        return Ok(from_f32_vec(Vec::new(), &shape, xs.dtype())?);
    }
    if !ours {
        return xs.upsample_nearest2d(height, width);
    }
    let input = as_f32(xs, "upsample_nearest2d")?;
    let elements = Elements::new(&input);
    let from = elements.as_slice()?;
    // candle's rounding.
    let sources = |from: usize, to: usize| -> Vec<usize> {
        let scale = from as f64 / to as f64;
        let source = |i: usize| ((i as f64 * scale) as usize).min(from - 1);
        (0..to).map(source).collect()
    };
    let (of_rows, of_columns) = (sources(rows, height), sources(columns, width));
    let mut ys = vec![0f32; len];
    kernels::for_each_row(&mut ys, height * width, |plane, ys| {
        let plane = &from[plane * rows * columns..][..rows * columns];
        for (y, row) in of_rows.iter().enumerate() {
            let (before, ys) = ys.split_at_mut(y * width);
            if y > 0 && of_rows[y - 1] == *row {
                ys[..width].copy_from_slice(&before[(y - 1) * width..]);
                continue;
            }
            let from = &plane[row * columns..][..columns];
            for (y, column) in ys[..width].iter_mut().zip(&of_columns) {
                *y = from[*column];
            }
        }
    });
    Ok(from_f32_vec(ys, &shape, xs.dtype())?)
}
