//! The oracle: what every kernel computes, in plain loops that are never optimised.

use half::{bf16, f16};

use crate::qparams::activation::Arithmetic;
use crate::qparams::blocks::{BlockScale, Blocks, INPUTS};
use crate::qparams::{QParams, symmetric_row};

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
pub struct AffineRow {
    /// u8 codes, `[k]`.
    pub codes: Vec<u8>,
    /// The value of one step of a code; NaN if the row holds a NaN or an infinity.
    pub scale: f32,
    /// The code that stands for 0.0.
    pub zero_point: i32,
}

/// Codes of one row: `clamp(round(..), 0, 255)` as the [`Arithmetic`] says, half to even.
pub fn quantize_row(row: &[f32], qparams: QParams, arithmetic: impl Into<Arithmetic>) -> AffineRow {
    let arithmetic = arithmetic.into();
    let QParams { scale, zero_point } = qparams;
    let inv_scale = 1. / scale;
    let code = |x: &f32| {
        let code = match arithmetic {
            Arithmetic::PyTorch => x.mul_add(inv_scale, zero_point as f32).round_ties_even(),
            Arithmetic::OnnxRuntime => (x / scale).round_ties_even() + zero_point as f32,
        };
        code.clamp(0., 255.) as u8
    };
    if row.iter().all(|x| x.is_finite()) {
        AffineRow { codes: row.iter().map(code).collect(), scale, zero_point }
    } else {
        AffineRow { codes: vec![0; row.len()], scale: f32::NAN, zero_point: 0 }
    }
}

/// `lhs` (`[m, k]`) times f32 weights `rhs` (`[n, k]`) plus `bias`, `[m, n]`: for each part of
/// the inputs, of 384 or fewer, the sums of every eighth of them, each a chain of `fma` from 0, are
/// added one after another.
pub fn linear_f32(lhs: &[f32], m: usize, rhs: &[f32], bias: &[f32]) -> Vec<f32> {
    let k = lhs.len() / m.max(1);
    // All parts about equally long, and all but the last of whole eights.
    let part = k.div_ceil(k.div_ceil(384).max(1)).next_multiple_of(8);
    let mut out = Vec::with_capacity(m * bias.len());
    for i in 0..m {
        for (j, bias) in bias.iter().enumerate() {
            let mut total = None;
            for start in (0..k).step_by(part.max(1)) {
                let end = k.min(start + part);
                for first in start..end.min(start + 8) {
                    let inputs = (first..end).step_by(8);
                    let sum =
                        inputs.fold(0f32, |sum, l| lhs[i * k + l].mul_add(rhs[j * k + l], sum));
                    total = Some(total.map_or(sum, |total| total + sum));
                }
            }
            out.push(total.map_or(*bias, |total| total + bias));
        }
    }
    out
}

/// `out[m, n] = fma(sum_k (lhs - zero_point[m])[m, k] * (rhs - zero_point[n])[n, k],
/// scale[m] * scale[n], bias[n])`.
///
/// The sum is exact in i32; the product of the scales and the `fma` round once each, in f32.
pub fn linear(lhs: &[AffineRow], rhs: Int8<'_>, bias: &[f32]) -> Vec<f32> {
    let mut out = Vec::with_capacity(lhs.len() * bias.len());
    for row in lhs {
        for (n, bias) in bias.iter().enumerate() {
            out.push((sum(row, rhs, n) as f32).mul_add(row.scale * rhs.scales[n], *bias));
        }
    }
    out
}

/// The sum of a row's products with an output channel's weights.
fn sum(row: &AffineRow, rhs: Int8<'_>, channel: usize) -> i32 {
    let weights = &rhs.codes[channel * row.codes.len()..];
    let products = row.codes.iter().zip(weights).map(|(code, weight)| {
        let weight = i32::from(*weight) - rhs.zero_points[channel];
        (i32::from(*code) - row.zero_point) * weight
    });
    products.fold(0, i32::wrapping_add)
}

