//! Scales and zero points: the only arithmetic of them in the crate.
//!
//! A code `q` stands for the real number
//!
//! ```text
//! real = scale * (q - zero_point)
//! ```
//!
//! with a float `scale` and an integer `zero_point`, so that 0.0 is always exact: ranges are
//! stretched to include it. Symmetric schemes fix the zero point at 0 and the scale by the
//! greatest magnitude; affine schemes use both ends of the range.
//!
//! Formulas are those of torch 2.9.1, to the bit, where a function says so.

use crate::words::words;

/// The codes of a quantized weight, under PyTorch's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QDType {
    /// Signed, -128 to 127.
    QInt8,
    /// Unsigned, 0 to 255.
    QUInt8,
}

/// Over how much of a weight one scale stretches, and where its zero lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QScheme {
    /// One scale for the whole tensor, zero in the middle of the codes.
    PerTensorSymmetric,
    /// One scale and zero point for the whole tensor.
    PerTensorAffine,
    /// One scale for each output channel, zero in the middle of the codes.
    PerChannelSymmetric,
    /// One scale and zero point for each output channel.
    PerChannelAffine,
    /// One scale and one float zero point for each row: a table that is looked up, never
    /// multiplied.
    PerChannelAffineFloatQParams,
}

words!(QDType, "dtype", prefix "torch.", {
    QInt8 => "qint8",
    QUInt8 => "quint8",
});

words!(QScheme, "qscheme", prefix "torch.", {
    PerTensorSymmetric => "per_tensor_symmetric",
    PerTensorAffine => "per_tensor_affine",
    PerChannelSymmetric => "per_channel_symmetric",
    PerChannelAffine => "per_channel_affine",
    PerChannelAffineFloatQParams => "per_channel_affine_float_qparams",
});

impl QScheme {
    /// Whether each channel has a scale of its own.
    pub const fn is_per_channel(self) -> bool {
        !matches!(self, Self::PerTensorSymmetric | Self::PerTensorAffine)
    }

    /// Whether zero lies in the middle of the codes.
    pub const fn is_symmetric(self) -> bool {
        matches!(self, Self::PerTensorSymmetric | Self::PerChannelSymmetric)
    }
}

/// A scale and a zero point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QParams {
    /// What one step of the code is worth.
    pub scale: f32,
    /// The code that stands for 0.0.
    pub zero_point: i32,
}

/// Least and greatest code of a qint8 weight.
pub const QINT8: (i32, i32) = (-128, 127);

/// Scale of a symmetric qint8 weight whose values lie in `[min, max]`.
///
/// Equals `MinMaxObserver(qint8, per_tensor_symmetric).calculate_qparams()`: the greatest
/// magnitude over 127.5, at least f32's epsilon.
///
/// ```
/// use candle_dynquant::qparams::symmetric_qint8;
///
/// assert_eq!(symmetric_qint8(-2.55, 1.).scale, 0.02);
/// ```
pub fn symmetric_qint8(min: f32, max: f32) -> QParams {
    let half_range = (QINT8.1 - QINT8.0) as f32 / 2.;
    let magnitude = f32::max(-min.min(0.), max.max(0.));
    QParams {
        scale: (magnitude / half_range).max(f32::EPSILON),
        zero_point: 0,
    }
}

/// Code of a weight; `inv_scale` is `1 / scale` in f32.
///
/// Equals `torch.quantize_per_tensor`: multiply, round half to even, clamp.
pub fn quantize_qint8(value: f32, inv_scale: f32) -> i8 {
    // In range after the clamp, so the cast is exact.
    (value * inv_scale)
        .round_ties_even()
        .clamp(QINT8.0 as f32, QINT8.1 as f32) as i8
}

/// Scale and zero point of u8 activations in `[min, max]`, one for a whole call.
///
/// Equals `torch._choose_qparams_per_tensor`, the steps of which it follows: the scale is
/// computed in f64; a scale below 6.1e-5 is raised to it; the zero point is taken from the
/// end of the range with the smaller error.
pub fn per_tensor_activation(min: f32, max: f32, reduce_range: bool) -> QParams {
    const SMALL_SCALE_THRESHOLD: f32 = 6.1e-5;
    let (qmin, qmax) = activation_range(reduce_range);
    let (mut min, mut max) = (min.min(0.), max.max(0.));
    let mut scale = (f64::from(max) - f64::from(min)) / (qmax - qmin);
    if scale as f32 == 0. || (1. / scale as f32).is_infinite() {
        scale = 0.1;
    }
    if scale < f64::from(SMALL_SCALE_THRESHOLD) {
        let amplifier = SMALL_SCALE_THRESHOLD / scale as f32;
        let stretched = SMALL_SCALE_THRESHOLD * (qmax - qmin) as f32;
        scale = f64::from(SMALL_SCALE_THRESHOLD);
        if min == 0. {
            max = stretched;
        } else if max == 0. {
            min = -stretched;
        } else {
            min *= amplifier;
            max *= amplifier;
        }
    }
    let (min, max) = (f64::from(min) / scale, f64::from(max) / scale);
    let from_min = qmin - min;
    let from_max = qmax - max;
    let min_error = qmin.abs() - min.abs();
    let max_error = qmax.abs() - max.abs();
    let zero_point = match min_error < max_error {
        true => from_min,
        false => from_max,
    };
    QParams {
        scale: scale as f32,
        zero_point: zero_point.clamp(qmin, qmax).round_ties_even() as i32,
    }
}

/// Scale and zero point of u8 activations in `[min, max]`, one for each row.
///
/// The plain affine formula: `scale = (max - min) / 255`, `zero_point = round(-min / scale)`,
/// with a scale of at least the least normal f32, so that small rows keep all their bits.
pub fn per_row_activation(min: f32, max: f32, reduce_range: bool) -> QParams {
    let (_, qmax) = activation_range(reduce_range);
    let (min, max) = (min.min(0.), max.max(0.));
    let scale = ((f64::from(max) - f64::from(min)) / qmax) as f32;
    let scale = scale.max(f32::MIN_POSITIVE);
    QParams {
        scale,
        zero_point: (-min / scale).round_ties_even().min(qmax as f32) as i32,
    }
}

fn activation_range(reduce_range: bool) -> (f64, f64) {
    (0., if reduce_range { 127. } else { 255. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn per_row_keeps_zero_exact_and_ends_in_range() {
        let ranges = [
            (0., 0.),
            (-1., 1.),
            (0., 1e-40),
            (-1e-40, 0.),
            (-3e38, 3e38),
            (f32::MIN, f32::MAX),
            (0.001, 0.002),
            (-7., -3.),
            (-0.1, 25.4),
        ];
        for (min, max) in ranges {
            for reduce_range in [false, true] {
                let q = per_row_activation(min, max, reduce_range);
                let top = if reduce_range { 127 } else { 255 };
                assert!(q.scale.is_finite() && q.scale > 0., "{min} {max}: {q:?}");
                assert!((1. / q.scale).is_finite(), "{min} {max}: {q:?}");
                assert!((0..=top).contains(&q.zero_point), "{min} {max}: {q:?}");
                for end in [min.min(0.), max.max(0.)] {
                    let code = end.mul_add(1. / q.scale, q.zero_point as f32);
                    let slack = 0.51;
                    assert!(
                        code > -slack && code < top as f32 + slack,
                        "{min} {max}: {code}"
                    );
                }
            }
        }
    }
}
