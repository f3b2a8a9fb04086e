//! Weights of codes or halves that were made before.

use super::{Format, QWeight};
use crate::codes::offset;
use crate::error::{Error, Fault, Result};
use crate::halves::Halves;
use crate::kernels::reference::Int8;
use crate::kernels::{self, OutOfRange};
use crate::qconfig::DynamicConfig;
use crate::qparams::{QDType, QScheme};
use crate::sizes;
use crate::tensor::{mismatch, to_f32_vec};
use candle_core::Tensor;

/// Codes with their scales, `[rows, k]` in row order, not yet checked.
#[derive(Clone, Debug)]
pub(crate) struct RawCodes<Z> {
    pub dtype: QDType,
    pub qscheme: QScheme,
    /// Each less the [`offset`] of its dtype.
    pub codes: Vec<i8>,
    /// One, or one for each row.
    pub scales: Vec<f32>,
    /// One for each scale.
    pub zero_points: Z,
}

impl QWeight {
    /// A weight of codes `[out_features, in_features]` in row order, as
    /// [`codes`](Self::codes), [`scales`](Self::scales) and [`zero_points`](Self::zero_points)
    /// give them; `bias`, `[out_features]`, stays f32. Activations become u8, a scale per row.
    ///
    /// ```
    /// use candle_dynquant::{QDType, QScheme, QWeight};
    ///
    /// let (codes, scales) = ([64, -128, 127, 64], [0.5, 0.25]);
    /// let qscheme = QScheme::PerChannelSymmetric;
    /// let weight = QWeight::from_codes([2, 2], &codes, &scales, &[0, 0], None, QDType::QInt8, qscheme)?;
    /// assert_eq!(weight.dequantize()?.to_vec2::<f32>()?, [[32., -64.], [31.75, 16.]]);
    /// # Ok::<(), candle_dynquant::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the shape has another number of codes, when there is not one scale for a tensor or one
    /// for each channel, with its zero point; when a code or zero point is none of `dtype`, a scale
    /// is not finite and positive, the zero points are float, the bias has another shape or holds a
    /// NaN or an infinity, a channel could overflow its accumulator, or `DYNQUANT_ISA` is wrong.
    pub fn from_codes(
        shape: [usize; 2],
        codes: &[i32],
        scales: &[f32],
        zero_points: &[i32],
        bias: Option<&Tensor>,
        dtype: QDType,
        qscheme: QScheme,
    ) -> Result<Self> {
        check_codes("zero point", dtype, zero_points)?;
        let raw = RawCodes {
            dtype,
            qscheme,
            codes: less_offset(dtype, codes)?,
            scales: scales.to_vec(),
            zero_points: zero_points.iter().map(|z| z - offset(dtype)).collect(),
        };
        Self::of_codes(1, shape, raw, DynamicConfig::default(), bias)
    }

    /// [`from_codes`](Self::from_codes) of a weight whose output channels are `gates` gates, with
    /// zero points less the offset of the dtype.
    pub(crate) fn of_codes(
        gates: usize,
        shape: [usize; 2],
        raw: RawCodes<Vec<i32>>,
        activation: DynamicConfig,
        bias: Option<&Tensor>,
    ) -> Result<Self> {
        let isa = kernels::active()?;
        let [n, k] = check_shape(gates, shape)?;
        if raw.qscheme == QScheme::PerChannelAffineFloatQParams {
            return Err(Error::from(Fault::UnsupportedQConfig {
                expected: "integer zero points, for a weight that is multiplied".into(),
                got: raw.qscheme.to_string(),
            }));
        }
        raw.check(shape, raw.zero_points.len())?;
        let bias = finite_bias(bias, n)?;
        // One for each channel: all share a single one.
        let index = |channel| if raw.scales.len() == 1 { 0 } else { channel };
        let channels = || (0..n).map(index);
        let scales: Vec<_> = channels().map(|i| raw.scales[i]).collect();
        let zero_points: Vec<_> = channels().map(|i| raw.zero_points[i]).collect();
        check_sums(&raw.codes, k, &zero_points)?;
        let int8 = Int8 {
            codes: &raw.codes,
            scales: &scales,
            zero_points: &zero_points,
        };
        let packed = kernels::pack_codes(isa, k, gates, int8, &bias, activation.into());
        let format = Format::Int8 {
            dtype: raw.dtype,
            qscheme: raw.qscheme,
            activation,
        };
        Ok(Self::new(packed, format))
    }

    /// This weight with another bias, `[out_features]`.
    pub(crate) fn with_bias(&self, bias: &Tensor) -> Result<Self> {
        match self.format {
            Format::Int8 {
                dtype,
                qscheme,
                activation,
            } => {
                let zero_points = self.zero_points().into_iter();
                let raw = RawCodes {
                    dtype,
                    qscheme,
                    codes: self.packed.codes(),
                    scales: self.scales(),
                    zero_points: zero_points.map(|zero| zero - offset(dtype)).collect(),
                };
                Self::of_codes(1, self.shape(), raw, activation, Some(bias))
            }
            Format::Halves(out_of_range) => {
                // A format of halves has halves.
                let halves = self.stored_halves();
                let halves = halves.unwrap_or(Halves::Float16(Vec::new()));
                Self::of_halves(1, self.shape(), &halves, out_of_range, Some(bias))
            }
        }
    }