/// A convolution: `[windows, n]`, where each window reads a position, or padding, by each tap.
///
/// A result begins with `bias[n]` and takes the taps in order: [`linear`] of the tap's position and
/// its weights, `[n, k]` of `rhs`, `[taps, n, k]`, with the result so far as the bias. Padding
/// changes nothing. With `exact` sums, positions and taps share their scales, and the sums of all
/// taps are added in i32.
pub fn windows(
    positions: &[AffineRow],
    windows: &[Vec<Option<usize>>],
    rhs: Int8<'_>,
    bias: &[f32],
    exact: bool,
) -> Vec<f32> {
    let n = bias.len();
    let result = |taps: &[Option<usize>], channel: usize| {
        let rows = taps.iter().enumerate().filter_map(|(tap, position)| {
            let row = &positions[(*position)?];
            Some((sum(row, rhs, tap * n + channel), row.scale, tap))
        });
        if exact {
            let total = rows.reduce(|(total, of_all, _), (sum, scale, tap)| {
                let scale = if of_all.is_nan() { of_all } else { scale };
                (total.wrapping_add(sum), scale, tap)
            });
            return total.map_or(bias[channel], |(total, scale, _)| {
                (total as f32).mul_add(scale * rhs.scales[channel], bias[channel])
            });
        }
        rows.fold(bias[channel], |result, (sum, scale, tap)| {
            (sum as f32).mul_add(scale * rhs.scales[tap * n + channel], result)
        })
    };
    let channels = |taps| (0..n).map(move |channel| result(taps, channel));
    windows.iter().flat_map(|taps| channels(taps)).collect()
}

/// Weights in row order, `[n, k]`, with a scale for each block of 32 inputs.
#[derive(Clone, Copy, Debug)]
pub struct InBlocks<'a> {
    /// The meaning of the codes.
    pub format: Blocks,
    /// Codes, `[n, k]`.
    pub codes: &'a [u8],
    /// `[n, blocks]`; the last block of a channel may have fewer inputs.
    pub scales: &'a [BlockScale],
    /// The numbers by which all values of a channel are multiplied, `[n]`.
    pub factors: &'a [f32],
}

/// `out[m, n] = fma(sum, factor[n], bias[n])` of activations that become codes by
/// [`quantize_symmetric_row`]: block by block, or with `per_row` row by row, with a scale each.
///
/// The sum begins with 0 and takes one `fma(total, scale_w * scale_x, sum)` a block in the order of
/// inputs, where `total` is `sum x (code - middle)`, exact in i32. With offsets, a second follows
/// it: `fma(sum x, addend * scale_x, sum)`, where the addend is `-(scale_w * zero_point)` or the
/// minimum. `lhs` is `[m, k]`.
pub fn linear_blocks(
    lhs: &[f32],
    m: usize,
    per_row: bool,
    rhs: InBlocks<'_>,
    bias: &[f32],
) -> Vec<f32> {
    let k = lhs.len().checked_div(m).unwrap_or(0);
    let (blocks, format) = (k.div_ceil(INPUTS), rhs.format);
    let mut out = Vec::with_capacity(m * bias.len());
    for m in 0..m {
        let inputs_of_scale = if per_row { k.max(1) } else { INPUTS };
        let parts = lhs[m * k..][..k].chunks(inputs_of_scale);
        let parts: Vec<_> = parts.map(quantize_symmetric_row).collect();
        let in_blocks = parts.iter().flat_map(|part| {
            let codes = part.codes.chunks(INPUTS);
            codes.map(|codes| (codes, part.scale))
        });
        let xs: Vec<_> = in_blocks.collect();
        for (n, bias) in bias.iter().enumerate() {
            let codes = rhs.codes[n * k..][..k].chunks(INPUTS);
            let mut sum = 0f32;
            for (((xs, scale_x), codes), scale) in
                xs.iter().zip(codes).zip(&rhs.scales[n * blocks..])
            {
                let (step, offset) = (scale.scale.to_f32(), scale.offset.to_f32());
                let pairs = xs.iter().zip(codes);
                let product =
                    |(x, code): (&i8, &u8)| i32::from(*x) * (i32::from(*code) - format.middle());
                let total: i32 = pairs.map(product).sum();
                sum = (total as f32).mul_add(step * scale_x, sum);
                if format.has_offsets() {
                    let of_xs: i32 = xs.iter().map(|x| i32::from(*x)).sum();
                    let addend = format.addend(step, offset);
                    sum = (of_xs as f32).mul_add(addend * scale_x, sum);
                }
            }
            out.push(sum.mul_add(rhs.factors[n], *bias));
        }
    }
    out
}

