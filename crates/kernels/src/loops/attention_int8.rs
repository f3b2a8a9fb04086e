//! Attention by products of codes: rows of queries, keys and values to codes, and scores to the
//! codes of weights.
//!
//! ```text
//! for some keys of a head                       a task: rows of k and v to codes, packed
//! for some queries of a head                    a task
//!   for a block of them, as many as leave their scores in L2
//!     codes of the queries                      u8, by 128 greater
//!     scores = k q^T                            a product as of a layer: keys are its channels
//!     scores + mask; maximum; e^(score - maximum) times the scales of v; codes
//!     out = v^T codes                           another: columns of v are its channels
//! ```
//!
//! All scores of a query are there before the first exponential, so that no sum is ever multiplied
//! by another maximum's, and the exponentials are summed as integers: a query's result
//! depends neither on blocks nor on the keys that it does not see.

use std::ops::Range;

use super::number::{Formula, Number, filled_up};
use super::product::Row;
use super::rows::{self, ROUND};
use crate::packed::heads::HeadsMut;
use crate::qparams::symmetric_row;

/// Products of codes that a sum in i32 has room for: `65,536 * 255 * 127 < 2^31`.
pub const MAX_TERMS: usize = 1 << 16;

/// Scores that are taken at a time: two of the widest registers.
pub const BLOCK: usize = 32;

/// Rows that are taken together, step by step: each step of a single one would wait for the one
/// before.
pub const ROWS: usize = 8;

/// Added to codes, which are u8 first: the zero point of queries.
const SHIFT: u8 = 128;

/// Rows somewhere in a slice: the distance from one to the next, and their columns.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    pub values: &'a [f32],
    pub stride: usize,
    pub columns: usize,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    fn row(&self, row: usize) -> &'a [f32] {
        &self.values[row * self.stride..][..self.columns]
    }

    /// The scales of some rows, at most [`ROWS`]; NaN for a row that is not finite.
    #[inline(always)]
    fn scales(&self, rows: Range<usize>) -> [f32; ROWS] {
        let mut scales = [0.; ROWS];
        for (row, scale) in rows.zip(&mut scales) {
            *scale = greatest(self.row(row));
        }
        scales.map(|max| if max.is_finite() { symmetric_row(max) } else { f32::NAN })
    }

    /// Writes the codes of a row by `scale`, each plus `shift`.
    #[inline(always)]
    fn encode<N: Number>(&self, row: usize, scale: f32, shift: u8, codes: &mut [u8]) {
        if scale.is_nan() {
            return codes.fill(shift);
        }
        encode::<N>(self.row(row), 1. / scale, shift, codes);
    }
}

/// The greatest magnitude; the bits of what is not finite are the greatest.
#[inline(always)]
pub fn greatest(xs: &[f32]) -> f32 {
    let bits = |x: &f32| x.to_bits() & !(1 << 31);
    f32::from_bits(xs.iter().fold(0, |max, x| bits(x).max(max)))
}

/// Writes the integer next to each value times a factor, plus `shift`, in a byte.
#[inline(always)]
pub fn encode<N: Number>(values: &[f32], factor: f32, shift: u8, codes: &mut [u8]) {
    let take = |values: &[f32; BLOCK], codes: &mut [u8; BLOCK]| {
        let rounded = N::fma_each(*values, [factor; BLOCK], [ROUND + f32::from(shift); BLOCK]);
        for (code, rounded) in codes.iter_mut().zip(rounded) {
            *code = rounded.to_bits() as u8;
        }
    };
    let (blocks, rest) = values.as_chunks::<BLOCK>();
    let (whole, codes_rest) = codes.as_chunks_mut::<BLOCK>();
    for (values, codes) in blocks.iter().zip(whole) {
        take(values, codes);
    }
    if !rest.is_empty() {
        let mut encoded = [0; BLOCK];
        take(&filled_up(rest, 0.), &mut encoded);
        codes_rest.copy_from_slice(&encoded[..rest.len()]);
    }
}

/// The sum of codes that are greater by `shift`.
#[inline(always)]
fn sum(codes: &[u8], shift: u8) -> i32 {
    let code = |code: &u8| i32::from(code.wrapping_sub(shift).cast_signed());
    codes.iter().fold(0i32, |sum, x| sum.wrapping_add(code(x)))
}

