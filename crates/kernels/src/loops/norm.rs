//! Layer norm, RMS norm and softmax of rows of f32.
//!
//! Written once in plain Rust over fixed-size chunks, which the compiler turns into vector
//! code. A sum has 32 interleaved parts, so that every instruction set gives the same bits.

use std::mem::MaybeUninit;

use super::activation::exp_within;
use super::number::{Formula, FormulaOfThree, Number, filled_up, together};

/// The parameters of a norm of rows of `hidden` elements.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// Factors, `[hidden]`.
    pub weight: &'a [f32],
    /// Terms, `[hidden]`.
    pub bias: Option<&'a [f32]>,
    /// Factors of a residual, `[hidden]`.
    pub residual_weight: Option<&'a [f32]>,
    /// Added to the variance.
    pub eps: f32,
    /// Whether the mean is subtracted, as by a layer norm; if not, it is an RMS norm.
    pub centered: bool,
}

/// Parts of a sum: two of the widest registers, so that two chains of sums overlap.
const CHUNK: usize = 32;

/// Normalizes a row, or its sum with `residual`, to `out`, and writes what was normalized to `sum`.
///
/// The variance is computed from the differences to the mean: `E[x^2] - mean^2` would lose all its
/// digits where the mean is large.
#[inline(always)]
pub fn normalize<N: Number>(
    xs: &[f32],
    residual: Option<&[f32]>,
    norm: Norm<'_>,
    sum: Option<&mut [MaybeUninit<f32>]>,
    out: &mut [MaybeUninit<f32>],
) {
    let count = xs.len() as f32;
    let (row, mean, variance) = if norm.centered {
        let (row, total) = written::<N, 1>(xs, residual, norm.residual_weight, out, sum);
        let mean = total / count;
        let squares = sum_of_powers::<N, 2>(row, mean);
        (row, mean, squares / count)
    } else {
        let (row, squares) = written::<N, 2>(xs, residual, norm.residual_weight, out, sum);
        (row, 0., squares / count)
    };
    let scale = 1. / (variance + norm.eps).sqrt();
    match norm.bias {
        Some(bias) => N::zip(Normal { mean, scale }, row, norm.weight, bias),
        None => {
            for (x, weight) in row.iter_mut().zip(norm.weight) {
                *x = (*x - mean) * scale * weight;
            }
        }
    }
}

/// Writes a row, or its sum with `residual` times `weight`, to `out` and `copy`; returns it, and
/// the sum of its elements to a power.
///
/// Both are written in one loop: copying one to the other afterwards takes many times as long where
/// their addresses have the same last 12 bits, as two results of whole pages have.
#[inline(always)]
fn written<'a, N: Number, const POWER: usize>(
    xs: &[f32],
    residual: Option<&[f32]>,
    weight: Option<&[f32]>,
    out: &'a mut [MaybeUninit<f32>],
    copy: Option<&mut [MaybeUninit<f32>]>,
) -> (&'a mut [f32], f32) {
    // Two loops, for a branch in each chunk takes 4% of a layer norm.
    match copy {
        None => written_by::<N, POWER>(xs, residual, weight, out, |_, _| {}),
        Some(copy) => {
            assert_eq!(xs.len(), copy.len(), "as many elements");
            let keep = |first: usize, chunk: &[f32]| {
                copy[first..][..chunk.len()].write_copy_of_slice(chunk);
            };
            written_by::<N, POWER>(xs, residual, weight, out, keep)
        }
    }
}

/// [`written`], with `keep` called for each chunk of the sum and the index of its first element.
#[inline(always)]
fn written_by<'a, 'b, N: Number, const POWER: usize>(
    xs: &[f32],
    residual: Option<&'b [f32]>,
    weight: Option<&'b [f32]>,
    out: &'a mut [MaybeUninit<f32>],
    mut keep: impl FnMut(usize, &[f32]),
) -> (&'a mut [f32], f32) {
    assert_eq!(xs.len(), out.len(), "as many elements");
    let mut parts = [0f32; CHUNK];
    let (chunks, rest) = xs.as_chunks::<CHUNK>();
    let (to, to_rest) = out.as_chunks_mut::<CHUNK>();
    let chunk_of = |terms: Option<&'b [f32]>, i: usize| terms.map(|xs| &xs.as_chunks().0[i]);
    for (i, (chunk, to)) in chunks.iter().zip(to).enumerate() {
        let chunk = plus(*chunk, chunk_of(residual, i), chunk_of(weight, i));
        parts = add_power::<N, POWER>(parts, &chunk, 0.);
        to.write_copy_of_slice(&chunk);
        keep(i * CHUNK, &chunk);
    }
    if !rest.is_empty() {
        // Filled up with zeros, and zeros added to them.
        let first = xs.len() - rest.len();
        let last = filled_up(rest, 0.);
        let [residual, weight] =
            [residual, weight].map(|terms| terms.map(|xs| filled_up(&xs[first..], 0.)));
        let last = plus(last, residual.as_ref(), weight.as_ref());
        parts = add_power::<N, POWER>(parts, &last, 0.);
        to_rest.write_copy_of_slice(&last[..rest.len()]);
        keep(first, &last[..rest.len()]);
    }
    // SAFETY: all elements are written.
    let row = unsafe { out.assume_init_mut() };
    // As in `sum_of_powers`.
    (row, together(std::hint::black_box(parts), |a, b| a + b))
}