/// `(scale * (code - middle) + addend) * factor` of each code of a channel, by the format of its
/// blocks.
pub fn dequantize_blocks(
    format: Blocks,
    codes: &[u8],
    scales: &[BlockScale],
    factor: f32,
) -> Vec<f32> {
    let mut values = Vec::with_capacity(codes.len());
    for (codes, scale) in codes.chunks(INPUTS).zip(scales) {
        let (step, offset) = (scale.scale.to_f32(), scale.offset.to_f32());
        let code = |code: &u8| (i32::from(*code) - format.middle()) as f32;
        let value = |c: &u8| (step * code(c) + format.addend(step, offset)) * factor;
        values.extend(codes.iter().map(value));
    }
    values
}

/// `fma(code - shift, scale, offset)` of each code of a row.
pub fn dequantize_row(codes: &[u8], affine: Affine) -> Vec<f32> {
    let Affine { shift, scale, offset } = affine;
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
/// The order is Intel's, of `tdpbf16ps`: of each 32 inputs, the products of the even ones and of
/// the odd ones are summed one after the other, each from 0, and the two sums added to each other,
/// then to what the inputs before gave; the bias is added last. A product of two bfloat16 is exact
/// in f32. `lhs` is `[m, k]`, `rhs` `[n, k]` in row order.
///
/// Where an intermediate sum is subnormal, an instruction set may take it as 0.
pub fn linear_bf16(lhs: &[f32], m: usize, rhs: &[bf16], bias: &[f32]) -> Vec<f32> {
    let k = lhs.len().checked_div(m).unwrap_or(0);
    let lhs: Vec<_> = lhs.iter().map(|x| round_bf16(*x)).collect();
    let mut out = Vec::with_capacity(m * bias.len());
    for m in 0..m {
        for (n, bias) in bias.iter().enumerate() {
            let pairs = lhs[m * k..][..k].iter().zip(&rhs[n * k..]);
            let sum = add_blocks(0., pairs.map(|(x, weight)| (x.to_f32(), weight.to_f32())));
            out.push(sum + bias);
        }
    }
    out
}

/// The products of pairs in the order of [`linear_bf16`], added to `sum`.
fn add_blocks(sum: f32, pairs: impl Iterator<Item = (f32, f32)>) -> f32 {
    let pairs: Vec<_> = pairs.collect();
    pairs.chunks(32).fold(sum, |sum, pairs| {
        let mut sums = [0f32; 2];
        for (i, (a, b)) in pairs.iter().enumerate() {
            sums[i % 2] = a.mul_add(*b, sums[i % 2]);
        }
        sum + (sums[0] + sums[1])
    })
}

/// Keys of which the weights and the weighted values are taken together.
const CHUNK: usize = 128;

/// Attention of one query: `softmax(q k^T scale + mask) v`, `[value_dim]`.
///
/// `q` is `[head_dim]`, `k` `[keys, head_dim]`, `v` `[keys, value_dim]` and `mask` `[keys]`. A key
/// whose score is minus infinity, as a mask of that makes it whatever `k` holds, is excluded:
/// nothing of it reaches the result. A query without a key gives zeros.
///
/// Each 128 keys give first their scores, then the greatest score so far, `m`, and weights
/// `e^(score - m)`, exactly 0 below e^-87; the sums of earlier keys are multiplied by
/// `e^(old m - m)`. Products are summed by one `fma` after another from 0 on. Values that are not
/// finite are added to that by themselves, so that where one is excluded no `0 * inf` is. The
/// quotient by the sum of the weights is a product with its reciprocal.
pub fn attention(q: &[f32], k: &[f32], v: &[f32], mask: &[f32], scale: f32) -> Vec<f32> {
    let factors = FactorArithmetic {
        round: |x| x,
        sum: |[before, keep], pairs| {
            let fma = |sum, (a, b): &(f32, f32)| a.mul_add(*b, sum);
            before.mul_add(keep, pairs.iter().fold(0f32, fma))
        },
    };
    factors.attention([q, k, v], mask, scale)
}

/// [`attention`] of factors that are rounded to bfloat16 by [`round_bf16`]: queries, keys, weights
/// and values.
///
/// Products are summed in the order of [`linear_bf16`], with the earlier sum as the first
/// term. Where an intermediate sum is subnormal, an instruction set may take it as 0.
pub fn attention_bf16(q: &[f32], k: &[f32], v: &[f32], mask: &[f32], scale: f32) -> Vec<f32> {
    let factors = FactorArithmetic {
        round: |x| round_bf16(x).to_f32(),
        sum: |[before, keep], pairs| add_blocks(before * keep, pairs.iter().copied()),
    };
    factors.attention([q, k, v], mask, scale)
}

/// A row of queries, keys or values as codes: `scale * code`.
#[derive(Clone, Debug, PartialEq)]
pub struct SymmetricRow {
    /// Codes within +-127.
    pub codes: Vec<i8>,
    /// The value of one step of a code; NaN if the row holds a NaN or an infinity.
    pub scale: f32,
}

/// Codes of one row: `round(x * (1 / scale))`, half to even, by the scale of
/// [`symmetric_row`].
pub fn quantize_symmetric_row(row: &[f32]) -> SymmetricRow {
    let max = row.iter().fold(0f32, |max, x| max.max(x.abs()));
    let scale = symmetric_row(max);
    if row.iter().all(|x| x.is_finite()) {
        SymmetricRow { codes: row.iter().map(|x| rounded(*x, 1. / scale) as i8).collect(), scale }
    } else {
        SymmetricRow { codes: vec![0; row.len()], scale: f32::NAN }
    }
}

/// The integer next to a product, half to even; the product is exact in f64.
fn rounded(x: f32, factor: f32) -> i32 {
    (f64::from(x) * f64::from(factor)).round_ties_even() as i32
}

/// [`attention`] of factors in 8 bits: rows of queries, keys and values by
/// [`quantize_symmetric_row`], weights as u8.
///
/// A score is `sum q k * (scale_q * scale * scale_k) + mask`, the sum exact in i32; with the
/// greatest of them, `m`, a weight is `w = e^(score - m) * scale_v` and its code
/// `round(w * (255 / max w))`. The result is `sum code * v * (max w / 255 / z)`, the sum exact in
/// i32, where `z` is the sum of `e^(score - m)`, each rounded to a multiple of 2^-20: an exact
/// sum, too. So nothing depends on the order or the number of the keys that are excluded.
///
/// Keys and inputs are at most [`MAX_TERMS`](crate::MAX_TERMS), so that sums are within i32.
///
/// A row that holds a NaN or an infinity has a scale of NaN: the query, or each query that sees
/// the key, is NaN throughout. A query without a key gives zeros.
pub fn attention_int8(q: &[f32], k: &[f32], v: &[f32], mask: &[f32], scale: f32) -> Vec<f32> {
    let value_dim = v.len().checked_div(mask.len()).unwrap_or(0);
    let rows = |of: &[f32], width: usize| -> Vec<_> {
        let row = |key: usize| quantize_symmetric_row(&of[key * width..][..width]);
        (0..mask.len()).map(row).collect()
    };
    let (keys, values) = (rows(k, q.len()), rows(v, value_dim));
    let q = quantize_symmetric_row(q);
    let score = |(key, added): (&SymmetricRow, &f32)| {
        let pairs = q.codes.iter().zip(&key.codes);
        let sum: i32 = pairs.map(|(a, b)| i32::from(*a) * i32::from(*b)).sum();
        match *added {
            f32::NEG_INFINITY => f32::NEG_INFINITY,
            added => sum as f32 * (q.scale * scale * key.scale) + added,
        }
    };
    let scores: Vec<f32> = keys.iter().zip(mask).map(score).collect();
    let greater = |max: f32, score: &f32| if *score > max { *score } else { max };
    let max = scores.iter().fold(f32::NEG_INFINITY, greater);
    let origin = if max == f32::NEG_INFINITY { 0. } else { max };
    let exps: Vec<f32> = scores.iter().map(|s| exp_for_code(s - origin)).collect();
    let steps = exps.iter().map(|e| rounded(*e, 2f32.powi(20)) as u64);
    let z = steps.sum::<u64>() as f32 * 2f32.powi(-20);

    let weight = |key: usize| match scores[key] {
        f32::NEG_INFINITY => 0.,
        _ => exps[key] * values[key].scale,
    };
    let weights: Vec<f32> = (0..mask.len()).map(weight).collect();
    // A NaN has the greatest bits.
    let greatest = weights.iter().map(|weight| weight.to_bits()).max();
    let greatest = f32::from_bits(greatest.unwrap_or(0));
    if greatest == 0. {
        return vec![0.; value_dim];
    }
    let codes: Vec<_> = weights.iter().map(|w| rounded(*w, 255. / greatest)).collect();
    let sum = |column: usize| -> i32 {
        let pairs = codes.iter().zip(&values);
        pairs.map(|(code, value)| code * i32::from(value.codes[column])).sum()
    };
    let factor = greatest / 255. / z;
    (0..value_dim).map(|column| (sum(column) as f32).mul_add(factor, 0.)).collect()
}

/// `e^x` of an `x` that is 0 or less, for a weight of 8 bits: by `x log2 e = n + f` and a
/// polynomial of degree 3 for `2^f`, within 2^-11 of its value; exactly 1 of 0, exactly 0 below
/// -87.
fn exp_for_code(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.;
    if x < -87. {
        return 0.;
    }
    let y = x * std::f32::consts::LOG2_E;
    let shifted = y + ROUND;
    let f = y - (shifted - ROUND);
    let p = 4.169_875e-2f32.mul_add(f, 2.420_305_2e-1);
    let p = p.mul_add(f, 6.957_668e-1);
    let p = p.mul_add(f, 1.);
    p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23))
}

