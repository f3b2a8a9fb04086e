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

/// Writes the code of each element of a finite row, as the oracle's `quantize_row` says.
#[inline(always)]
pub(super) fn quantize(row: &[f32], scale: f32, zero_point: i32, codes: &mut [u8]) {
    let inv_scale = 1. / scale;
    let zero_point = zero_point as f32;
    let (rows, rest) = row.as_chunks::<CHUNK>();
    let (codes, codes_rest) = codes.as_chunks_mut::<CHUNK>();
    for (row, codes) in rows.iter().zip(codes) {
        for (x, code) in row.iter().zip(codes) {
            *code = encode(*x, inv_scale, zero_point);
        }
    }
    for (x, code) in rest.iter().zip(codes_rest) {
        *code = encode(*x, inv_scale, zero_point);
    }
}

#[inline(always)]
fn encode(x: f32, inv_scale: f32, zero_point: f32) -> u8 {
    // Adding 1.5 * 2^23 rounds to an integer, half to even, and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.;
    let code = x.mul_add(inv_scale, zero_point);
    let code = if code > 0. { code } else { 0. };
    let code = if code < 255. { code } else { 255. };
    (code + ROUND).to_bits() as u8
}
