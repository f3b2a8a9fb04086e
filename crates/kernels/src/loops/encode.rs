//! Floats of weights to codes, by scales that are given, and to halves.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::convert;
use super::number::Number;
use super::rows::ROUND;
use crate::qparams::Rounding;

/// How values of a channel become codes: `round(x / scale + offset) + zero_point`, clamped to the
/// range, as [`quantize`](crate::qparams::quantize) and
/// [`quantize_float`](crate::qparams::quantize_float) say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coding {
    /// The real difference between two successive codes.
    pub scale: f32,
    /// The zero point if it is a float, else 0.
    pub offset: f32,
    /// The zero point if it is an integer, else 0.
    pub zero_point: i32,
    /// Min and max code.
    pub range: [i32; 2],
    /// How a value and the scale become a code.
    pub rounding: Rounding,
}

impl Coding {
    /// Adds `by` to each code.
    #[must_use]
    pub fn moved(self, by: i32) -> Self {
        Self { zero_point: self.zero_point + by, range: self.range.map(|code| code + by), ..self }
    }

    /// The distance of a value's code from the zero point.
    ///
    /// The bounds are integers, so clamping before rounding gives what clamping after it does.
    #[inline(always)]
    fn distance(self, steps: f32) -> i32 {
        let [low, high] = self.range.map(|code| (code - self.zero_point) as f32);
        let rounded = steps.within(low, high) + ROUND;
        rounded.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed()
    }
}

/// Values taken at a time: two of the widest registers.
const CHUNK: usize = 32;

/// Writes the low byte of each value's code; returns the sum of the codes less their zero point,
/// which may wrap.
#[inline(always)]
pub fn encode(values: &[f32], coding: Coding, codes: &mut [u8]) -> i32 {
    let inv_scale = 1. / coding.scale;
    match coding.rounding {
        Rounding::Multiply => each(values, coding, codes, |x| x * inv_scale + coding.offset),
        Rounding::Divide => each(values, coding, codes, |x| x / coding.scale + coding.offset),
    }
}

#[inline(always)]
fn each(values: &[f32], coding: Coding, codes: &mut [u8], steps: impl Fn(f32) -> f32) -> i32 {
    let mut sums = [0i32; CHUNK];
    let take = |x: f32, code: &mut u8, sum: &mut i32| {
        let distance = coding.distance(steps(x));
        *sum = sum.wrapping_add(distance);
        *code = (distance + coding.zero_point) as u8;
    };
    let (values, values_rest) = values.as_chunks::<CHUNK>();
    let (codes, codes_rest) = codes.as_chunks_mut::<CHUNK>();
    for (values, codes) in values.iter().zip(codes) {
        for ((x, code), sum) in values.iter().zip(codes).zip(&mut sums) {
            take(*x, code, sum);
        }
    }
    for ((x, code), sum) in values_rest.iter().zip(codes_rest).zip(&mut sums) {
        take(*x, code, sum);
    }
    sums.into_iter().fold(0, i32::wrapping_add)
}

/// The sum of the distances of all codes from the zero point.
#[inline(always)]
pub fn distances(values: &[f32], coding: Coding) -> i64 {
    let inv_scale = 1. / coding.scale;
    let steps = |x: f32| match coding.rounding {
        Rounding::Multiply => x * inv_scale + coding.offset,
        Rounding::Divide => x / coding.scale + coding.offset,
    };
    let distances = values.iter().map(|x| coding.distance(steps(*x)));
    distances.map(|distance| i64::from(distance.abs())).sum()
}

/// Values that are clamped before they are converted together.
const PART: usize = 512;

/// A float of two bytes that weights can have.
pub trait Half: Copy + Send + Sync + Default {
    const MAX: f32;
    /// The least number with all bits of precision.
    const MIN_POSITIVE: f32;

    /// Writes each value, which is within the range, rounded half to even.
    fn narrow(values: &[f32], halves: &mut [Self]);
    /// The bytes that a product reads.
    fn bytes(self) -> [u8; 2];
}

impl Half for f16 {
    const MAX: f32 = f16::MAX.to_f32_const();
    const MIN_POSITIVE: f32 = f16::MIN_POSITIVE.to_f32_const();

    #[inline(always)]
    fn narrow(values: &[f32], halves: &mut [Self]) {
        halves.convert_from_f32_slice(values);
    }

    #[inline(always)]
    fn bytes(self) -> [u8; 2] {
        self.to_le_bytes()
    }
}

impl Half for bf16 {
    const MAX: f32 = bf16::MAX.to_f32_const();
    const MIN_POSITIVE: f32 = bf16::MIN_POSITIVE.to_f32_const();

    #[inline(always)]
    fn narrow(values: &[f32], halves: &mut [Self]) {
        convert::narrow_bf16(values, halves);
    }

    #[inline(always)]
    fn bytes(self) -> [u8; 2] {
        convert::flushed(self.to_bits()).to_le_bytes()
    }
}

/// Writes each value, which is finite, as a half; returns how many were beyond its range, and
/// clamped.
#[inline(always)]
pub fn halve<H: Half>(values: &[f32], halves: &mut [H]) -> usize {
    let max = H::MAX;
    let mut saturated = 0;
    let mut part = [0.; PART];
    for (values, halves) in values.chunks(PART).zip(halves.chunks_mut(PART)) {
        let mut beyond = 0u32;
        for (x, clamped) in values.iter().zip(&mut part) {
            beyond += u32::from(x.abs() > max);
            *clamped = x.within(-max, max);
        }
        H::narrow(&part[..values.len()], halves);
        saturated += beyond as usize;
    }
    saturated
}
