//! The oracle: what every kernel computes, in plain loops that are never optimised.

use half::{bf16, f16};

use crate::qparams::QParams;
use crate::qparams::activation::Arithmetic;

/// int8 weights in row order, `[n, k]`, and what their codes stand for, `[n]` each.
#[derive(Clone, Copy, Debug)]
pub struct Int8<'a> {
    /// Codes, `[n, k]`.
    pub codes: &'a [i8],
    /// The value of one step of a channel's codes.
    pub scales: &'a [f32],
    /// The code that stands for 0.0 in each channel.
    pub zero_points: &'a [i32],
}

/// The value of the codes of a row: `fma(code - shift, scale, offset)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    /// Subtracted from every code, exactly.
    pub shift: i32,
    /// The value of one step of a code.
    pub scale: f32,
    /// Added to every product, in one rounding with it.
    pub offset: f32,
}

/// A quantized row of activations.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// u8 codes, `[k]`.
    pub codes: Vec<u8>,
    /// The value of one step of a code; NaN if the row holds a NaN or an infinity.
    pub scale: f32,
    /// The code that stands for 0.0.
    pub zero_point: i32,
}

/// Codes of one row: `clamp(round(..), 0, 255)` as the [`Arithmetic`] says, half to even.
pub fn quantize_row(row: &[f32], qparams: QParams, arithmetic: Arithmetic) -> Row {
    let QParams { scale, zero_point } = qparams;
    let inv_scale = 1. / scale;
    let code = |x: &f32| {
        let code = match arithmetic {
            Arithmetic::PyTorch => x.mul_add(inv_scale, zero_point as f32).round_ties_even(),
            Arithmetic::OnnxRuntime => (x / scale).round_ties_even() + zero_point as f32,
        };
        code.clamp(0., 255.) as u8
    };
    match row.iter().all(|x| x.is_finite()) {
        true => Row {
            codes: row.iter().map(code).collect(),
            scale,
            zero_point,
        },
        false => Row {
            codes: vec![0; row.len()],
            scale: f32::NAN,
            zero_point: 0,
        },
    }
}

/// `out[m, n] = fma(sum_k (lhs - zero_point[m])[m, k] * (rhs - zero_point[n])[n, k],
/// scale[m] * scale[n], bias[n])`.
///
/// The sum is exact in i32; the product of the scales and the `fma` round once each, in f32.
pub fn linear(lhs: &[Row], rhs: Int8<'_>, bias: &[f32]) -> Vec<f32> {
    let mut out = Vec::with_capacity(lhs.len() * bias.len());
    for row in lhs {
        let k = row.codes.len();
        for (n, bias) in bias.iter().enumerate() {
            let mut acc = 0i32;
            for (code, weight) in row.codes.iter().zip(&rhs.codes[n * k..]) {
                let weight = i32::from(*weight) - rhs.zero_points[n];
                acc = acc.wrapping_add((i32::from(*code) - row.zero_point) * weight);
            }
            out.push((acc as f32).mul_add(row.scale * rhs.scales[n], *bias));
        }
    }
    out
}

/// `fma(code - shift, scale, offset)` of each code of a row.
pub fn dequantize_row(codes: &[u8], affine: Affine) -> Vec<f32> {
    let Affine {
        shift,
        scale,
        offset,
    } = affine;
    let value = |code: &u8| ((i32::from(*code) - shift) as f32).mul_add(scale, offset);
    codes.iter().map(value).collect()
}

/// `out[m, n] = sum_k lhs[m, k] * rhs[n, k] + bias[n]`, in f32.
///
/// The sum begins with 0 and takes one `fma` after another in the order of `k`; the bias is
/// added last. `lhs` is `[m, k]`, `rhs` `[n, k]` in row order.
pub fn linear_f16(lhs: &[f32], m: usize, rhs: &[f16], bias: &[f32]) -> Vec<f32> {
    let k = lhs.len().checked_div(m).unwrap_or(0);
    let mut out = Vec::with_capacity(m * bias.len());
    for m in 0..m {
        for (n, bias) in bias.iter().enumerate() {
            let pairs = lhs[m * k..][..k].iter().zip(&rhs[n * k..]);
            let sum = pairs.fold(0f32, |sum, (x, weight)| x.mul_add(weight.to_f32(), sum));
            out.push(sum + bias);
        }
    }
    out
}

/// `out[m, n] = sum_k lhs[m, k] * rhs[n, k] + bias[n]`, in f32, of activations that are rounded to
/// bfloat16 by [`round_bf16`].
///
/// The order is that of Intel's `tdpbf16ps`: of each 32 inputs, the products of the even ones and of
/// the odd ones are summed one after the other, each from 0, and the two sums added to each other, then
/// to what the inputs before gave; the bias is added last. A product of two bfloat16 is exact in f32.
/// `lhs` is `[m, k]`, `rhs` `[n, k]` in row order.
///
/// Where an intermediate sum is subnormal, an instruction set may take it as 0.
pub fn linear_bf16(lhs: &[f32], m: usize, rhs: &[bf16], bias: &[f32]) -> Vec<f32> {
    let k = lhs.len().checked_div(m).unwrap_or(0);
    let lhs: Vec<_> = lhs.iter().map(|x| round_bf16(*x)).collect();
    let mut out = Vec::with_capacity(m * bias.len());
    for m in 0..m {
        for (n, bias) in bias.iter().enumerate() {
            let blocks = lhs[m * k..][..k]
                .chunks(32)
                .zip(rhs[n * k..][..k].chunks(32));
            let sum = blocks.fold(0f32, |sum, (xs, weights)| {
                let mut sums = [0f32; 2];
                for (i, (x, weight)) in xs.iter().zip(weights).enumerate() {
                    sums[i % 2] = x.to_f32().mul_add(weight.to_f32(), sums[i % 2]);
                }
                sum + (sums[0] + sums[1])
            });
            out.push(sum + bias);
        }
    }
    out
}

/// A factor of a product in bfloat16: rounded half to even, and 0 where that is subnormal.
pub fn round_bf16(x: f32) -> bf16 {
    let rounded = bf16::from_f32(x);
    match rounded.is_finite() && !rounded.is_normal() {
        true => bf16::ZERO.copysign(rounded),
        false => rounded,
    }
}