/// Adds the weighted residual to each element.
#[inline(always)]
fn plus(
    mut chunk: [f32; CHUNK],
    residual: Option<&[f32; CHUNK]>,
    weight: Option<&[f32; CHUNK]>,
) -> [f32; CHUNK] {
    match (residual, weight) {
        (None, _) => {}
        (Some(residual), None) => {
            for (x, residual) in chunk.iter_mut().zip(residual) {
                *x += residual;
            }
        }
        (Some(residual), Some(weight)) => {
            for ((x, residual), weight) in chunk.iter_mut().zip(residual).zip(weight) {
                *x += residual * weight;
            }
        }
    }
    chunk
}

/// `(x - mean) * scale * weight + bias`, the last two in one.
#[derive(Clone, Copy)]
struct Normal {
    mean: f32,
    scale: f32,
}

impl FormulaOfThree for Normal {
    #[inline(always)]
    fn at<N: Number>(self, x: N, weight: N, bias: N) -> N {
        ((x - N::from(self.mean)) * N::from(self.scale)).mul_add(weight, bias)
    }
}

/// The sum of `(x - origin)^POWER`.
#[inline(always)]
fn sum_of_powers<N: Number, const POWER: usize>(row: &[f32], origin: f32) -> f32 {
    let mut parts = [0f32; CHUNK];
    let (chunks, rest) = row.as_chunks::<CHUNK>();
    for chunk in chunks {
        parts = add_power::<N, POWER>(parts, chunk, origin);
    }
    if !rest.is_empty() {
        // Filled up with elements whose difference is 0.
        parts = add_power::<N, POWER>(parts, &filled_up(rest, origin), origin);
    }
    // Through memory: else the order in which `together` adds the parts decides how they lie in
    // registers, and the loop above spends half its time on shuffling them.
    together(std::hint::black_box(parts), |a, b| a + b)
}

#[inline(always)]
fn add_power<N: Number, const POWER: usize>(
    mut parts: [f32; CHUNK],
    chunk: &[f32; CHUNK],
    origin: f32,
) -> [f32; CHUNK] {
    let mut differences = *chunk;
    for x in &mut differences {
        *x -= origin;
    }
    if POWER == 2 {
        return N::fma_each(differences, differences, parts);
    }
    for (part, x) in parts.iter_mut().zip(differences) {
        *part += x;
    }
    parts
}

/// Writes `e^(x - max)`, divided by the sum.
#[inline(always)]
pub fn softmax_row<N: Number>(xs: &[f32], out: &mut [MaybeUninit<f32>]) {
    assert_eq!(xs.len(), out.len(), "as many elements");
    let mut greatest = [f32::NEG_INFINITY; CHUNK];
    let (chunks, rest) = xs.as_chunks::<CHUNK>();
    for chunk in chunks {
        for (max, x) in greatest.iter_mut().zip(chunk) {
            *max = if x > max { *x } else { *max };
        }
    }
    for (max, x) in greatest.iter_mut().zip(rest) {
        *max = if x > max { *x } else { *max };
    }
    let max = together(greatest, |a, b| if a > b { a } else { b });

    let mut parts = [0f32; CHUNK];
    let (to, to_rest) = out.as_chunks_mut::<CHUNK>();
    for (chunk, to) in chunks.iter().zip(to) {
        let exps = exps_below::<N, _>(*chunk, [max; _]);
        for (part, exp) in parts.iter_mut().zip(exps) {
            *part += exp;
        }
        to.write_copy_of_slice(&exps);
    }
    if !rest.is_empty() {
        // Filled up with -inf, the exp of which is 0, so that no element is computed by itself.
        let exps = exps_below::<N, CHUNK>(filled_up(rest, f32::NEG_INFINITY), [max; _]);
        for (part, exp) in parts.iter_mut().zip(exps) {
            *part += exp;
        }
        to_rest.write_copy_of_slice(&exps[..rest.len()]);
    }
    // SAFETY: all elements are written.
    let row = unsafe { out.assume_init_mut() };
    let factor = 1. / together(parts, |a, b| a + b);
    for exp in row {
        *exp *= factor;
    }
}

/// `e^(x - origin)` of each `x` below its origin; exactly 0 below e^-87, near the min of
/// [`exp_within`].
#[inline(always)]
pub fn exps_below<N: Number, const LEN: usize>(xs: [f32; LEN], origins: [f32; LEN]) -> [f32; LEN] {
    N::map_from(ExpOrZero, xs, origins)
}

#[derive(Clone, Copy)]
struct ExpOrZero;

impl Formula for ExpOrZero {
    #[inline(always)]
    fn at<N: Number>(self, x: N) -> N {
        x.below(-87., N::from(0.), exp_within(x))
    }
}