    /// A weight of halves in row order, some of which were out of range when they were made.
    pub(crate) fn of_halves(
        gates: usize,
        shape: [usize; 2],
        halves: &Halves,
        out_of_range: OutOfRange,
        bias: Option<&Tensor>,
    ) -> Result<Self> {
        let isa = kernels::active()?;
        let [n, k] = check_shape(gates, shape)?;
        check_halves(shape, halves)?;
        let bias = finite_bias(bias, n)?;
        let packed = match halves {
            Halves::Float16(halves) => kernels::pack_halves(isa, k, gates, halves, &bias),
            Halves::BFloat16(halves) => kernels::pack_halves(isa, k, gates, halves, &bias),
        };
        Ok(Self::new(packed, Format::Halves(out_of_range)))
    }
}

impl<Z> RawCodes<Z> {
    /// Checks the counts, and that scales are finite and positive.
    pub fn check(&self, [rows, k]: [usize; 2], zero_points: usize) -> Result<()> {
        let count = |what, expected: usize, got: usize| {
            if expected == got {
                Ok(())
            } else {
                Err(Error::from(Fault::InvalidArgument {
                    what,
                    expected: expected.to_string(),
                    got: got.to_string(),
                }))
            }
        };
        let elements = sizes::weight("codes", [rows, k])?;
        count("number of codes", elements, self.codes.len())?;
        let scales = if self.qscheme.is_per_channel() {
            rows
        } else {
            rows.min(1)
        };
        count("number of scales", scales, self.scales.len())?;
        count("number of zero points", scales, zero_points)?;
        let wrong = |scale: f32| !(scale.is_finite() && scale > 0.);
        match self.scales.iter().position(|scale| wrong(*scale)) {
            None => Ok(()),
            Some(index) => Err(Error::from(Fault::InvalidArgument {
                what: "scale",
                expected: "a finite positive number".into(),
                got: format!("{} at index {index}", self.scales[index]),
            })),
        }
    }
}

/// Checks that numbers are codes of `dtype`.
pub(crate) fn check_codes(what: &'static str, dtype: QDType, codes: &[i32]) -> Result<()> {
    let [min, max] = dtype.codes();
    match codes.iter().position(|code| !(min..=max).contains(code)) {
        None => Ok(()),
        Some(index) => Err(Error::from(Fault::InvalidArgument {
            what,
            expected: format!("{min} to {max}"),
            got: format!("{} at index {index}", codes[index]),
        })),
    }
}

/// Codes as they are stored.
pub(crate) fn less_offset(dtype: QDType, codes: &[i32]) -> Result<Vec<i8>> {
    check_codes("code", dtype, codes)?;
    Ok((codes.iter())
        .map(|code| (code - offset(dtype)) as i8)
        .collect())
}

/// Checks that the elements are finite, and that their number suits the shape.
pub(crate) fn check_halves(shape: [usize; 2], halves: &Halves) -> Result<()> {
    let elements = sizes::weight("halves", shape)?;
    if halves.len() != elements {
        return Err(Error::from(Fault::InvalidArgument {
            what: "number of elements",
            expected: elements.to_string(),
            got: halves.len().to_string(),
        }));
    }
    match halves.non_finite() {
        None => Ok(()),
        Some((at, value)) => Err(Error::from(Fault::NonFiniteWeight {
            index: vec![at / shape[1], at % shape[1]],
            value,
        })),
    }
}

fn check_shape(gates: usize, shape: [usize; 2]) -> Result<[usize; 2]> {
    if gates > 0 && shape[0].is_multiple_of(gates) {
        Ok(shape)
    } else {
        Err(Error::from(Fault::ShapeMismatch {
            op: "weight",
            expected: format!("[out_features, in_features] of {gates} gates"),
            got: shape.to_vec(),
        }))
    }
}

fn finite_bias(bias: Option<&Tensor>, n: usize) -> Result<Vec<f32>> {
    let Some(bias) = bias else {
        return Ok(vec![0.; n]);
    };
    if bias.dims() != [n] {
        return Err(mismatch("bias", format!("[{n}]"), bias));
    }
    let bias = to_f32_vec(bias, "bias")?;
    match bias.iter().position(|value| !value.is_finite()) {
        None => Ok(bias),
        Some(index) => Err(Error::from(Fault::NonFiniteBias {
            index,
            value: bias[index],
        })),
    }
}

/// Checks that the sums of products of `k` inputs stay within an i32.
pub(crate) fn check_sums(codes: &[i8], k: usize, zero_points: &[i32]) -> Result<()> {
    for (channel, zero_point) in zero_points.iter().enumerate() {
        // Few inputs need no look at the codes.
        let furthest = zero_point.abs_diff(-128).max(zero_point.abs_diff(127));
        let most = (k as u64).saturating_mul(255 * u64::from(furthest));
        if most <= i32::MAX as u64 {
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
