//! Scales and zero points from the ranges an observer kept: PyTorch's `calculate_qparams`, and ONNX
//! Runtime's formulas.

use super::config::{ObserverConfig, ObserverKind};
use super::weight_qparams::{WeightQParams, ZeroPoints, check_quant_range};
use crate::error::{Error, Result};
use crate::qparams::{
    self, QDType, QScheme, Rounding, onnxruntime_quant_range, onnxruntime_weight,
};

/// The parts of a configuration that `calculate_qparams` needs, checked.
#[derive(Clone, Copy, Debug)]
pub(super) enum QParamsFormula {
    PyTorch(PyTorch),
    /// The formulas of `onnxruntime.quantization.quantize_dynamic`.
    ///
    /// Scales, zero points and codes equal onnxruntime 1.31.1's: a symmetric qint8 leaves out -128,
    /// codes are clamped to all of the dtype's, and values are divided by the scale. Per channel,
    /// `ch_axis` 0 of `[out_features, in_features]` is the last axis of ONNX's transposed weight.
    OnnxRuntime {
        dtype: QDType,
        quant_range: [i32; 2],
        symmetric: bool,
    },
}

impl QParamsFormula {
    /// The formula for an observer that keeps a single range, or a range for each channel, as
    /// `kind` does.
    pub fn pytorch(config: &ObserverConfig, kind: &ObserverKind) -> Result<Self> {
        let per_channel = config.qscheme.is_per_channel();
        if kind.per_channel() == Some(!per_channel) {
            let unit = if per_channel { "tensor" } else { "channel" };
            let observer = kind.name().trim_end_matches("Observer");
            let expected = format!("a scheme per {unit} for the {observer} observer");
            return Err(Error::qconfig(expected, config.qscheme));
        }
        PyTorch::new(config).map(Self::PyTorch)
    }

    /// # Errors
    /// When the configuration has float zero points, a `quant_range` or an `eps`: ONNX Runtime
    /// has none of them.
    pub fn onnxruntime(config: &ObserverConfig) -> Result<Self> {
        let refuse = |expected: &str, got: String| {
            let expected = format!("{expected} for the OnnxRuntime observer");
            Err(Error::qconfig(expected, got))
        };
        if config.qscheme == QScheme::PerChannelAffineFloatQParams {
            return refuse("integer zero points", config.qscheme.to_string());
        }
        if let Some(range) = config.quant_range {
            return refuse("no quant_range", format!("{range:?}"));
        }
        if config.eps != f32::EPSILON {
            let expected = "the default eps, which is not used,";
            return refuse(expected, config.eps.to_string());
        }
        let symmetric = config.qscheme.is_symmetric();
        Ok(Self::OnnxRuntime {
            dtype: config.dtype,
            quant_range: onnxruntime_quant_range(config.dtype, symmetric, config.reduce_range),
            symmetric,
        })
    }

    /// The parameters of each range; without a range, before the first tensor, as for a weight
    /// of zeros.
    pub fn calculate_qparams(&self, ranges: &[[f32; 2]]) -> Result<WeightQParams> {
        let (dtype, quant_range, symmetric) = match *self {
            Self::PyTorch(formula) => return formula.calculate_qparams(ranges),
            Self::OnnxRuntime { dtype, quant_range, symmetric } => (dtype, quant_range, symmetric),
        };
        let ranges = if ranges.is_empty() { &[[0., 0.]] } else { ranges };
        let qparams = ranges.iter();
        let qparams =
            qparams.map(|[min, max]| onnxruntime_weight(*min, *max, quant_range, symmetric));
        let (scales, zero_points) = qparams.map(|q| (q.scale, q.zero_point)).unzip();
        let qparams = WeightQParams::new(dtype, scales, ZeroPoints::Int(zero_points))?;
        Ok(qparams.with_rounding(Rounding::Divide))
    }
}

/// PyTorch's formulas.
#[derive(Clone, Copy, Debug)]
pub(super) struct PyTorch {
    dtype: QDType,
    qscheme: QScheme,
    quant_range: [i32; 2],
    eps: f32,
    /// The zero point of the symmetric schemes.
    middle: i32,
}

impl PyTorch {
    fn new(config: &ObserverConfig) -> Result<Self> {
        let (dtype, qscheme) = (config.dtype, config.qscheme);
        if !(config.eps.is_normal() && config.eps > 0.) {
            let expected = "a positive normal number";
            return Err(Error::argument("eps", expected, config.eps));
        }
        // Zero's code, 128, would be outside the codes; PyTorch's min-max observers refuse.
        if qscheme.is_symmetric() && dtype == QDType::QUInt8 && config.reduce_range {
            let expected = "an affine scheme, qint8 or the full range";
            let got = "symmetric quint8 with reduce_range";
            return Err(Error::qconfig(expected, got));
        }
        let [min, max] = config.quant_range.unwrap_or(dtype.codes());
        if min > 0 || max < 0 {
            let expected = "a range that includes 0";
            let got = format!("{min} to {max}");
            return Err(Error::argument("quant_range", expected, got));
        }
        check_quant_range(dtype, [min, max])?;
        let quant_range =
            if config.reduce_range { [min.div_euclid(2), max.div_euclid(2)] } else { [min, max] };
        check_quant_range(dtype, quant_range)?;
        let middle = match (dtype, config.quant_range) {
            (QDType::QInt8, _) => 0,
            (QDType::QUInt8, None) => 128,
            (QDType::QUInt8, Some(_)) => (quant_range[0] + quant_range[1]).div_euclid(2),
        };
        Ok(Self { dtype, qscheme, quant_range, eps: config.eps, middle })
    }

    /// The parameters of each range; scale 1 and zero point 0 without a range, as PyTorch has them
    /// before the first tensor.
    fn calculate_qparams(&self, ranges: &[[f32; 2]]) -> Result<WeightQParams> {
        let &Self { quant_range, eps, .. } = self;
        // Averages of far numbers may have left f32.
        if let Some(range) = ranges.iter().find(|range| !range.iter().all(|end| end.is_finite())) {
            let got = format!("{range:?}");
            return Err(Error::argument("observed range", "finite ends", got));
        }
        let ranges = ranges.iter();
        let (mut scales, mut zero_points): (Vec<_>, _) = match self.qscheme {
            QScheme::PerChannelAffineFloatQParams => {
                let qparams =
                    ranges.map(|[min, max]| qparams::affine_float(*min, *max, quant_range, eps));
                let (scales, zero_points) = qparams.unzip();
                (scales, ZeroPoints::Float(zero_points))
            }
            qscheme => {
                let qparams = ranges.map(|&[min, max]| {
                    if qscheme.is_symmetric() {
                        qparams::symmetric(min, max, quant_range, self.middle, eps)
                    } else {
                        qparams::affine(min, max, quant_range, eps)
                    }
                });
                let (scales, zero_points) = qparams.map(|q| (q.scale, q.zero_point)).unzip();
                (scales, ZeroPoints::Int(zero_points))
            }
        };
        if scales.is_empty() {
            scales.push(1.);
            match &mut zero_points {
                ZeroPoints::Int(zero_points) => zero_points.push(0),
                ZeroPoints::Float(zero_points) => zero_points.push(0.),
            }
        }
        WeightQParams::new(self.dtype, scales, zero_points)?.with_quant_range(quant_range)
    }
}
