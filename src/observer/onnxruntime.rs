//! The weights of ONNX Runtime's own quantizer.

use candle_core::Tensor;

use super::config::{Observer, ObserverConfig};
use super::min_max::{Extremes, widen};
use super::values::ranges;
use super::weight_qparams::{WeightQParams, ZeroPoints};
use crate::error::{Error, Result};
use crate::qparams::{QDType, QScheme, Rounding, onnxruntime_quant_range, onnxruntime_weight};

/// The weights that `onnxruntime.quantization.quantize_dynamic` makes, per tensor or per channel.
///
/// Scales, zero points and codes equal onnxruntime 1.31.1's: a symmetric qint8 leaves out -128,
/// codes are clamped to all of the dtype's, and values are divided by the scale. Per channel,
/// `ch_axis` 0 of `[out_features, in_features]` is the last axis of ONNX's transposed weight.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::observer::{Observer, ObserverConfig, ObserverKind, OnnxRuntimeObserver};
/// use candle_dynquant::{QDType, QScheme};
///
/// let (kind, qscheme) = (ObserverKind::OnnxRuntime, QScheme::PerTensorSymmetric);
/// let config = ObserverConfig::new(kind, QDType::QInt8, qscheme);
/// let mut observer = OnnxRuntimeObserver::new(&config)?;
/// observer.observe(&Tensor::new(&[-2.54f32, 1.], &Device::Cpu)?)?;
/// assert_eq!(observer.calculate_qparams()?.scales(), [0.02]); // over 127, not 127.5
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct OnnxRuntimeObserver {
    dtype: QDType,
    quant_range: [i32; 2],
    symmetric: bool,
    ch_axis: Option<isize>,
    seen: Extremes,
}

impl OnnxRuntimeObserver {
    /// One that has seen nothing; `config.kind` does not matter.
    ///
    /// # Errors
    /// When the configuration has float zero points, a `quant_range` or an `eps`: ONNX Runtime
    /// has none of them.
    pub fn new(config: &ObserverConfig) -> Result<Self> {
        let refuse = |expected: &str, got: String| {
            Err(Error::UnsupportedQConfig {
                expected: format!("{expected} for the OnnxRuntime observer"),
                got,
            })
        };
        if config.qscheme == QScheme::PerChannelAffineFloatQParams {
            return refuse("integer zero points", config.qscheme.to_string());
        }
        if let Some(range) = config.quant_range {
            return refuse("no quant_range", format!("{range:?}"));
        }
        if config.eps != f32::EPSILON {
            return refuse(
                "the default eps, which is not used,",
                config.eps.to_string(),
            );
        }
        let symmetric = config.qscheme.is_symmetric();
        Ok(Self {
            dtype: config.dtype,
            quant_range: onnxruntime_quant_range(config.dtype, symmetric, config.reduce_range),
            symmetric,
            ch_axis: config.qscheme.is_per_channel().then_some(config.ch_axis),
            seen: Extremes::default(),
        })
    }

    /// The parameters of channels, or of a weight, with these ranges.
    pub(super) fn of_ranges(&self, ranges: &[[f32; 2]]) -> Result<WeightQParams> {
        let qparams = ranges
            .iter()
            .map(|[min, max]| onnxruntime_weight(*min, *max, self.quant_range, self.symmetric));
        let (scales, zero_points) = qparams.map(|q| (q.scale, q.zero_point)).unzip();
        let qparams = WeightQParams::new(self.dtype, scales, ZeroPoints::Int(zero_points))?;
        Ok(qparams.with_rounding(Rounding::Divide))
    }
}

impl Observer for OnnxRuntimeObserver {
    fn observe(&mut self, tensor: &Tensor) -> Result<()> {
        self.seen.update(ranges(tensor, self.ch_axis)?, widen)
    }

    fn calculate_qparams(&self) -> Result<WeightQParams> {
        self.of_ranges(match self.seen.0.as_slice() {
            [] => &[[0., 0.]],
            seen => seen,
        })
    }
}
