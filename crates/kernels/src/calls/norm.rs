//! Layer norm, RMS norm and softmax of all rows of a slice.

use std::mem::MaybeUninit;

use crate::arch::op::ops;
use crate::isa::Isa;
use crate::loops::buffer;
use crate::loops::norm::{self, Norm};
use crate::sizes;
use crate::threads::Threads;

/// `(x - mean) / sqrt(variance + eps) * weight + bias` of each row of `xs`, or of
/// `xs + residual * residual_weight`; the mean counts as zero where the norm is not centered.
///
/// # Panics
/// If `residual` and `xs`, or `bias` or `residual_weight` and `weight`, differ in length, or if
/// `xs` has no whole rows.
pub fn layer_norm(isa: Isa, xs: &[f32], residual: Option<&[f32]>, norm: Norm<'_>) -> Vec<f32> {
    let [ys] = normalized(isa, xs, residual, norm);
    ys
}

/// [`layer_norm`] of the sum of `xs` and the residual, and that sum.
///
/// # Panics
/// As [`layer_norm`].
pub fn layer_norm_and_sum(isa: Isa, xs: &[f32], residual: &[f32], norm: Norm<'_>) -> [Vec<f32>; 2] {
    normalized(isa, xs, Some(residual), norm)
}

/// The norm of each row and, with a second result, the sum that is normalized.
fn normalized<const N: usize>(
    isa: Isa,
    xs: &[f32],
    residual: Option<&[f32]>,
    norm: Norm<'_>,
) -> [Vec<f32>; N] {
    check(xs, residual, norm);
    let hidden = norm.weight.len();
    each_row(&Threads::of_caller(), xs, hidden, |start, xs, outs| {
        let mut outs = outs.into_iter();
        let (out, sum) = (outs.next().unwrap_or_default(), outs.next());
        let residual = residual.map(|residual| &residual[start..start + hidden]);
        isa.run(normalize(xs, residual, norm, sum, out));
    })
}

/// Checks the lengths of operands.
fn check(xs: &[f32], residual: Option<&[f32]>, norm: Norm<'_>) {
    let hidden = norm.weight.len();
    if let Some(residual) = residual {
        sizes::check("residual, the shape of xs", residual, &[xs.len()]);
    }
    if let Some(bias) = norm.bias {
        sizes::check("bias, the shape of weight", bias, &[hidden]);
    }
    if let Some(weight) = norm.residual_weight {
        sizes::check("weight of the residual, the shape of weight", weight, &[hidden]);
    }
}

/// `e^x` of each element, divided by the sum over its row of `columns` elements.
///
/// # Panics
/// If `xs` has no whole rows.
pub fn softmax(isa: Isa, xs: &[f32], columns: usize) -> Vec<f32> {
    let [ys] = each_row(&Threads::of_caller(), xs, columns, |_, xs, [out]| {
        isa.run(softmax_row(xs, out));
    });
    ys
}

ops! {
    fn normalize(
        xs: &'a [f32],
        residual: Option<&'a [f32]>,
        norm: Norm<'a>,
        sum: Option<&'a mut [MaybeUninit<f32>]>,
        out: &'a mut [MaybeUninit<f32>],
    ) {
        norm::normalize::<N>(xs, residual, norm, sum, out);
    }

    fn softmax_row(xs: &'a [f32], out: &'a mut [MaybeUninit<f32>]) {
        norm::softmax_row::<N>(xs, out);
    }
}

/// Elements below which the caller's thread computes alone.
const SERIAL_ELEMENTS: usize = 32_768;

