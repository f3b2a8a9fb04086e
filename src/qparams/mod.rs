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
//! then both are normal numbers. That is the minimum of our own presets, `f32::MIN_POSITIVE`
//! ([`QConfig::eps`](crate::QConfig::eps)), and of activations per row. 127.5 steps of it are
//! 1.5e-36: a channel with a maximum of that has all its bits, the values of a smaller one are
//! whole steps of 2^-126, and a channel of zeros has the minimum and codes of 0. PyTorch's own
//! minimum, `eps`, is 2^-23.
//!
//! In a product, the scales of a row and a channel are multiplied. Where that is subnormal, it has
//! an error of up to 2^-150: 2^-10 of a product of 2^-140, the one for values of 255 and 127 steps
//! and a maximum of 2.3e-38 when multiplied. A float product of these values is subnormal, too.
//!
//! [`observer`](crate::observer)s compute the parameters of weights, which equal torch 2.9.1's or
//! onnxruntime 1.31.1's to the bit; the formulas of activations are in
//! [`candle_dynquant_kernels::qparams`].

#[doc(hidden)]
pub use candle_dynquant_kernels::qparams::{
    QParams, Rounding, onnxruntime_activation, per_row_activation, per_tensor_activation, quantize,
    quantize_float,
};

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
    /// A single scale for the whole tensor, zero in the middle of the codes.
    PerTensorSymmetric,
    /// A single scale and zero point for the whole tensor.
    PerTensorAffine,
    /// A scale for each output channel, zero in the middle of the codes.
    PerChannelSymmetric,
    /// A scale and a zero point for each output channel.
    PerChannelAffine,
    /// A scale and a float zero point for each row: a table that is looked up, never multiplied.
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
    /// The scheme with integer zero points.
    pub(crate) const fn integer(per_channel: bool, symmetric: bool) -> Self {
        match (per_channel, symmetric) {
            (false, true) => Self::PerTensorSymmetric,
            (false, false) => Self::PerTensorAffine,
            (true, true) => Self::PerChannelSymmetric,
            (true, false) => Self::PerChannelAffine,
        }
    }

    /// Whether each channel has a separate scale.
    #[doc(hidden)]
    pub const fn is_per_channel(self) -> bool {
        !matches!(self, Self::PerTensorSymmetric | Self::PerTensorAffine)
    }

    /// Whether zero is in the middle of the codes.
    #[doc(hidden)]
    pub const fn is_symmetric(self) -> bool {
        matches!(self, Self::PerTensorSymmetric | Self::PerChannelSymmetric)
    }
}

impl QDType {
    /// Minimum and maximum code.
    #[doc(hidden)]
    pub const fn codes(self) -> [i32; 2] {
        [self.offset() - 128, self.offset() + 127]
    }

    /// The difference between a code and the stored i8: u8 codes are shifted, with their zero
    /// points, which changes no product.
    pub(crate) const fn offset(self) -> i32 {
        if let Self::QUInt8 = self { 128 } else { 0 }
    }
}

/// Scale and zero point of values in `[min, max]` by PyTorch's symmetric schemes.
///
/// Equals torch's `calculate_qparams`: the maximum magnitude over half the codes' span, at least
/// `eps`; the zero point is given.
pub(crate) fn symmetric(
    min: f32,
    max: f32,
    quant_range: [i32; 2],
    zero_point: i32,
    eps: f32,
) -> QParams {
    let magnitude = f32::max(-min.min(0.), max.max(0.));
    QParams { scale: (magnitude / (span(quant_range) / 2.)).max(eps), zero_point }
}

/// Scale and zero point of values in `[min, max]` by PyTorch's affine schemes.
///
/// Equals torch's `calculate_qparams`: the range, stretched to 0, over the codes' span, at
/// least `eps`; the minimum gets the minimum code, as closely as an exact 0 allows.
pub(crate) fn affine(min: f32, max: f32, quant_range: [i32; 2], eps: f32) -> QParams {
    let [quant_min, quant_max] = quant_range;
    let (min, max) = (min.min(0.), max.max(0.));
    let scale = ((max - min) / span(quant_range)).max(eps);
    let steps = (min / scale).round_ties_even() as i32;
    QParams { scale, zero_point: quant_min.saturating_sub(steps).clamp(quant_min, quant_max) }
}

/// Scale and float zero point of values in `[min, max]`, which need not include 0.
///
/// Equals torch's `calculate_qparams` with `per_channel_affine_float_qparams`: a scale that
/// does not exceed `eps` becomes 1, and the zero point is `-min / scale`, not rounded.
pub(crate) fn affine_float(min: f32, max: f32, quant_range: [i32; 2], eps: f32) -> (f32, f32) {
    let scale = (max - min) / span(quant_range);
    let scale = if scale > eps { scale } else { 1. };
    (scale, -min / scale)
}

/// Scale and zero point of a weight in `[min, max]`, as `onnxruntime.quantization` has them.
///
/// Equals its `compute_scale_zp`: the quotient of the two spans is taken in f64, the zero
/// point from that quotient, and both become 1 and 0 where it is below the minimum normal f32.
/// `quant_range` is [`onnxruntime_quant_range`]'s.
pub(crate) fn onnxruntime_weight(
    min: f32,
    max: f32,
    quant_range: [i32; 2],
    symmetric: bool,
) -> QParams {
    let [quant_min, quant_max] = quant_range.map(f64::from);
    let (mut min, mut max) = (min.min(0.), max.max(0.));
    if symmetric {
        max = max.max(-min);
        min = -max;
    }
    let (min, max) = (f64::from(min), f64::from(max));
    let scale = (max - min) / (quant_max - quant_min);
    if scale < f64::from(f32::MIN_POSITIVE) {
        return QParams { scale: 1., zero_point: 0 };
    }
    let zero_point = if symmetric { (quant_min + quant_max) / 2. } else { quant_min - min / scale };
    QParams { scale: scale as f32, zero_point: zero_point.round_ties_even() as i32 }
}

/// Minimum and maximum code that `onnxruntime.quantization` gives a weight.
///
/// Symmetric qint8 leaves out -128; a reduced qint8 has 129 codes, not 128.
pub(crate) const fn onnxruntime_quant_range(
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

#[cfg(test)]
mod tests;
