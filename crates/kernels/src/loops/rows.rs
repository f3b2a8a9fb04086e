//! Rows of f32 activations: their extent, and their codes.
//!
//! Written once in plain Rust over fixed-size chunks, which the compiler turns into vector
//! code; each instruction set compiles it with its own features.

use super::number::{Formula, Number, filled_up};
use crate::qparams::QParams;
use crate::qparams::activation::Arithmetic;

/// The min and max of a row, and whether all its elements are finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// Min element; +inf of an empty row.
    pub min: f32,
    /// Max element; -inf of an empty row.
    pub max: f32,
    /// Whether no element is NaN or infinite.
    pub finite: bool,
}

impl Extent {
    /// The extent of no elements.
    pub const EMPTY: Self = Self { min: f32::INFINITY, max: f32::NEG_INFINITY, finite: true };

    /// Min and max.
    pub fn range(&self) -> [f32; 2] {
        [self.min, self.max]
    }

    /// The extent of both.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self {
            min: self.min.min(other.min),
            max: self.max.max(other.max),
            finite: self.finite && other.finite,
        }
    }
}

/// Floats taken at a time: two of the widest registers, so that two chains of minima overlap.
const CHUNK: usize = 32;

/// The extent of a row.
#[inline(always)]
pub fn extent(row: &[f32]) -> Extent {
    let (mut min, mut max) = ([f32::INFINITY; CHUNK], [f32::NEG_INFINITY; CHUNK]);
    let mut sum = [0.; CHUNK];
    let (chunks, rest) = row.as_chunks::<CHUNK>();
    for chunk in chunks {
        measure(chunk, &mut min, &mut max, &mut sum);
    }
    if let Some(first) = rest.first() {
        // A chunk that ends with the row: what it has twice changes nothing.
        let last = row.last_chunk::<CHUNK>().copied();
        let last = last.unwrap_or_else(|| filled_up(rest, *first));
        measure(&last, &mut min, &mut max, &mut sum);
    }
    let less = |a: f32, b: f32| if a < b { a } else { b };
    let greater = |a: f32, b: f32| if a > b { a } else { b };
    Extent {
        min: together(min, less),
        max: together(max, greater),
        // A NaN or an infinity stays in a sum. A sum of large finite numbers may overflow, so then
        // the elements decide.
        finite: together(sum, |a, b| a + b).is_finite() || row.iter().all(|x| x.is_finite()),
    }
}

/// Takes a chunk into the extents and sums of each place of a chunk. As one array of three they would
/// not stay in registers: a row took 15 ns more.
#[inline(always)]
fn measure(
    chunk: &[f32; CHUNK],
    min: &mut [f32; CHUNK],
    max: &mut [f32; CHUNK],
    sum: &mut [f32; CHUNK],
) {
    for (i, x) in chunk.iter().copied().enumerate() {
        min[i] = if x < min[i] { x } else { min[i] };
        max[i] = if x > max[i] { x } else { max[i] };
        sum[i] += x;
    }
}

/// Combines all values by one function, register by register.
#[inline(always)]
fn together(values: [f32; CHUNK], both: impl Fn(f32, f32) -> f32) -> f32 {
    let values: [f32; 16] = std::array::from_fn(|i| both(values[i + 16], values[i]));
    let values: [f32; 8] = std::array::from_fn(|i| both(values[i + 8], values[i]));
    let values: [f32; 4] = std::array::from_fn(|i| both(values[i + 4], values[i]));
    let values: [f32; 2] = std::array::from_fn(|i| both(values[i + 2], values[i]));
    both(values[1], values[0])
}

/// Writes the code of each element of a finite row, as the oracle's `quantize_row` says.
#[inline(always)]
pub fn quantize<N: Number>(
    row: &[f32],
    qparams: QParams,
    arithmetic: Arithmetic,
    codes: &mut [u8],
) {
    let QParams { scale, .. } = qparams;
    let inv_scale = 1. / scale;
    let zero_point = qparams.zero_point as f32;
    match arithmetic {
        Arithmetic::PyTorch => each::<N>(row, codes, Fused { inv_scale, zero_point }),
        Arithmetic::OnnxRuntime => each::<N>(row, codes, Divided { scale, zero_point }),
    }
}

/// Writes the low bytes of what the formula gives, which are the codes.
#[inline(always)]
fn each<N: Number>(row: &[f32], codes: &mut [u8], formula: impl Formula) {
    let take = |row: &[f32; CHUNK], codes: &mut [u8; CHUNK]| {
        for (x, code) in N::map(formula, *row).into_iter().zip(codes) {
            *code = x.to_bits() as u8;
        }
    };
    let (chunks, rest) = row.as_chunks::<CHUNK>();
    for (row, codes) in chunks.iter().zip(codes.as_chunks_mut::<CHUNK>().0) {
        take(row, codes);
    }
    if rest.is_empty() {
        return;
    }
    // A chunk that ends with the row: what it has twice is encoded twice.
    match (row.last_chunk(), codes.last_chunk_mut()) {
        (Some(row), Some(codes)) => take(row, codes),
        _ => {
            let mut encoded = [0; CHUNK];
            take(&filled_up(rest, 0.), &mut encoded);
            codes.copy_from_slice(&encoded[..rest.len()]);
        }
    }
}

/// Adding 1.5 * 2^23 rounds to an integer, half to even, and leaves it in the low bits.
pub const ROUND: f32 = 12_582_912.;

/// `round(fma(x, 1 / scale, zero_point))`, clamped.
#[derive(Clone, Copy)]
struct Fused {
    inv_scale: f32,
    zero_point: f32,
}

impl Formula for Fused {
    #[inline(always)]
    fn at<N: Number>(self, x: N) -> N {
        let code = x.mul_add(self.inv_scale, self.zero_point);
        code.within(0., 255.) + N::from(ROUND)
    }
}

/// `round(x / scale) + zero_point`, clamped.
#[derive(Clone, Copy)]
struct Divided {
    scale: f32,
    zero_point: f32,
}

impl Formula for Divided {
    #[inline(always)]
    fn at<N: Number>(self, x: N) -> N {
        let code = x / N::from(self.scale);
        let code = code.within(-self.zero_point, 255. - self.zero_point);
        // The sum of integers is exact.
        (code + N::from(ROUND)) + N::from(self.zero_point)
    }
}

/// The sum of codes, of fewer than 2^23.
#[inline(always)]
pub fn sum(codes: &[u8]) -> i32 {
    codes.iter().fold(0i32, |sum, code| sum.wrapping_add((*code).into()))
}