/// Calls `write` with the start and the elements of each row of `xs`, and with the row of each
/// result, all of whose elements it writes.
fn each_row<const N: usize>(
    threads: &Threads,
    xs: &[f32],
    columns: usize,
    write: impl Fn(usize, &[f32], [&mut [MaybeUninit<f32>]; N]) + Sync,
) -> [Vec<f32>; N] {
    let rows = xs.len().checked_div(columns).unwrap_or(0);
    sizes::check("xs, [rows, columns]", xs, &[rows, columns]);
    if rows == 0 {
        return std::array::from_fn(|_| Vec::new());
    }
    let tasks = threads.tasks(xs.len(), SERIAL_ELEMENTS);
    let height = rows.div_ceil(tasks).max(1);
    // SAFETY: all rows of all parts are written.
    unsafe {
        buffer::filled_each([xs.len(); N], |outs| {
            let mut parts = outs.map(|out| out.chunks_mut(height * columns));
            let parts = (0..rows).step_by(height).map(|first| {
                let outs = parts.each_mut().map(Iterator::next);
                (first, outs.map(Option::unwrap_or_default))
            });
            threads.for_each_item(parts, |(first, outs)| {
                let mut of_row = outs.map(|out| out.chunks_exact_mut(columns));
                for row in first..rows.min(first + height) {
                    let start = row * columns;
                    let outs = of_row.each_mut().map(Iterator::next);
                    let outs = outs.map(Option::unwrap_or_default);
                    write(start, &xs[start..start + columns], outs);
                }
            });
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(len: usize, offset: f32) -> Vec<f32> {
        let value = |i: usize| ((i * 7_919) % 1_013) as f32 / 200. - 2.5 + offset;
        (0..len).map(value).collect()
    }

    fn bits(xs: &[f32]) -> Vec<u32> {
        xs.iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn norms_are_those_of_f64_and_the_same_on_every_isa() {
        let sizes = [(0, 5), (1, 1), (3, 7), (2, 32), (5, 33), (2, 384), (60, 768)];
        // Miri is a thousand times as slow.
        for (rows, hidden) in sizes.into_iter().take(if cfg!(miri) { 4 } else { 7 }) {
            for offset in [0., 100.] {
                let xs = values(rows * hidden, offset);
                let residual: Vec<f32> = xs.iter().map(|x| (x - offset) * -0.3 + 0.1).collect();
                let (weight, bias) = (values(hidden, 1.), values(hidden, 0.));
                let (factors, residual) = (values(hidden, 0.5), Some(&residual[..]));
                let factors = Some(&factors[..]);
                for (residual, residual_weight, centered) in [
                    (None, None, true),
                    (residual, None, true),
                    (residual, factors, true),
                    (None, None, false),
                    (residual, None, false),
                    (residual, factors, false),
                ] {
                    let norm = Norm {
                        weight: &weight,
                        bias: residual.is_none().then_some(&bias[..]),
                        residual_weight,
                        eps: 1e-5,
                        centered,
                    };
                    let oldest = layer_norm(Isa::available()[0], &xs, residual, norm);
                    for isa in Isa::available() {
                        let got = layer_norm(isa, &xs, residual, norm);
                        assert_eq!(bits(&got), bits(&oldest), "{isa} {rows} {hidden}");
                        let Some(residual) = residual else { continue };
                        let [got, sum] = layer_norm_and_sum(isa, &xs, residual, norm);
                        assert_eq!(bits(&got), bits(&oldest), "{isa} {rows} {hidden}");
                        let plain = Norm { residual_weight: None, ..norm };
                        let of_sum = layer_norm(isa, &sum, None, plain);
                        assert_eq!(bits(&of_sum), bits(&oldest), "{isa} {rows} {hidden}");
                        for (i, sum) in sum.iter().enumerate() {
                            let factor = residual_weight.map_or(1., |weight| weight[i % hidden]);
                            assert_eq!(*sum, xs[i] + residual[i] * factor);
                        }
                    }
                    for (row, got) in oldest.chunks(hidden).enumerate() {
                        let x = |c: usize| {
                            let i = row * hidden + c;
                            let factor = residual_weight.map_or(1., |w| f64::from(w[c]));
                            f64::from(xs[i]) + residual.map_or(0., |r| f64::from(r[i]) * factor)
                        };
                        let mean = (0..hidden).map(x).sum::<f64>() / hidden as f64;
                        let mean = if centered { mean } else { 0. };
                        let square = |c| (x(c) - mean).powi(2);
                        let variance = (0..hidden).map(square).sum::<f64>() / hidden as f64;
                        for (column, got) in got.iter().enumerate() {
                            let normal = (x(column) - mean) / (variance + 1e-5).sqrt();
                            let bias = norm.bias.map_or(0., |b| f64::from(b[column]));
                            let expected = normal * f64::from(weight[column]) + bias;
                            // A difference from a mean of 100 has an error of half a unit of 100.
                            let bound = 3e-6 * (1. + f64::from(offset));
                            let error = (f64::from(*got) - expected).abs();
                            assert!(error <= bound, "{rows} {hidden} {offset}: {got}, {expected}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn softmax_is_that_of_f64_and_the_same_on_every_isa() {
        let sizes = [(0, 5), (3, 1), (3, 7), (2, 32), (5, 33), (2, 128), (400, 100), (2, 5_000)];
        for (rows, columns) in sizes.into_iter().take(if cfg!(miri) { 3 } else { 8 }) {
            let mut xs = values(rows * columns, 50.);
            // Differences of up to 90 in every other case.
            let stretch = if columns % 2 == 0 { 18.1 } else { 1. };
            xs.iter_mut().for_each(|x| *x *= stretch);
            for x in xs.iter_mut().skip(1).step_by(5) {
                *x = f32::NEG_INFINITY;
            }
            let oldest = softmax(Isa::available()[0], &xs, columns);
            for isa in Isa::available() {
                let got = softmax(isa, &xs, columns);
                assert_eq!(bits(&got), bits(&oldest), "{isa} {rows} {columns}");
            }
            for (row, got) in xs.chunks(columns).zip(oldest.chunks(columns)) {
                let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let below = |x: &f32| f64::from(*x) - f64::from(max);
                let weight = |x: &f32| below(x).exp();
                let sum = row.iter().map(weight).sum::<f64>();
                for (x, got) in row.iter().zip(got) {
                    let expected = weight(x) / sum;
                    let error = (f64::from(*got) - expected).abs();
                    if max > f32::NEG_INFINITY {
                        let relative = 4e-7 - below(x).max(-1e3) / 2f64.powi(24);
                        let bound = relative * expected + 1e-37;
                        assert!(error <= bound, "{x}: {got}, expected {expected}");
                    } else {
                        assert!(got.is_nan());
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_that_is_not_finite_is_nan_and_alone() {
        for isa in Isa::available() {
            for poison in [f32::NAN, f32::INFINITY] {
                let mut xs = values(3 * 40, 0.);
                xs[45] = poison;
                let ones = [1.; 40];
                let norm = Norm {
                    weight: &ones,
                    bias: None,
                    residual_weight: None,
                    eps: 0.,
                    centered: true,
                };
                for got in [layer_norm(isa, &xs, None, norm), softmax(isa, &xs, 40)] {
                    for (i, got) in got.iter().enumerate() {
                        // Beside an infinity the other shares are 0, and the infinity's is NaN.
                        let poisoned = i / 40 == 1;
                        assert!(poisoned || got.is_finite(), "{isa} {poison} {i}: {got}");
                        assert!(!poisoned || got.is_nan(), "{isa} {poison} {i}: {got}");
                    }
                }
            }
        }
    }
}
