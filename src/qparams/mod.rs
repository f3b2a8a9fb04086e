//! Scales and zero points: the only arithmetic of them in the crate.
//!
//! A code `q` represents the real number
//!
//! ```text
//! real = scale * (q - zero_point)
//! ```
//!
//! with a float `scale` and an integer `zero_point`, so that 0.0 is always exact: ranges are
//! stretched to include it. Symmetric schemes fix the zero point at 0 and the scale by the maximum
//! magnitude; affine schemes use both ends of the range.
//!
//! # The minimum scale
//! Codes are made with the inverse of a scale, so a scale is at least the least normal f32, 2^-126:
//! then both are normal numbers. That is the minimum of our own presets,
//! [`QConfig::MIN_EPS`](crate::QConfig::MIN_EPS), and of activations per row. 127.5 steps of it are
//! 1.5e-36: a channel with a maximum of that has all its bits, the values of a smaller one are
//! whole steps of 2^-126, and a channel of zeros has the minimum and codes of 0. PyTorch's own
//! minimum, `eps`, is 2^-23.
//!
//! In a product, the scales of a row and a channel are multiplied. Where that is subnormal, it has
//! an error of up to 2^-150: 2^-10 of a product of 2^-140, the one for values of 255 and 127 steps
//! and a maximum of 2.3e-38 when multiplied. A float product of these values is subnormal, too.
//!
//! Formulas equal torch 2.9.1's or onnxruntime 1.31.1's, to the bit, where a function is
//! documented so.

pub(crate) mod activation;

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

/// The part of a weight that one scale covers, and the position of its zero.
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

    /// Whether zero is in the middle of the codes.
    pub const fn is_symmetric(self) -> bool {
        matches!(self, Self::PerTensorSymmetric | Self::PerChannelSymmetric)
    }
}

/// A scale and a zero point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QParams {
    /// The real difference between two successive codes.
    pub scale: f32,
    /// The code of 0.0.
    pub zero_point: i32,
}

impl QDType {
    /// Minimum and maximum code.
    pub const fn codes(self) -> [i32; 2] {
        match self {
            Self::QInt8 => [-128, 127],
            Self::QUInt8 => [0, 255],
        }
    }
}

/// Scale and zero point of values in `[min, max]` by PyTorch's symmetric schemes.
///
/// Equals torch's `calculate_qparams`: the maximum magnitude over half the codes' span, at least
/// `eps`; the zero point is given.
///
/// ```
/// use candle_dynquant::qparams::symmetric;
///
/// assert_eq!(symmetric(-2.55, 1., [-128, 127], 0, f32::EPSILON).scale, 0.02);
/// ```
pub fn symmetric(min: f32, max: f32, quant_range: [i32; 2], zero_point: i32, eps: f32) -> QParams {
    let magnitude = f32::max(-min.min(0.), max.max(0.));
    QParams {
        scale: (magnitude / (span(quant_range) / 2.)).max(eps),
        zero_point,
    }
}

/// Scale and zero point of values in `[min, max]` by PyTorch's affine schemes.
///
/// Equals torch's `calculate_qparams`: the range, stretched to 0, over the codes' span, at
/// least `eps`; the minimum gets the minimum code, as closely as an exact 0 allows.
///
/// ```
/// use candle_dynquant::qparams::affine;
///
/// let qparams = affine(-1., 1.55, [0, 255], f32::EPSILON);
/// assert_eq!((qparams.scale, qparams.zero_point), (0.01, 100));
/// ```
pub fn affine(min: f32, max: f32, quant_range: [i32; 2], eps: f32) -> QParams {
    let [quant_min, quant_max] = quant_range;
    let (min, max) = (min.min(0.), max.max(0.));
    let scale = ((max - min) / span(quant_range)).max(eps);
    let steps = (min / scale).round_ties_even() as i32;
    QParams {
        scale,
        zero_point: quant_min.saturating_sub(steps).clamp(quant_min, quant_max),
    }
}

