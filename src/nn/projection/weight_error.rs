//! How far a quantized weight is from the float one.

/// How far a quantized weight is from the float one.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::{nn::Projection, QConfig};
///
/// let float = Projection::new(Tensor::randn(0f32, 1., (64, 64), &Device::Cpu)?, None);
/// let int8 = float.quantize(&QConfig::int8())?.weight_error(&float)?;
/// let half = float.quantize(&QConfig::float16())?.weight_error(&float)?;
/// assert!(int8.sqnr_db > 35. && half.sqnr_db > 65.);
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct WeightError {
    /// Greatest difference of an element.
    pub max_abs: f32,
    /// Mean difference of an element.
    pub mean_abs: f32,
    /// `10 log10(sum w^2 / sum (w - w')^2)`, in decibels; infinite if nothing differs.
    pub sqnr_db: f32,
}

impl WeightError {
    pub(super) fn of(expected: &[f32], got: &[f32]) -> Self {
        let pairs = || {
            expected
                .iter()
                .zip(got)
                .map(|(e, g)| (f64::from(*e), f64::from(*g)))
        };
        let sum = |of: fn((f64, f64)) -> f64| pairs().map(of).sum::<f64>();
        let max = pairs().map(|(e, g)| (e - g).abs()).fold(0., f64::max);
        let noise = sum(|(e, g)| (e - g).powi(2));
        let sqnr = match noise {
            0. => f64::INFINITY,
            noise => 10. * (sum(|(e, _)| e * e) / noise).log10(),
        };
        Self {
            max_abs: max as f32,
            mean_abs: (sum(|(e, g)| (e - g).abs()) / expected.len().max(1) as f64) as f32,
            sqnr_db: sqnr as f32,
        }
    }
}
