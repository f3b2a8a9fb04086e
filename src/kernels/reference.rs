//! The oracle: what every kernel computes, in plain loops that are never optimised.

/// A quantized row of activations.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// u8 codes, `[k]`.
    pub codes: Vec<u8>,
    /// What one step of a code is worth; NaN if the row holds a NaN or an infinity.
    pub scale: f32,
    /// The code that stands for 0.0.
    pub zero_point: i32,
}

/// Codes of one row: `clamp(round(fma(x, 1 / scale, zero_point)), 0, 255)`, half to even.
pub fn quantize_row(row: &[f32], scale: f32, zero_point: i32) -> Row {
    let inv_scale = 1. / scale;
    let code = |x: &f32| {
        let code = x.mul_add(inv_scale, zero_point as f32).round_ties_even();
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

/// `out[m, n] = fma(sum_k (lhs - zero_point)[m, k] * rhs[n, k], scale[m] * scale[n], bias[n])`.
///
/// The sum is exact in i32; the product of the scales and the `fma` round once each, in f32.
/// `rhs` is `[n, k]` in row order, `scales` and `bias` are `[n]`.
pub fn linear(lhs: &[Row], rhs: &[i8], scales: &[f32], bias: &[f32]) -> Vec<f32> {
    let mut out = Vec::with_capacity(lhs.len() * scales.len());
    for row in lhs {
        let k = row.codes.len();
        for (n, (scale, bias)) in scales.iter().zip(bias).enumerate() {
            let mut acc = 0i32;
            for (code, weight) in row.codes.iter().zip(&rhs[n * k..]) {
                acc = acc.wrapping_add((i32::from(*code) - row.zero_point) * i32::from(*weight));
            }
            out.push((acc as f32).mul_add(row.scale * scale, *bias));
        }
    }
    out
}