/// Writes the codes of queries, in whole groups of `width` a row, and their sums, or 0; `scale` is
/// the factor of the scores.
#[inline(always)]
pub fn queries<N: Number>(
    from: Rows<'_>,
    (scale, sums): (f32, bool),
    (codes, width): (&mut [[u8; 4]], usize),
    of_rows: &mut [Row],
) {
    for (block, of_rows) in of_rows.chunks_mut(ROWS).enumerate() {
        let first = block * ROWS;
        let scales = from.scales(first..first + of_rows.len());
        for (i, (of_row, of_codes)) in of_rows.iter_mut().zip(scales).enumerate() {
            let groups = &mut codes[(first + i) * width..][..width];
            let (codes, behind) = groups.as_flattened_mut().split_at_mut(from.columns);
            // They multiply what is behind the last input of a key.
            clear(behind);
            from.encode::<N>(first + i, of_codes, SHIFT, codes);
            *of_row = Row {
                scale: of_codes * scale,
                zero_point: SHIFT.into(),
                sum: if sums { rows::sum(codes) } else { 0 },
                ..Row::PLAIN
            };
        }
    }
}

/// Rows in parts of up to four, which begin at multiples of four in a head whose row `to` is the
/// first of them.
#[inline(always)]
fn fours(rows: usize, to: usize) -> impl Iterator<Item = Range<usize>> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let first = next;
        next = rows.min(first + 4 - (to + first) % 4);
        (first < rows).then_some(first..next)
    })
}

/// Writes the codes of keys of a head, from the key `to` on; `room` holds four keys.
///
/// # Safety
/// No other thread writes or reads these keys.
#[inline(always)]
pub unsafe fn keys<N: Number>(
    from: Rows<'_>,
    rows: usize,
    [head, to]: [usize; 2],
    room: &mut [[u8; 4]],
    keys: HeadsMut<'_>,
) {
    let width = room.len() / 4;
    for rows in fours(rows, to) {
        let all = from.scales(rows.clone());
        let (mut scales, mut sums) = ([0.; 4], [0; 4]);
        for (i, row) in rows.clone().enumerate() {
            let groups = &mut room[i * width..][..width];
            let (codes, behind) = groups.as_flattened_mut().split_at_mut(from.columns);
            clear(behind);
            from.encode::<N>(row, all[i], keys.shift, codes);
            sums[i] = sum(codes, keys.shift);
            scales[i] = all[i];
        }
        let of_rows: [_; 4] = std::array::from_fn(|i| &room[i * width..][..width]);
        let place = [head, to + rows.start];
        // SAFETY: the contract is the same.
        unsafe { keys.put_channels(place, &of_rows[..rows.len()], (sums, scales)) };
    }
}

/// Writes the codes of rows of values of a head, from the row `to` on, and their scales; `room`
/// holds four rows.
///
/// # Safety
/// No other thread writes or reads the groups that have these rows.
#[inline(always)]
pub unsafe fn values<N: Number>(
    from: Rows<'_>,
    [head, to]: [usize; 2],
    room: &mut [u8],
    scales: &mut [f32],
    values: HeadsMut<'_>,
) {
    let width = from.columns;
    for rows in fours(scales.len(), to) {
        let all = from.scales(rows.clone());
        for (i, row) in rows.clone().enumerate() {
            let codes = &mut room[i * width..][..width];
            from.encode::<N>(row, all[i], values.shift, codes);
            scales[row] = all[i];
        }
        let (input, row) = (to + rows.start, |i: usize| &room[i * width..][..width]);
        // SAFETY: the contract is the same.
        unsafe {
            match rows.len() {
                4 => values.put_group(head, input / 4, std::array::from_fn(row)),
                count => (0..count).for_each(|i| values.put_input(head, input + i, row(i))),
            }
        }
    }
}

/// Fills `codes`, which are mostly empty, with zeros: a call would take as long for none as for
/// some.
#[inline(always)]
fn clear(codes: &mut [u8]) {
    if !codes.is_empty() {
        codes.fill(0);
    }
}

