//! A batch norm as a factor and a term of each channel.

use candle_core::{DType, Tensor};
use candle_nn::BatchNorm;

use crate::error::{Error, Result};

/// The factors and the terms of the channels, in f64.
pub fn factors(norm: &BatchNorm) -> Result<[Tensor; 2]> {
    let mean = finite("running_mean of the batch norm", norm.running_mean())?;
    let variance = finite("running_var of the batch norm", norm.running_var())?;
    let (eps, variances) = (norm.eps(), variance.to_vec1::<f64>()?);
    let is_wrong = |variance: &f64| variance + eps <= 0. || (variance + eps).is_nan();
    if let Some(index) = variances.iter().position(is_wrong) {
        let expected = format!("numbers above 0 with eps {eps} added");
        let got = format!("{} at index {index}", variances[index]);
        return Err(Error::argument("running_var of the batch norm", expected, got));
    }
    let deviation = (variance + eps)?.sqrt()?;
    let (weight, bias) = match norm.weight_and_bias() {
        None => (deviation.ones_like()?, deviation.zeros_like()?),
        Some((weight, bias)) => {
            (finite("weight of the batch norm", weight)?, finite("bias of the batch norm", bias)?)
        }
    };
    let factors = finite("factor of the batch norm", &weight.div(&deviation)?)?;
    let terms = (bias - mean.mul(&factors)?)?;
    Ok([factors, terms])
}

/// The values of the channels in f64, none of which is infinite in f32.
pub fn finite(what: &'static str, tensor: &Tensor) -> Result<Tensor> {
    Error::check_finite(what, &tensor.to_dtype(DType::F32)?.to_vec1()?)?;
    Ok(tensor.to_dtype(DType::F64)?)
}
