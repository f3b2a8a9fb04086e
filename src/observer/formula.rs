//! PyTorch's `calculate_qparams`: from the ranges an observer kept to scales and zero points.

use super::config::ObserverConfig;
use super::weight_qparams::{WeightQParams, ZeroPoints, check_quant_range};
use crate::error::{Error, Result};
use crate::qparams::{self, QDType, QScheme};

/// The parts of a configuration that `calculate_qparams` needs, checked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Formula {
    dtype: QDType,
    qscheme: QScheme,
    quant_range: [i32; 2],
    eps: f32,
    /// The zero point of the symmetric schemes.
    middle: i32,
}

impl Formula {
    /// For an observer that keeps one range.
    pub fn per_tensor(config: &ObserverConfig, observer: &'static str) -> Result<Self> {
        check_granularity(config, observer, false)?;
        Self::new(config)
    }

    /// For an observer that keeps a range for each channel.
    pub fn per_channel(config: &ObserverConfig, observer: &'static str) -> Result<Self> {
        check_granularity(config, observer, true)?;
        Self::new(config)
    }

    fn new(config: &ObserverConfig) -> Result<Self> {
        let (dtype, qscheme) = (config.dtype, config.qscheme);
        if !(config.eps.is_normal() && config.eps > 0.) {
            return Err(Error::InvalidArgument {
                what: "eps",
                expected: "a positive normal number".into(),
                got: config.eps.to_string(),
            });
        }
        // Zero's code, 128, would be outside the codes; PyTorch's min-max observers refuse.
        if qscheme.is_symmetric() && dtype == QDType::QUInt8 && config.reduce_range {
            return Err(Error::UnsupportedQConfig {
                expected: "an affine scheme, qint8 or the full range".into(),
                got: "symmetric quint8 with reduce_range".into(),
            });
        }
        let [min, max] = config.quant_range.unwrap_or(dtype.codes());
        if min > 0 || max < 0 {
            return Err(Error::InvalidArgument {
                what: "quant_range",
                expected: "a range that includes 0".into(),
                got: format!("{min} to {max}"),
            });
        }
        check_quant_range(dtype, [min, max])?;
        let quant_range = if config.reduce_range {
            [min.div_euclid(2), max.div_euclid(2)]
        } else {
            [min, max]
        };
        check_quant_range(dtype, quant_range)?;
        let middle = match (dtype, config.quant_range) {
            (QDType::QInt8, _) => 0,
            (QDType::QUInt8, None) => 128,
            (QDType::QUInt8, Some(_)) => (quant_range[0] + quant_range[1]).div_euclid(2),
        };
        Ok(Self {
            dtype,
            qscheme,
            quant_range,
            eps: config.eps,
            middle,
        })
    }

    /// Scale 1 and zero point 0 where there is no range, as PyTorch before the first tensor.
    pub fn calculate_qparams(&self, ranges: &[[f32; 2]]) -> Result<WeightQParams> {
        let &Self {
            quant_range, eps, ..
        } = self;
        // Averages of far numbers may have left f32.
        if let Some(range) = ranges
            .iter()
            .find(|range| !range.iter().all(|end| end.is_finite()))
        {
            return Err(Error::InvalidArgument {
                what: "observed range",
                expected: "finite ends".into(),
                got: format!("{range:?}"),
            });
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

fn check_granularity(
    config: &ObserverConfig,
    observer: &'static str,
    per_channel: bool,
) -> Result<()> {
    if config.qscheme.is_per_channel() == per_channel {
        return Ok(());
    }
    let kind = if per_channel { "channel" } else { "tensor" };
    Err(Error::UnsupportedQConfig {
        expected: format!("a scheme per {kind} for the {observer} observer"),
        got: config.qscheme.to_string(),
    })
}
