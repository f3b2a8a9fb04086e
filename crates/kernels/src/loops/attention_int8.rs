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
//! by another maximum's, and the sum of the exponentials is one of integers: a query's result
//! depends neither on blocks nor on the keys that it does not see.

use super::encode::{Coding, encode};
use super::number::{Formula, Number};
use super::product::Row;
use super::rows::{self, ROUND};
use crate::packed::HeadsMut;
use crate::qparams::{Rounding, symmetric_row};

/// Products of codes that a sum in i32 has room for: `65,536 * 255 * 127 < 2^31`.
pub const MAX_TERMS: usize = 1 << 16;

/// Scores that are taken at a time: two of the widest registers.
pub const BLOCK: usize = 32;

/// The codes of a row.
struct Coded {
    /// The sum of the codes.
    sum: i32,
    /// NaN for a row that is not finite, whose codes are zeros.
    scale: f32,
}

/// Writes the codes of a row, each plus `shift`, as the oracle's `quantize_symmetric_row` says.
#[inline(always)]
fn symmetric(row: &[f32], shift: u8, codes: &mut [u8]) -> Coded {
    let bits = |x: &f32| x.to_bits() & !(1 << 31);
    let max = row.iter().fold(0, |max, x| bits(x).max(max));
    if max >= f32::INFINITY.to_bits() {
        codes.fill(shift);
        return Coded {
            sum: 0,
            scale: f32::NAN,
        };
    }
    let scale = symmetric_row(f32::from_bits(max));
    let coding = Coding {
        scale,
        offset: 0.,
        zero_point: 0,
        range: [-127, 127],
        rounding: Rounding::Multiply,
    };
    let sum = encode(row, coding.moved(shift.into()), codes);
    Coded { sum, scale }
}

/// Added to the codes of queries, which are the unsigned side of a product.
const SHIFT: u8 = 128;

/// Writes the codes of a query, in whole groups; `scale` is that of the scores.
#[inline(always)]
pub fn query(row: &[f32], scale: f32, groups: &mut [[u8; 4]]) -> Row {
    let (codes, behind) = groups.as_flattened_mut().split_at_mut(row.len());
    // Multiplied by what is behind the last input of a key.
    behind.fill(0);
    let Coded { sum, scale: of_row } = symmetric(row, SHIFT, codes);
    Row {
        scale: of_row * scale,
        zero_point: SHIFT.into(),
        sum: sum.wrapping_add(i32::from(SHIFT).wrapping_mul(row.len() as i32)),
    }
}

/// Writes the codes of a key.
///
/// # Safety
/// No other thread writes or reads this key.
#[inline(always)]
pub unsafe fn key(row: &[f32], place: [usize; 2], groups: &mut [[u8; 4]], keys: HeadsMut<'_>) {
    let (codes, behind) = groups.as_flattened_mut().split_at_mut(row.len());
    behind.fill(0);
    let Coded { sum, scale } = symmetric(row, keys.shift, codes);
    // SAFETY: the contract is the same.
    unsafe { keys.put_channel(place[0], place[1], groups, (sum, scale)) };
}

/// Writes the codes of a row of values; returns its scale.
#[inline(always)]
pub fn value(row: &[f32], shift: u8, codes: &mut [u8]) -> f32 {
    symmetric(row, shift, codes).scale
}

/// Adds a mask to scores; minus infinity excludes, whatever the score is.
#[inline(always)]
pub fn add_mask(scores: &mut [f32], mask: &[f32]) {
    for (score, add) in scores.iter_mut().zip(mask) {
        let excluded = *add == f32::NEG_INFINITY;
        *score = if excluded { *add } else { *score + *add };
    }
}

/// Replaces the scores of a query, in whole blocks, by the codes of its weights; `scales` are those
/// of the values. Returns what makes a sum of codes times values a result.
#[inline(always)]
pub fn weights<N: Number>(
    scores: &mut [f32],
    scales: &[f32],
    codes: &mut [u8],
    of_sum: bool,
) -> Row {
    let blocks = scores.as_chunks_mut::<BLOCK>().0;
    let mut max = [f32::NEG_INFINITY; BLOCK];
    for block in &*blocks {
        let block = *block;
        for (max, score) in max.iter_mut().zip(block) {
            *max = if score > *max { score } else { *max };
        }
    }
    let greater = |a: f32, b: f32| if a > b { a } else { b };
    let max = rows::together(max, greater);
    // Where all is excluded: e^(-inf - 0) is 0, e^(-inf + inf) were NaN.
    let origin = if max == f32::NEG_INFINITY { 0. } else { max };

    let mut steps = [0u32; BLOCK];
    let mut greatest = [0u32; BLOCK];
    let count = blocks.len() as u32;
    for (block, scales) in blocks.iter_mut().zip(scales.as_chunks::<BLOCK>().0) {
        let scores = *block;
        let exps = N::map_from(ExpForCode, scores, [origin; BLOCK]);
        // Steps of 2^-20, in the low bits.
        let rounded = N::fma_each(exps, [(1 << 20) as f32; BLOCK], [ROUND; BLOCK]);
        let mut weights = exps;
        for i in 0..BLOCK {
            steps[i] = steps[i].wrapping_add(rounded[i].to_bits());
            let weight = exps[i] * scales[i];
            // The scale of an excluded key may be NaN.
            let excluded = scores[i] == f32::NEG_INFINITY;
            weights[i] = if excluded { 0. } else { weight };
            // By their bits, of which NaN has the greatest.
            greatest[i] = greatest[i].max(weights[i].to_bits());
        }
        *block = weights;
    }
    let greatest = f32::from_bits(greatest.into_iter().fold(0, u32::max));
    // 2^11 blocks of at most 2^20 steps.
    let origin = ROUND.to_bits().wrapping_mul(count);
    let steps = steps
        .iter()
        .map(|steps| u64::from(steps.wrapping_sub(origin)));
    let z = steps.sum::<u64>() as f32 * 1. / (1 << 20) as f32;

    let (factor, to_code) = if greatest == 0. {
        (0., 0.)
    } else {
        (greatest / 255. / z, 255. / greatest)
    };
    let code = |block: [f32; BLOCK]| N::fma_each(block, [to_code; BLOCK], [ROUND; BLOCK]);
    let (whole, rest) = codes.as_chunks_mut::<BLOCK>();
    for (codes, block) in whole.iter_mut().zip(&*blocks) {
        for (to, code) in codes.iter_mut().zip(code(*block)) {
            *to = code.to_bits() as u8;
        }
    }
    if let Some(block) = blocks.get(whole.len()) {
        for (to, code) in rest.iter_mut().zip(code(*block)) {
            *to = code.to_bits() as u8;
        }
    }
    let written = (blocks.len() * BLOCK).min(codes.len());
    codes[written..].fill(0);
    Row {
        scale: factor,
        zero_point: 0,
        sum: if of_sum { rows::sum(codes) } else { 0 },
    }
}

/// The oracle's `exp_for_code`.
#[derive(Clone, Copy)]
struct ExpForCode;

impl Formula for ExpForCode {
    #[inline(always)]
    fn at<N: Number>(self, x: N) -> N {
        let y = x * N::from(std::f32::consts::LOG2_E);
        let shifted = y + N::from(ROUND);
        let f = y - (shifted - N::from(ROUND));
        let p = N::from(9.782_912e-3).mul_add(f, 5.597_688_3e-2);
        let p = p.mul_add(f, 2.402_071e-1);
        let p = p.mul_add(f, 6.931_136e-1);
        let p = p.mul_add(f, 1.);
        x.below(-87., N::from(0.), p * shifted.power_of_two())
    }
}
