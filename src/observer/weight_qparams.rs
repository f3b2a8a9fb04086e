//! The parameters chosen by an observer, checked once, so that code that quantizes with them need
//! not.

use crate::error::{Error, Result};
use crate::kernels::Coding;
use crate::qparams::{QDType, Rounding, quantize, quantize_float};

/// The zero points of a weight: one, or one for each channel.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ZeroPoints {
    /// The codes of 0.0.
    Int(Vec<i32>),
    /// The position of 0.0 between the codes.
    Float(Vec<f32>),
}

impl ZeroPoints {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Int(zero_points) => zero_points.len(),
            Self::Float(zero_points) => zero_points.len(),
        }
    }
}

/// Scales and zero points of a weight, and how its values become codes.
///
/// ```
/// use candle_dynquant::QDType;
/// use candle_dynquant::observer::{WeightQParams, ZeroPoints};
///
/// let zero_points = ZeroPoints::Int(vec![100, 0]);
/// let qparams = WeightQParams::new(QDType::QUInt8, vec![0.5, 1.], zero_points)?;
/// assert_eq!(qparams.quantize(0, &[-50., 0., 0.75, 1000.]), [0, 100, 102, 255]);
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct WeightQParams {
    dtype: QDType,
    scales: Vec<f32>,
    zero_points: ZeroPoints,
    quant_range: [i32; 2],
    rounding: Rounding,
}

impl WeightQParams {
    /// Parameters with a single scale and zero point, or with both for each channel; all codes of
    /// `dtype` are used, and values are multiplied by the scale's inverse.
    ///
    /// # Errors
    /// When `scales` is empty, scales and zero points differ in number, a scale is not a positive
    /// normal number, or a zero point is not a code of `dtype` or not finite.
    pub fn new(dtype: QDType, scales: Vec<f32>, zero_points: ZeroPoints) -> Result<Self> {
        let [min, max] = dtype.codes();
        let count = zero_points.len();
        if scales.is_empty() || scales.len() != count {
            let expected = format!("{}, one for each scale", scales.len().max(1));
            return Err(Error::argument("zero points", expected, count));
        }
        // The inverse of a subnormal scale overflows.
        let sound = |scale: f32| scale.is_normal() && scale > 0.;
        if let Some(scale) = scales.iter().find(|scale| !sound(**scale)) {
            let expected = "a positive normal number; values may span too wide a range";
            return Err(Error::argument("scale", expected, scale));
        }
        let fault = match &zero_points {
            ZeroPoints::Int(zero_points) => zero_points
                .iter()
                .find(|z| !(min..=max).contains(*z))
                .map(|z| (format!("{min} to {max}"), z.to_string())),
            ZeroPoints::Float(zero_points) => zero_points
                .iter()
                .find(|z| !z.is_finite())
                .map(|z| ("a finite number".into(), z.to_string())),
        };
        match fault {
            Some((expected, got)) => Err(Error::argument("zero point", expected, got)),
            None => Ok(Self {
                dtype,
                scales,
                zero_points,
                quant_range: dtype.codes(),
                rounding: Rounding::Multiply,
            }),
        }
    }

    /// These parameters with fewer codes: others are clamped to `quant_range`.
    ///
    /// # Errors
    /// When the range holds fewer than two codes, or leaves the dtype's range.
    #[doc(hidden)]
    pub fn with_quant_range(self, quant_range: [i32; 2]) -> Result<Self> {
        check_quant_range(self.dtype, quant_range)?;
        Ok(Self { quant_range, ..self })
    }

    /// These parameters with another way to make codes.
    #[must_use]
    pub(crate) fn with_rounding(self, rounding: Rounding) -> Self {
        Self { rounding, ..self }
    }

    /// The codes.
    pub fn dtype(&self) -> QDType {
        self.dtype
    }

    /// The scale, or the scales of the channels.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// The zero points, one per scale.
    pub fn zero_points(&self) -> &ZeroPoints {
        &self.zero_points
    }

    /// The codes of values of one channel; one scale holds for every channel.
    ///
    /// Empty for a channel that has no scale.
    pub fn quantize(&self, channel: usize, values: &[f32]) -> Vec<i32> {
        let channel = if self.scales.len() == 1 { 0 } else { channel };
        let Some(&scale) = self.scales.get(channel) else {
            return Vec::new();
        };
        let range = self.quant_range;
        match &self.zero_points {
            ZeroPoints::Int(zero_points) => {
                quantize(values, scale, zero_points[channel], range, self.rounding)
            }
            ZeroPoints::Float(zero_points) => {
                quantize_float(values, scale, zero_points[channel], range)
            }
        }
    }

    /// How the values of a channel become codes, as [`quantize`](Self::quantize) makes them; one
    /// scale holds for every channel.
    pub(crate) fn coding(&self, channel: usize) -> Coding {
        let channel = if self.scales.len() == 1 { 0 } else { channel };
        let (offset, zero_point, rounding) = match &self.zero_points {
            ZeroPoints::Int(zero_points) => (0., zero_points[channel], self.rounding),
            ZeroPoints::Float(zero_points) => (zero_points[channel], 0, Rounding::Multiply),
        };
        Coding {
            scale: self.scales[channel],
            offset,
            zero_point,
            range: self.quant_range,
            rounding,
        }
    }
}

/// Checks that a range holds more than one code, all of them `dtype`'s.
pub(super) fn check_quant_range(dtype: QDType, [min, max]: [i32; 2]) -> Result<()> {
    let [dtype_min, dtype_max] = dtype.codes();
    if dtype_min <= min && min < max && max <= dtype_max {
        return Ok(());
    }
    let expected = format!("min below max, both in {dtype_min} to {dtype_max}");
    let got = format!("{min} to {max}");
    Err(Error::argument("quant_range", expected, got))
}
