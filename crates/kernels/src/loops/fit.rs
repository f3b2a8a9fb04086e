//! Floats of a weight to codes in blocks: the scale of a group of inputs that leaves the least
//! squares of errors.
//!
//! Sums are of 32 lanes and then of pairs of them, so that each instruction set finds the same
//! scale.

use half::f16;

use super::number::{Number, filled_up, together};
use super::rows::ROUND;
use crate::qparams::blocks::{BlockScale, Blocks, INPUTS};

/// Scales that are tried, as shares of the one that leaves no value out of range.
const SHARES: [f32; 16] =
    [0.7, 0.73, 0.76, 0.79, 0.82, 0.85, 0.87, 0.89, 0.91, 0.93, 0.95, 0.97, 0.985, 1., 1.02, 1.04];

/// Ends of the range that are tried where codes have a zero point.
const ENDS: [f32; 7] = [0.76, 0.8, 0.84, 0.88, 0.92, 0.96, 1.];

/// How the values of a group become codes: `round(x / scale) + zero`, clamped.
#[derive(Clone, Copy)]
pub struct Quantizer {
    scale: f32,
    zero: f32,
    max: f32,
}

impl Quantizer {
    /// The quantizer of a scale of that format.
    #[inline(always)]
    pub fn new(format: Blocks, scale: BlockScale) -> Self {
        Self {
            scale: scale.scale.to_f32(),
            zero: if format.has_offsets() { scale.offset.to_f32() } else { format.middle() as f32 },
            max: if format.bits() == 4 { 15. } else { 255. },
        }
    }

    /// The code of a value, less zero; `inverse` is 1 / scale.
    #[inline(always)]
    pub fn step(self, x: f32, inverse: f32) -> f32 {
        let code = (x * inverse + self.zero).within(0., self.max);
        (code + ROUND) - ROUND - self.zero
    }

    /// The code of a step.
    #[inline(always)]
    pub fn code(self, step: f32) -> u8 {
        (step + self.zero) as u8
    }

    /// The value of a step.
    #[inline(always)]
    pub fn value(self, step: f32) -> f32 {
        step * self.scale
    }

    #[inline(always)]
    pub fn inverse(self) -> f32 {
        if self.scale == 0. { 0. } else { 1. / self.scale }
    }

    /// The sum of the squares of errors.
    #[inline(always)]
    fn error(self, values: &[f32], weights: impl ErrorWeights) -> f32 {
        let inverse = self.inverse();
        let mut squares = [0f32; INPUTS];
        each_block(values, weights, |xs, weights| {
            for i in 0..INPUTS {
                let error = xs[i] - self.step(xs[i], inverse) * self.scale;
                squares[i] += error * error * weights[i];
            }
        });
        together(squares, |a, b| a + b)
    }

    /// The best scale for the codes that values have by this one.
    #[inline(always)]
    fn fitted(self, values: &[f32], weights: impl ErrorWeights) -> f32 {
        let inverse = self.inverse();
        let (mut products, mut squares) = ([0f32; INPUTS], [0f32; INPUTS]);
        each_block(values, weights, |xs, weights| {
            for i in 0..INPUTS {
                let step = self.step(xs[i], inverse);
                products[i] += xs[i] * step * weights[i];
                squares[i] += step * step * weights[i];
            }
        });
        let square = together(squares, |a, b| a + b);
        if square > 0. { together(products, |a, b| a + b) / square } else { self.scale }
    }
}

/// The weight of each squared error.
pub trait ErrorWeights: Copy {
    /// The weights of 32 values from `start` on; beyond the last value they may be any.
    fn block(self, start: usize) -> [f32; INPUTS];
}

/// Equal weights.
#[derive(Clone, Copy)]
pub struct Equal;

impl ErrorWeights for Equal {
    #[inline(always)]
    fn block(self, _start: usize) -> [f32; INPUTS] {
        [1.; INPUTS]
    }
}

