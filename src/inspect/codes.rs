//! How well the codes of weights and activations are used.

use candle_core::Tensor;
use serde::Serialize;

use super::histogram::Histogram;
use crate::deviation::Deviation;
use crate::error::Result;
use candle_dynquant_kernels::qparams::activation as kernels;

use crate::qconfig::{Arithmetic, DynamicConfig, Granularity};
use crate::qparams::{Rounding, quantize};
use crate::tensor::to_f32_vec;
use crate::weight::Quantized;

/// Codes of 8 bits.
const CODES: usize = 256;
/// Distance from the value a code stands for, in steps, beyond which it was clipped: half a step,
/// and what rounding adds.
const CLIPPED: f32 = 0.51;

/// A quantized weight beside the float one.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct WeightInspection {
    /// The name within the layer: `weight`, `weight_ih_l0`.
    pub name: String,
    /// How far the dequantized weight is from the float one.
    pub error: Deviation,
    /// The share of elements beyond the range of the codes, which were clipped.
    pub clipped: f64,
    /// The share of the codes that no element has; `None` of float16.
    pub unused_codes: Option<f64>,
    /// The float weight's elements.
    pub histogram: Histogram,
}

impl WeightInspection {
    pub(super) fn new(
        name: &str,
        [float, quantized]: [&Tensor; 2],
        stored: &Quantized,
    ) -> Result<Self> {
        let op = "weight";
        let (mut error, mut histogram) = (Deviation::default(), Histogram::default());
        error.add(float, quantized)?;
        let (float, quantized) = (to_f32_vec(float, op)?, to_f32_vec(quantized, op)?);
        histogram.add(&float);
        let is_int8 = stored.format().codes().is_some();
        let clipped = if !is_int8 {
            stored.format().saturated
        } else {
            let scales = stored.scales();
            let columns = stored.shape()[1].max(1);
            let pairs = float.iter().zip(&quantized).enumerate();
            let is_clipped = |(at, (float, quantized)): &(usize, (&f32, &f32))| {
                let scale = scales.get(at / columns).or(scales.first());
                scale.is_some_and(|scale| (*float - *quantized).abs() > CLIPPED * scale)
            };
            pairs.filter(is_clipped).count()
        };
        let unused_codes = is_int8.then(|| {
            let mut used = [false; CODES];
            for code in stored.codes() {
                used[usize::from(code as u8)] = true;
            }
            unused(&used, CODES)
        });
        Ok(Self {
            name: name.to_owned(),
            error,
            clipped: clipped as f64 / float.len().max(1) as f64,
            unused_codes,
            histogram,
        })
    }
}

/// The activations that a layer multiplies, over all its calls.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ActivationInspection {
    /// The minimum.
    pub min: f32,
    /// The maximum.
    pub max: f32,
    /// The share of elements that are beyond the range of their codes: 0, as dynamic ranges hold
    /// all elements; `None` where they stay float.
    pub clipped: Option<f64>,
    /// The share of the codes that no element has; `None` where they stay float.
    pub unused_codes: Option<f64>,
    /// The elements.
    pub histogram: Histogram,
}

/// Gathers what an [`ActivationInspection`] says.
pub(super) struct ActivationTotals {
    config: Option<DynamicConfig>,
    used: [bool; CODES],
    /// `None` if nothing was added.
    seen: Option<ActivationInspection>,
}

impl ActivationTotals {
    pub fn new(config: Option<DynamicConfig>) -> Self {
        Self { config, used: [false; CODES], seen: None }
    }

    /// Adds the input of a call.
    pub fn add(&mut self, input: &Tensor) -> Result<()> {
        let values = to_f32_vec(input, "activations")?;
        if values.is_empty() {
            return Ok(());
        }
        let (min, max) = range(&values);
        let seen = self.seen.get_or_insert_with(|| ActivationInspection {
            min,
            max,
            clipped: self.config.map(|_| 0.),
            unused_codes: None,
            histogram: Histogram::default(),
        });
        (seen.min, seen.max) = (seen.min.min(min), seen.max.max(max));
        seen.histogram.add(&values);
        if let Some(config) = self.config {
            let columns = match config.granularity {
                Granularity::PerTensor => values.len(),
                Granularity::PerRow => input.dims().last().copied().unwrap_or(1),
            };
            for values in values.chunks(columns) {
                self.quantize(config, values);
            }
        }
        Ok(())
    }

    /// Adds the codes of values that share a scale.
    fn quantize(&mut self, config: DynamicConfig, values: &[f32]) {
        let (min, max) = range(values);
        if !(min.is_finite() && max.is_finite()) {
            return;
        }
        let qparams = kernels::DynamicConfig::from(config).qparams(min, max);
        let (scale, zero) = (qparams.scale, qparams.zero_point);
        let rounding = match config.arithmetic {
            Arithmetic::OnnxRuntime => Rounding::Divide,
            Arithmetic::PyTorch => Rounding::Multiply,
        };
        let codes = quantize(values, scale, zero, [0, self.top()], rounding);
        for code in codes {
            self.used[code as usize] = true;
        }
    }

    /// The maximum code.
    fn top(&self) -> i32 {
        match self.config {
            Some(config) if config.reduce_range => 127,
            _ => 255,
        }
    }

    /// `None` if nothing was added.
    pub fn finish(&self) -> Option<ActivationInspection> {
        let unused = |_| unused(&self.used, self.top() as usize + 1);
        let unused_codes = self.config.map(unused);
        let seen = self.seen.clone()?;
        Some(ActivationInspection { unused_codes, ..seen })
    }
}

/// The share of the first `count` codes that are not used.
fn unused(used: &[bool; CODES], count: usize) -> f64 {
    let unused = used[..count].iter().filter(|used| !**used).count();
    unused as f64 / count as f64
}

fn range(values: &[f32]) -> (f32, f32) {
    let extremes = (f32::INFINITY, f32::NEG_INFINITY);
    values.iter().fold(extremes, |(min, max), value| (min.min(*value), max.max(*value)))
}