/// Scale and float zero point of values in `[min, max]`, which need not include 0.
///
/// Equals torch's `calculate_qparams` with `per_channel_affine_float_qparams`: a scale that
/// does not exceed `eps` becomes 1, and the zero point is `-min / scale`, not rounded.
///
/// ```
/// use candle_dynquant::qparams::affine_float;
///
/// assert_eq!(affine_float(1., 256., [0, 255], f32::EPSILON), (1., -1.));
/// ```
pub fn affine_float(min: f32, max: f32, quant_range: [i32; 2], eps: f32) -> (f32, f32) {
    let scale = (max - min) / span(quant_range);
    let scale = if scale > eps { scale } else { 1. };
    (scale, -min / scale)
}

/// Scale and zero point of a weight in `[min, max]`, as `onnxruntime.quantization` has them.
///
/// Equals its `compute_scale_zp`: the quotient of the two spans is taken in f64, the zero
/// point from that quotient, and both become 1 and 0 where it is below the minimum normal f32.
/// `quant_range` is [`onnxruntime_quant_range`]'s.
///
/// ```
/// use candle_dynquant::qparams::onnxruntime_weight;
///
/// let qparams = onnxruntime_weight(-2.54, 1., [-127, 127], true);
/// assert_eq!((qparams.scale, qparams.zero_point), (0.02, 0));
/// ```
pub fn onnxruntime_weight(min: f32, max: f32, quant_range: [i32; 2], symmetric: bool) -> QParams {
    let [quant_min, quant_max] = quant_range.map(f64::from);
    let (mut min, mut max) = (min.min(0.), max.max(0.));
    if symmetric {
        max = max.max(-min);
        min = -max;
    }
    let (min, max) = (f64::from(min), f64::from(max));
    let scale = (max - min) / (quant_max - quant_min);
    if scale < f64::from(f32::MIN_POSITIVE) {
        return QParams {
            scale: 1.,
            zero_point: 0,
        };
    }
    let zero_point = if symmetric {
        (quant_min + quant_max) / 2.
    } else {
        quant_min - min / scale
    };
    QParams {
        scale: scale as f32,
        zero_point: zero_point.round_ties_even() as i32,
    }
}

/// Minimum and maximum code that `onnxruntime.quantization` gives a weight.
///
/// Symmetric qint8 leaves out -128; a reduced qint8 has 129 codes, not 128.
///
/// ```
/// use candle_dynquant::QDType::QInt8;
/// use candle_dynquant::qparams::onnxruntime_quant_range;
///
/// assert_eq!(onnxruntime_quant_range(QInt8, true, false), [-127, 127]);
/// assert_eq!(onnxruntime_quant_range(QInt8, true, true), [-64, 64]);
/// ```
pub const fn onnxruntime_quant_range(
    dtype: QDType,
    symmetric: bool,
    reduce_range: bool,
) -> [i32; 2] {
    match (dtype, reduce_range) {
        (QDType::QInt8, true) => [-64, 64],
        (QDType::QInt8, false) if symmetric => [-127, 127],
        (QDType::QUInt8, true) => [0, 127],
        (_, false) => dtype.codes(),
    }
}

fn span([quant_min, quant_max]: [i32; 2]) -> f32 {
    quant_max.abs_diff(quant_min) as f32
}

/// How a value and its scale become a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rounding {
    /// Multiply by the scale's inverse, which is rounded to f32 first: PyTorch's way.
    Multiply,
    /// Divide by the scale: ONNX Runtime's way.
    Divide,
}

/// The codes of values with one scale and zero point.
///
/// Round half to even, add the zero point, clamp: equals `torch.quantize_per_tensor` where
/// values are multiplied, onnxruntime's `quantize_nparray` where they are divided.
///
/// ```
/// use candle_dynquant::qparams::{Rounding, quantize};
///
/// let codes = quantize(&[-50., 0., 0.75, 1000.], 0.5, 100, [0, 255], Rounding::Multiply);
/// assert_eq!(codes, [0, 100, 102, 255]);
/// ```
pub fn quantize(
    values: &[f32],
    scale: f32,
    zero_point: i32,
    quant_range: [i32; 2],
    rounding: Rounding,
) -> Vec<i32> {
    let inv_scale = 1. / scale;
    let shift = |steps: f32| clamp(steps.round_ties_even() + zero_point as f32, quant_range);
    match rounding {
        Rounding::Multiply => values.iter().map(|x| shift(x * inv_scale)).collect(),
        Rounding::Divide => values.iter().map(|x| shift(x / scale)).collect(),
    }
}