/// A weight for each value.
#[derive(Clone, Copy)]
pub struct Weighted<'a>(pub &'a [f32]);

impl ErrorWeights for Weighted<'_> {
    #[inline(always)]
    fn block(self, start: usize) -> [f32; INPUTS] {
        block_of(&self.0[start..])
    }
}

/// The first 32 values, or all and zeros, which have no error.
#[inline(always)]
fn block_of(values: &[f32]) -> [f32; INPUTS] {
    values.first_chunk().copied().unwrap_or_else(|| filled_up(values, 0.))
}

/// Calls `take` with each 32 values and their weights.
#[inline(always)]
fn each_block(
    values: &[f32],
    weights: impl ErrorWeights,
    mut take: impl FnMut(&[f32; INPUTS], &[f32; INPUTS]),
) {
    for start in (0..values.len()).step_by(INPUTS) {
        take(&block_of(&values[start..]), &weights.block(start));
    }
}

/// The scale of a group of values in that format; 0 where all values are.
#[inline(always)]
pub fn scale(format: Blocks, values: &[f32], weights: impl ErrorWeights) -> BlockScale {
    if format.has_offsets() {
        return affine(values, weights);
    }
    if format.bits() == 4 {
        return symmetric(values, weights);
    }
    let max = values.iter().fold(0f32, |max, x| max.max(x.abs()));
    BlockScale { scale: f16::from_f32(max / 127.), offset: f16::ZERO }
}

/// The scale of the least error without a zero point: of either sign, as there is one more code
/// below the middle than above.
#[inline(always)]
fn symmetric(values: &[f32], weights: impl ErrorWeights) -> BlockScale {
    let max = values.iter().fold(0f32, |max, x| max.max(x.abs()));
    let scales = SHARES.iter().flat_map(|share| [max / 8. * share, max / -8. * share]);
    let quantizers = scales.map(|scale| Quantizer { scale, zero: 8., max: 15. });
    let best = best(quantizers, values, weights);
    BlockScale { scale: f16::from_f32(best.fitted(values, weights)), offset: f16::ZERO }
}

/// The scale and the integer zero point of the least error: the ends of the range, with 0 within
/// it, become the first and the last code.
#[inline(always)]
fn affine(values: &[f32], weights: impl ErrorWeights) -> BlockScale {
    let min = values.iter().fold(0f32, |min, x| min.min(*x));
    let max = values.iter().fold(0f32, |max, x| max.max(*x));
    let ends = ENDS.iter().flat_map(|low| ENDS.map(|high| (min * low, max * high)));
    let quantizers = ends.map(|(min, max)| {
        let scale = (max - min) / 15.;
        let zero = if scale > 0. { -min / scale } else { 0. };
        Quantizer { scale, zero: (zero + ROUND) - ROUND, max: 15. }
    });
    let best = best(quantizers, values, weights);
    BlockScale {
        scale: f16::from_f32(best.fitted(values, weights)),
        offset: f16::from_f32(best.zero),
    }
}

/// The first quantizer of the least error.
#[inline(always)]
fn best(
    quantizers: impl Iterator<Item = Quantizer>,
    values: &[f32],
    weights: impl ErrorWeights,
) -> Quantizer {
    let none = Quantizer { scale: 0., zero: 0., max: 0. };
    let mut best = (none, f32::INFINITY);
    for quantizer in quantizers {
        let error = quantizer.error(values, weights);
        if error < best.1 {
            best = (quantizer, error);
        }
    }
    best.0
}

/// The codes of up to 32 values by a scale of that format.
#[inline(always)]
pub fn codes(format: Blocks, values: &[f32], scale: BlockScale) -> [u8; INPUTS] {
    let quantizer = Quantizer::new(format, scale);
    let inverse = quantizer.inverse();
    block_of(values).map(|x| quantizer.code(quantizer.step(x, inverse)))
}