/// How attention rounds its factors, and adds products of them.
struct FactorArithmetic {
    round: fn(f32) -> f32,
    sum: Sum,
}

/// `before * keep` and the products of pairs, in the order of their dtype.
type Sum = fn([f32; 2], &[(f32, f32)]) -> f32;

impl FactorArithmetic {
    fn attention(&self, [q, k, v]: [&[f32]; 3], mask: &[f32], scale: f32) -> Vec<f32> {
        let Self { round, sum } = self;
        let (head_dim, value_dim) = (q.len(), v.len().checked_div(mask.len()).unwrap_or(0));
        let score = |key: usize| {
            let pair = |d: usize| (round(k[key * head_dim + d]), round(q[d] * scale));
            let pairs: Vec<_> = (0..head_dim).map(pair).collect();
            match mask[key] {
                f32::NEG_INFINITY => f32::NEG_INFINITY,
                added => sum([0.; 2], &pairs) + added,
            }
        };
        let scores: Vec<f32> = (0..mask.len()).map(score).collect();

        let (mut max, mut total, mut sums) = (f32::NEG_INFINITY, 0f32, vec![0f32; value_dim]);
        for (chunk, scores) in scores.chunks(CHUNK).enumerate() {
            let greater = |max: f32, score: &f32| if *score > max { *score } else { max };
            let old = max;
            max = scores.iter().fold(max, greater);
            let origin = if max == f32::NEG_INFINITY { 0. } else { max };
            let weights: Vec<f32> = scores.iter().map(|s| exp_below(s - origin)).collect();
            let keep = exp_below(old - origin);
            let of_chunk = weights.iter().fold(0f32, |sum, weight| sum + weight);
            total = total.mul_add(keep, of_chunk);
            for (column, to) in sums.iter_mut().enumerate() {
                let value = |key: usize| round(v[(chunk * CHUNK + key) * value_dim + column]);
                let finite = |key: usize| match value(key) {
                    value if value.is_finite() => value,
                    _ => 0.,
                };
                let pairs = weights.iter().enumerate();
                let pairs: Vec<_> = pairs.map(|(key, w)| (finite(key), round(*w))).collect();
                *to = sum([*to, keep], &pairs);
                for (key, weight) in weights.iter().enumerate() {
                    if !value(key).is_finite() && scores[key] != f32::NEG_INFINITY {
                        *to += weight * value(key);
                    }
                }
            }
        }
        let factor = if total == 0. { 0. } else { 1. / total };
        // A sum of -0.0 becomes 0.0: the sign of a zero may come from an excluded value.
        sums.into_iter().map(|sum| sum.mul_add(factor, 0.)).collect()
    }
}

/// `e^x` of an `x` that is 0 or less, by `x = n ln 2 + r` and a polynomial; exactly 0 below -87.
fn exp_below(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.;
    if x < -87. {
        return 0.;
    }
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-std::f32::consts::LN_2, x);
    let r = n.mul_add(1.904_654_3e-9, r);
    let square = r * r;
    let high = 8.368_71e-3f32.mul_add(r, 4.166_839e-2);
    let high = 1.381_461e-3f32.mul_add(square, high);
    let low = 1.666_652_1e-1f32.mul_add(r, 4.999_999_4e-1);
    let tail = square.mul_add(high.mul_add(square, low), r);
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    power.mul_add(tail, power)
}

/// A factor of a product in bfloat16: rounded half to even, and 0 where that is subnormal.
pub fn round_bf16(x: f32) -> bf16 {
    let rounded = bf16::from_f32(x);
    if rounded.is_finite() && !rounded.is_normal() { bf16::ZERO.copysign(rounded) } else { rounded }
}