/// The codes of values with one scale and a float zero point.
///
/// Equals `torch.quantize_per_channel` with float zero points: multiply by the scale's
/// inverse, add the zero point, round half to even, clamp.
///
/// ```
/// use candle_dynquant::qparams::quantize_float;
///
/// assert_eq!(quantize_float(&[-1., 0.25, 9.], 0.5, 2.5, [0, 15]), [0, 3, 15]);
/// ```
pub fn quantize_float(
    values: &[f32],
    scale: f32,
    zero_point: f32,
    quant_range: [i32; 2],
) -> Vec<i32> {
    let inv_scale = 1. / scale;
    let code = |x: &f32| (x * inv_scale + zero_point).round_ties_even();
    values.iter().map(|x| clamp(code(x), quant_range)).collect()
}

fn clamp(code: f32, quant_range: [i32; 2]) -> i32 {
    let [least, greatest] = quant_range;
    // In range after `max` and `min`, so the cast is exact.
    code.max(least as f32).min(greatest as f32) as i32
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
    let zero_point = if min_error < max_error {
        from_min
    } else {
        from_max
    };
    QParams {
        scale: scale as f32,
        zero_point: zero_point.clamp(qmin, qmax).round_ties_even() as i32,
    }
}

/// Scale and zero point of u8 activations in `[min, max]`, one for each row.
///
/// The plain affine formula: `scale = (max - min) / 255`, `zero_point = round(-min / scale)`,
/// with a scale of at least the minimum normal f32, so that small rows keep all their bits.
pub fn per_row_activation(min: f32, max: f32, reduce_range: bool) -> QParams {
    let (_, qmax) = activation_range(reduce_range);
    let (min, max) = (min.min(0.), max.max(0.));
    let scale = ((f64::from(max) - f64::from(min)) / qmax) as f32;
    let scale = scale.max(f32::MIN_POSITIVE);
    // Adding 1.5 * 2^23 rounds half to even, without the C library: its call costs a row as much as
    // all the rest.
    const ROUND: f32 = 12_582_912.;
    let zero_point = ((-min / scale).min(qmax as f32) + ROUND) - ROUND;
    QParams {
        scale,
        zero_point: zero_point as i32,
    }
}

/// Scale and zero point of u8 activations in `[min, max]`, as ONNX Runtime has them.
///
/// Equals `DynamicQuantizeLinear` of onnxruntime 1.31.1, all of it in f32: a scale of 1 where
/// the range, stretched to 0, is empty; the zero point is clamped, then rounded half to even.
/// Its code of `x` is `clamp(round(x / scale) + zero_point, 0, 255)`. The operator knows no
/// `reduce_range`: with it, the formula is the same over 127.
///
/// ```
/// use candle_dynquant::qparams::onnxruntime_activation;
///
/// let qparams = onnxruntime_activation(-1., 1.55, false);
/// assert_eq!((qparams.scale, qparams.zero_point), (0.01, 100));
/// ```
pub fn onnxruntime_activation(min: f32, max: f32, reduce_range: bool) -> QParams {
    let qmax = activation_range(reduce_range).1 as f32;
    let (min, max) = (min.min(0.), max.max(0.));
    let scale = if min == max { 1. } else { (max - min) / qmax };
    QParams {
        scale,
        // The NaN of a range so small that its scale is 0 becomes the maximum code.
        zero_point: (0. - min / scale).min(qmax).max(0.).round_ties_even() as i32,
    }
}

fn activation_range(reduce_range: bool) -> (f64, f64) {
    (0., if reduce_range { 127. } else { 255. })
}

#[cfg(test)]
mod tests;
