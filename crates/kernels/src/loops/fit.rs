//! Floats of a weight to codes in blocks: the scale of a group of inputs that leaves the least
//! squares of errors.
//!
//! Sums are of 32 lanes and then of pairs of them, so that each instruction set finds the same scale.

use half::f16;

use super::number::Number;
use super::rows::ROUND;
use crate::packed::blocks::{BlockScale, Blocks, INPUTS};

/// Scales that are tried, as shares of the one that leaves no value out of range.
const SHARES: [f32; 16] = [
    0.7, 0.73, 0.76, 0.79, 0.82, 0.85, 0.87, 0.89, 0.91, 0.93, 0.95, 0.97, 0.985, 1., 1.02, 1.04,
];

/// Ends of the range that are tried where codes have a zero point.
const ENDS: [f32; 7] = [0.76, 0.8, 0.84, 0.88, 0.92, 0.96, 1.];

/// How the values of a group become codes: `round(x / scale) + zero`, clamped.
#[derive(Clone, Copy)]
struct Grid {
    scale: f32,
    zero: f32,
    max: f32,
}

impl Grid {
    /// The code of each value.
    #[inline(always)]
    fn codes(self, xs: &[f32; INPUTS]) -> [f32; INPUTS] {
        let factor = if self.scale == 0. {
            0.
        } else {
            1. / self.scale
        };
        xs.map(|x| {
            let code = (x * factor + self.zero).within(0., self.max);
            (code + ROUND) - ROUND
        })
    }
}

/// Sums of squares over the values of a group.
#[derive(Clone, Copy)]
struct Sums {
    /// Of errors.
    error: f32,
    /// Of values by codes less zero, and of the squares of these.
    product: f32,
    square: f32,
}

/// The sums of a group by a grid.
#[inline(always)]
fn sums(values: &[f32], grid: Grid) -> Sums {
    let mut lanes = [[0f32; INPUTS]; 3];
    let mut take = |xs: &[f32; INPUTS]| {
        let codes = grid.codes(xs);
        for i in 0..INPUTS {
            let code = codes[i] - grid.zero;
            let error = xs[i] - code * grid.scale;
            lanes[0][i] += error * error;
            lanes[1][i] += xs[i] * code;
            lanes[2][i] += code * code;
        }
    };
    each_block(values, &mut take);
    let [error, product, square] = lanes.map(together);
    Sums {
        error,
        product,
        square,
    }
}

/// Calls `take` with each 32 values, the last filled up with zeros, which have no error.
#[inline(always)]
fn each_block(values: &[f32], mut take: impl FnMut(&[f32; INPUTS])) {
    let (blocks, rest) = values.as_chunks::<INPUTS>();
    blocks.iter().for_each(&mut take);
    if !rest.is_empty() {
        let mut block = [0.; INPUTS];
        block[..rest.len()].copy_from_slice(rest);
        take(&block);
    }
}

#[inline(always)]
fn together(mut lanes: [f32; INPUTS]) -> f32 {
    let mut width = INPUTS / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// The scale of a group of values in that format; 0 where all are.
#[inline(always)]
pub fn scale<N: Number>(format: Blocks, values: &[f32]) -> BlockScale {
    match format {
        Blocks::Int8 => {
            let max = values.iter().fold(0f32, |max, x| max.max(x.abs()));
            BlockScale {
                scale: f16::from_f32(max / 127.),
                offset: f16::ZERO,
            }
        }
        Blocks::Int4 => symmetric(values),
        Blocks::Int4ZeroPoint | Blocks::Int4Minimum => affine(values),
    }
}

/// The extreme becomes the first code or, with a negative scale, so does the other side's.
#[inline(always)]
fn symmetric(values: &[f32]) -> BlockScale {
    let max = values.iter().fold(0f32, |max, x| max.max(x.abs()));
    let (mut best, mut least) = (0., f32::INFINITY);
    for scale in SHARES
        .iter()
        .flat_map(|share| [max / 8. * share, max / -8. * share])
    {
        let grid = Grid {
            scale,
            zero: 8.,
            max: 15.,
        };
        let Sums {
            error,
            product,
            square,
        } = sums(values, grid);
        if error < least {
            // The best scale for these codes.
            let fitted = product / square;
            (best, least) = (if square > 0. { fitted } else { scale }, error);
        }
    }
    BlockScale {
        scale: f16::from_f32(best),
        offset: f16::ZERO,
    }
}

/// The ends of the range, 0 within it, become the first and the last code, the zero point an
/// integer.
#[inline(always)]
fn affine(values: &[f32]) -> BlockScale {
    let min = values.iter().fold(0f32, |min, x| min.min(*x));
    let max = values.iter().fold(0f32, |max, x| max.max(*x));
    let (mut best, mut least) = ((0., 0.), f32::INFINITY);
    for low in ENDS {
        for high in ENDS {
            let scale = (max * high - min * low) / 15.;
            let zero = if scale > 0. {
                (-min * low / scale).round_ties_even()
            } else {
                0.
            };
            let grid = Grid {
                scale,
                zero,
                max: 15.,
            };
            let Sums {
                error,
                product,
                square,
            } = sums(values, grid);
            if error < least {
                let fitted = if square > 0. { product / square } else { scale };
                (best, least) = ((fitted, zero), error);
            }
        }
    }
    BlockScale {
        scale: f16::from_f32(best.0),
        offset: f16::from_f32(best.1),
    }
}

/// The codes of up to 32 values by a scale of that format.
#[inline(always)]
pub fn codes<N: Number>(format: Blocks, values: &[f32], scale: BlockScale) -> [u8; INPUTS] {
    let offset = scale.offset.to_f32();
    let grid = Grid {
        scale: scale.scale.to_f32(),
        zero: match format {
            Blocks::Int4ZeroPoint | Blocks::Int4Minimum => offset,
            Blocks::Int4 | Blocks::Int8 => format.middle() as f32,
        },
        max: if format.bits() == 4 { 15. } else { 255. },
    };
    let mut block = [0.; INPUTS];
    block[..values.len()].copy_from_slice(values);
    grid.codes(&block).map(|code| code as u8)
}
