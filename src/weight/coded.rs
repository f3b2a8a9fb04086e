//! Codes with their scales: what weights that are multiplied, tables and files have in common.

use crate::error::{Error, Fault, Result};
use crate::halves::Halves;
use crate::observer::ZeroPoints;
use crate::qparams::{QDType, QScheme};
use crate::sizes;

/// Codes with their scales, `[rows, k]` in row order.
#[derive(Clone, Debug)]
pub(crate) struct Coded<C> {
    pub dtype: QDType,
    pub qscheme: QScheme,
    pub codes: Vec<C>,
    /// The scale of the weight, or the scale of each row.
    pub scales: Vec<f32>,
    /// The zero points, one per scale.
    pub zero_points: ZeroPoints,
}

impl<C> Coded<C> {
    /// Checks the counts, and that scales are finite and positive.
    pub fn check(&self, [rows, k]: [usize; 2]) -> Result<()> {
        let count = |what, expected: usize, got: usize| {
            if expected == got { Ok(()) } else { Err(Error::argument(what, expected, got)) }
        };
        count("number of codes", sizes::weight("codes", [rows, k])?, self.codes.len())?;
        let scales = if self.qscheme.is_per_channel() { rows } else { rows.min(1) };
        count("number of scales", scales, self.scales.len())?;
        count("number of zero points", scales, self.zero_points.len())?;
        let wrong = |scale: f32| !(scale.is_finite() && scale > 0.);
        match self.scales.iter().position(|scale| wrong(*scale)) {
            None => Ok(()),
            Some(index) => Err(Error::argument(
                "scale",
                "a finite positive number",
                format!("{} at index {index}", self.scales[index]),
            )),
        }
    }
}

/// Checks that numbers are codes of `dtype`.
pub(crate) fn check_codes(what: &'static str, dtype: QDType, codes: &[i32]) -> Result<()> {
    let [min, max] = dtype.codes();
    match codes.iter().position(|code| !(min..=max).contains(code)) {
        None => Ok(()),
        Some(index) => Err(Error::argument(
            what,
            format!("{min} to {max}"),
            format!("{} at index {index}", codes[index]),
        )),
    }
}

/// Codes as they are stored.
pub(crate) fn less_offset(dtype: QDType, codes: &[i32]) -> Result<Vec<i8>> {
    check_codes("code", dtype, codes)?;
    Ok((codes.iter()).map(|code| (code - dtype.offset()) as i8).collect())
}

/// Checks that the elements are finite, and that their number suits the shape.
pub(crate) fn check_halves(shape: [usize; 2], halves: &Halves) -> Result<()> {
    let elements = sizes::weight("halves", shape)?;
    if halves.len() != elements {
        return Err(Error::argument("number of elements", elements, halves.len()));
    }
    match halves.non_finite() {
        None => Ok(()),
        Some((at, value)) => Err(Error::from(Fault::NonFiniteWeight {
            index: vec![at / shape[1], at % shape[1]],
            value,
        })),
    }
}

/// Checks that the sums of products of `k` inputs stay within an i32.
pub(crate) fn check_sums(codes: &[i8], k: usize, zero_points: &[i32]) -> Result<()> {
    for (channel, zero_point) in zero_points.iter().enumerate() {
        // Few inputs need no look at the codes.
        let furthest = zero_point.abs_diff(-128).max(zero_point.abs_diff(127));
        if (k as u64).saturating_mul(255 * u64::from(furthest)) <= i32::MAX as u64 {
            continue;
        }
        let codes = codes[channel * k..][..k].iter();
        let distances = codes.map(|code| i64::from(i32::from(*code).abs_diff(*zero_point)));
        let got = 255 * distances.sum::<i64>();
        if got > i32::MAX.into() {
            return Err(Error::from(Fault::AccumulatorOverflow { channel, got }));
        }
    }
    Ok(())
}

/// The codes of a quantized weight or table, of which each stands for
/// `scale * (code - zero_point)`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::{nn::Projection, observer::ZeroPoints, QConfig};
///
/// let weight = Tensor::new(&[[0.5f32, -1.0], [0.02, 0.01]], &Device::Cpu)?;
/// let int8 = Projection::new(weight, None).quantize(&QConfig::int8())?;
/// let codes = int8.codes().expect("int8");
/// assert_eq!(codes.codes, [64, -127, 127, 64]);
/// assert_eq!(codes.scales.len(), 2); // one per output channel
/// assert_eq!(codes.zero_points, ZeroPoints::Int(vec![0, 0]));
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct WeightCodes {
    /// Output channels and inputs; of a table, rows and their length.
    pub shape: [usize; 2],
    /// The codes in row order.
    pub codes: Vec<i32>,
    /// The scale of the weight, of each channel or of each group of inputs, channel by channel.
    pub scales: Vec<f32>,
    /// A zero point for each scale; none for groups that have a minimum in place of it, as GGUF's
    /// Q4_1.
    pub zero_points: ZeroPoints,
}
