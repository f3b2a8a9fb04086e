//! Layer norm, RMS norm and softmax of rows of f32.
//!
//! Written once in plain Rust over fixed-size chunks, which the compiler turns into vector
//! code. Sums are those of 32 interleaved parts, so that every instruction set gives the same
//! bits.

use super::activation::exp_within;
use super::number::{Formula, FormulaOfThree, Number};

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

/// Normalizes a row, or its sum with `residual`.
///
/// The variance is that of the differences from the mean: `E[x^2] - mean^2` would lose all its
/// digits where the mean is large.
#[inline(always)]
pub fn normalize<N: Number>(row: &mut [f32], residual: Option<&[f32]>, norm: Norm<'_>) {
    match (residual, norm.residual_weight) {
        (None, _) => {}
        (Some(residual), None) => {
            for (x, residual) in row.iter_mut().zip(residual) {
                *x += residual;
            }
        }
        (Some(residual), Some(weight)) => {
            for ((x, residual), weight) in row.iter_mut().zip(residual).zip(weight) {
                *x += residual * weight;
            }
        }
    }
    let count = row.len() as f32;
    let mean = match norm.centered {
        true => sum_of_powers::<N, 1>(row, 0.) / count,
        false => 0.,
    };
    let variance = sum_of_powers::<N, 2>(row, mean) / count;
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
        let mut last = [origin; CHUNK];
        last[..rest.len()].copy_from_slice(rest);
        parts = add_power::<N, POWER>(parts, &last, origin);
    }
    // By way of memory: else the order in which `together` adds the parts has decided how they lie in
    // registers, and the loop above has spent half its time on shuffling them.
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

/// One value of all parts, the second half always taken together with the first.
#[inline(always)]
fn together(mut parts: [f32; CHUNK], two: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = CHUNK / 2;
    while half > 0 {
        for i in 0..half {
            parts[i] = two(parts[i], parts[i + half]);
        }
        half /= 2;
    }
    parts[0]
}

/// Divides `e^(x - max)` by its sum.
#[inline(always)]
pub fn softmax_row<N: Number>(row: &mut [f32]) {
    let mut greatest = [f32::NEG_INFINITY; CHUNK];
    let (chunks, rest) = row.as_chunks::<CHUNK>();
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
    let (chunks, rest) = row.as_chunks_mut::<CHUNK>();
    for chunk in chunks {
        *chunk = exps_below::<N, _>(*chunk, [max; _]);
        for (part, exp) in parts.iter_mut().zip(&*chunk) {
            *part += exp;
        }
    }
    if !rest.is_empty() {
        // Filled up with -inf, the exp of which is 0, so that no element is computed by itself.
        let mut last = [f32::NEG_INFINITY; CHUNK];
        last[..rest.len()].copy_from_slice(rest);
        let exps = exps_below::<N, _>(last, [max; _]);
        for (part, exp) in parts.iter_mut().zip(exps) {
            *part += exp;
        }
        rest.copy_from_slice(&exps[..rest.len()]);
    }
    let factor = 1. / together(parts, |a, b| a + b);
    for exp in row {
        *exp *= factor;
    }
}

/// `e^(x - origin)` of each `x` below its origin; exactly 0 below e^-87, near the min of [`exp_within`].
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
