//! Rows of f32 activations: their range, and their codes.
//!
//! Written once in plain Rust over fixed-size chunks, which the compiler turns into vector
//! code; each instruction set compiles it with its own features.

/// Least and greatest element of a row, and whether all are finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// Least element; +inf of an empty row.
    pub min: f32,
    /// Greatest element; -inf of an empty row.
    pub max: f32,
    /// Neither NaN nor infinite anywhere.
    pub finite: bool,
}

impl Range {
    /// The range of no elements.
    pub const EMPTY: Self = Self {
        min: f32::INFINITY,
        max: f32::NEG_INFINITY,
        finite: true,
    };

    /// The range of some elements.
    pub fn of(values: &[f32]) -> Self {
        range(values)
    }

    /// The range of both.
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

/// The range of a row.
#[inline(always)]
pub(super) fn range(row: &[f32]) -> Range {
    let mut min = [f32::INFINITY; CHUNK];
    let mut max = [f32::NEG_INFINITY; CHUNK];
    // 0 * x is NaN for a NaN or infinite x, and NaN stays.
    let mut taint = [0f32; CHUNK];
    let (chunks, rest) = row.as_chunks::<CHUNK>();
    let mut take = |i: usize, x: f32| {
        min[i] = if x < min[i] { x } else { min[i] };
        max[i] = if x > max[i] { x } else { max[i] };
        taint[i] += x * 0.;
    };
    for chunk in chunks {
        for (i, x) in chunk.iter().enumerate() {
            take(i, *x);
        }
    }
    for (i, x) in rest.iter().enumerate() {
        take(i, *x);
    }
    let mut range = Range::EMPTY;
    for i in 0..CHUNK {
        range.min = if min[i] < range.min {
            min[i]
        } else {
            range.min
        };
        range.max = if max[i] > range.max {
            max[i]
        } else {
            range.max
        };
        range.finite &= taint[i] == 0.;
    }
    range
}

/// What turns a range into codes.
#[derive(Clone, Copy, Debug)]
pub struct RowParams {
    /// What one step of a code is worth.
    pub scale: f32,
    /// The code that stands for 0.0.
    pub zero_point: i32,
}

/// Where the one rounding of a code takes place; `round` is to the nearest, half to even.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// `round(fma(x, 1 / scale, zero_point))`, as PyTorch does.
    Fused,
    /// `round(x / scale) + zero_point`, as ONNX Runtime does.
    Divided,
}

/// Writes the code of each element of a finite row, as the oracle's `quantize_row` says.
#[inline(always)]
pub(super) fn quantize(row: &[f32], params: RowParams, rounding: Rounding, codes: &mut [u8]) {
    let inv_scale = 1. / params.scale;
    let zero_point = params.zero_point as f32;
    match rounding {
        Rounding::Fused => each(row, codes, |x| fused(x, inv_scale, zero_point)),
        Rounding::Divided => each(row, codes, |x| divided(x, params.scale, zero_point)),
    }
}

#[inline(always)]
fn each(row: &[f32], codes: &mut [u8], encode: impl Fn(f32) -> u8) {
    let (rows, rest) = row.as_chunks::<CHUNK>();
    let (codes, codes_rest) = codes.as_chunks_mut::<CHUNK>();
    for (row, codes) in rows.iter().zip(codes) {
        for (x, code) in row.iter().zip(codes) {
            *code = encode(*x);
        }
    }
    for (x, code) in rest.iter().zip(codes_rest) {
        *code = encode(*x);
    }
}

/// Adding 1.5 * 2^23 rounds to an integer, half to even, and leaves it in the low bits.
const ROUND: f32 = 12_582_912.;

#[inline(always)]
fn clamp(code: f32, low: f32, high: f32) -> f32 {
    let code = if code > low { code } else { low };
    if code < high { code } else { high }
}

#[inline(always)]
fn fused(x: f32, inv_scale: f32, zero_point: f32) -> u8 {
    let code = clamp(x.mul_add(inv_scale, zero_point), 0., 255.);
    (code + ROUND).to_bits() as u8
}

#[inline(always)]
fn divided(x: f32, scale: f32, zero_point: f32) -> u8 {
    let code = clamp(x / scale, -zero_point, 255. - zero_point);
    // The sum of integers is exact.
    ((code + ROUND) + zero_point).to_bits() as u8
}

/// The sum of codes, of fewer than 2^23.
#[inline(always)]
pub(super) fn sum(codes: &[u8]) -> i32 {
    codes
        .iter()
        .fold(0i32, |sum, code| sum.wrapping_add((*code).into()))
}
