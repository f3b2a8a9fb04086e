//! Pooling of images.

use super::lookup::for_each_row;
use crate::arch::op::ops;
use crate::isa::Isa;
use crate::sizes;

/// The greatest element of each window of each plane of `xs`, `[planes, height, width]`:
/// `[planes, rows, columns]`. A window with a NaN gives NaN.
///
/// # Panics
/// If the number of elements differs from the sizes, or no window fits.
pub fn max_pool2d(
    isa: Isa,
    xs: &[f32],
    [planes, height, width]: [usize; 3],
    kernel: [usize; 2],
    stride: [usize; 2],
) -> Vec<f32> {
    sizes::check("xs, [planes, height, width]", xs, &[planes, height, width]);
    let outputs = |size: usize, axis: usize| {
        let left = size.checked_sub(kernel[axis]).filter(|_| kernel[axis] > 0);
        let steps = left.and_then(|left| left.checked_div(stride[axis]));
        steps.expect("a window") + 1
    };
    let [rows, columns] = [outputs(height, 0), outputs(width, 1)];
    let mut out = vec![0.; sizes::length("out", &[planes, rows, columns])];
    for_each_row(&mut out, rows * columns, |plane, out| {
        let xs = &xs[plane * height * width..][..height * width];
        let greatest = &mut vec![0.; width];
        isa.run(pool(xs, greatest, (kernel, stride), columns, out));
    });
    out
}

ops! {
    /// Pools a plane; the greatest elements of the columns of a row of windows are in `greatest`.
    fn pool(
        xs: &'a [f32],
        greatest: &'a mut [f32],
        windows: ([usize; 2], [usize; 2]),
        columns: usize,
        out: &'a mut [f32],
    ) {
        let (kernel, stride) = windows;
        let width = greatest.len();
        for (y, out) in out.chunks_exact_mut(columns).enumerate() {
            let rows = xs[y * stride[0] * width..].chunks_exact(width);
            greatest.fill(f32::NEG_INFINITY);
            for row in rows.take(kernel[0]) {
                for (most, x) in greatest.iter_mut().zip(row) {
                    *most = greater(*most, *x);
                }
            }
            out.fill(f32::NEG_INFINITY);
            for tap in 0..kernel[1] {
                if stride[1] == 1 {
                    for (most, x) in out.iter_mut().zip(&greatest[tap..]) {
                        *most = greater(*most, *x);
                    }
                } else {
                    let xs = greatest[tap..].iter().step_by(stride[1]);
                    for (most, x) in out.iter_mut().zip(xs) {
                        *most = greater(*most, *x);
                    }
                }
            }
        }
    }
}

/// The greater one, or NaN if one is.
#[inline(always)]
fn greater(most: f32, x: f32) -> f32 {
    if x > most || x.is_nan() { x } else { most }
}
