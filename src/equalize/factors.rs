//! The factors of a pair, from the range of its norm's output and the weights that read it.

use candle_core::{Device, Tensor};

use crate::error::Result;
use crate::tensor::to_f32_vec;

/// Exponents beyond which no factor goes, so that halves stay normal.
const MAX_EXPONENT: f64 = 8.;

/// The maximum of each column's absolute values over all matrices, or of each input channel's of a
/// convolution.
pub(super) fn column_maxima(matrices: &[Tensor]) -> Result<Vec<f32>> {
    let mut maxima: Vec<f32> = Vec::new();
    for matrix in matrices.iter().filter(|matrix| matrix.elem_count() > 0) {
        let columns = matrix.transpose(0, 1)?.flatten_from(1)?.abs()?.max(1)?;
        let columns = to_f32_vec(&columns, "equalize")?;
        maxima.resize(columns.len(), 0.);
        for (max, column) in maxima.iter_mut().zip(columns) {
            *max = max.max(column);
        }
    }
    Ok(maxima)
}

/// Powers of two, `[hidden]`, by which the norm's output is divided and the weights are multiplied.
///
/// Their geometric mean is about 1; a channel that is always zero, or that no layer multiplies, has
/// 1.
pub(super) fn factors(ranges: &[f32], columns: &[f32], alpha: f64) -> Result<Tensor> {
    let exponents = ranges.iter().zip(columns).map(|(range, column)| {
        let (range, column) = (f64::from(*range), f64::from(*column));
        let exponent = alpha * range.log2() - (1. - alpha) * column.log2();
        exponent.is_finite().then_some(exponent)
    });
    let exponents: Vec<Option<f64>> = exponents.collect();
    let known = exponents.iter().flatten();
    let mean = known.clone().sum::<f64>() / (known.count() as f64).max(1.);
    let power = |exponent: Option<f64>| {
        let exponent = exponent.map_or(0., |exponent| exponent - mean).round();
        exponent.clamp(-MAX_EXPONENT, MAX_EXPONENT).exp2() as f32
    };
    let factors: Vec<f32> = exponents.into_iter().map(power).collect();
    let len = factors.len();
    Ok(Tensor::from_vec(factors, len, &Device::Cpu)?)
}