/// The greatest of scores in whole blocks; 0 if all are excluded, where `-inf + inf` were NaN.
#[inline(always)]
pub fn origin(scores: &[f32]) -> f32 {
    let mut max = [f32::NEG_INFINITY; BLOCK];
    for block in scores.as_chunks::<BLOCK>().0 {
        for (max, score) in max.iter_mut().zip(*block) {
            *max = if score > *max { score } else { *max };
        }
    }
    // As integers of the same order, of which the compiler takes the max register by register.
    let ordered = |bits: i32| bits ^ ((bits >> 31) & i32::MAX);
    let mut keys = [i32::MIN; BLOCK];
    for (key, max) in keys.iter_mut().zip(max) {
        *key = ordered(max.to_bits().cast_signed());
    }
    let max = ordered(keys.into_iter().fold(i32::MIN, i32::max));
    let max = f32::from_bits(max.cast_unsigned());
    if max == f32::NEG_INFINITY { 0. } else { max }
}

/// Replaces scores in whole blocks by their weights, with the scales of values; returns the sum of
/// the exponentials, and the greatest weight, which is NaN if one is.
#[inline(always)]
pub fn weigh<N: Number>(scores: &mut [f32], origin: f32, scales: &[f32]) -> (f32, f32) {
    let (mut sum, mut max) = (0, 0);
    let parts = scores.chunks_mut(PART).zip(scales.chunks(PART));
    for (scores, scales) in parts {
        let (mut steps, mut greatest) = ([0u32; BLOCK], [0u32; BLOCK]);
        let blocks = scores.as_chunks_mut::<BLOCK>().0;
        let round = ROUND.to_bits().wrapping_mul((blocks.len() * BLOCK) as u32);
        for (block, scales) in blocks.iter_mut().zip(scales.as_chunks::<BLOCK>().0) {
            let scores = *block;
            let exps = N::map_from(ExpForCode, scores, [origin; BLOCK]);
            // Steps, in the low bits.
            let rounded = N::fma_each(exps, [STEPS; BLOCK], [ROUND; BLOCK]);
            let mut weights = exps;
            for i in 0..BLOCK {
                steps[i] = steps[i].wrapping_add(rounded[i].to_bits());
                // The scale of an excluded key may be NaN.
                let weight = exps[i] * scales[i];
                let excluded = scores[i] == f32::NEG_INFINITY;
                weights[i] = if excluded { 0. } else { weight };
                // By their bits, of which NaN has the greatest.
                greatest[i] = greatest[i].max(weights[i].to_bits());
            }
            *block = weights;
        }
        let steps = steps.into_iter().fold(0, u32::wrapping_add);
        sum += u64::from(steps.wrapping_sub(round));
        max = max.max(greatest.into_iter().fold(0, u32::max));
    }
    (sum as f32 * (1. / STEPS), f32::from_bits(max))
}

/// Scores of which the exponentials, in steps, add up to a u32.
const PART: usize = 2048;

/// Writes the codes of weights times a factor, and zeros behind them.
#[inline(always)]
pub fn encode_weights<N: Number>(weights: &[f32], factor: f32, codes: &mut [u8]) {
    let (codes, behind) = codes.split_at_mut(codes.len().min(weights.len()));
    encode::<N>(&weights[..codes.len()], factor, 0, codes);
    clear(behind);
}

/// Steps of a sum of exponentials in 1.
const STEPS: f32 = (1 << 20) as f32;

/// The oracle's `exp_for_code`.
#[derive(Clone, Copy)]
struct ExpForCode;

impl Formula for ExpForCode {
    #[inline(always)]
    fn at<N: Number>(self, x: N) -> N {
        let y = x * N::from(std::f32::consts::LOG2_E);
        let shifted = y + N::from(ROUND);
        let f = y - (shifted - N::from(ROUND));
        let p = N::from(4.169_875e-2).mul_add(f, 2.420_305_2e-1);
        let p = p.mul_add(f, 6.957_668e-1);
        let p = p.mul_add(f, 1.);
        x.below(-87., N::from(0.), p * shifted.power_of_two())
    }
}
