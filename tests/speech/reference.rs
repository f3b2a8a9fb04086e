//! A folder of weights with the original's answers to generated signals, and comparisons with them.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result};
use candle_core::{Device, Tensor};
use candle_dynquant::inspect::Deviation;

/// The tensors of a file, by name.
pub struct Tensors(HashMap<String, Tensor>);

impl Tensors {
    pub fn read(path: &Path) -> Result<Self> {
        let tensors = candle_core::safetensors::load(path, &Device::Cpu);
        Ok(Self(tensors.with_context(|| path.display().to_string())?))
    }

    pub fn get(&self, name: &str) -> Result<Tensor> {
        let tensor = self.0.get(name);
        Ok(tensor.with_context(|| format!("no tensor {name}"))?.clone())
    }
}

/// The folder that `variable` names; prints how to get it and returns `None` if it is not set.
pub fn folder(variable: &str, script: &str) -> Option<std::path::PathBuf> {
    let dir = std::env::var_os(variable);
    if dir.is_none() {
        println!("skipped: set {variable} to the folder that scripts/{script} makes");
    }
    dir.map(Into::into)
}

/// The largest difference of two elements; infinite where one is NaN.
pub fn largest_difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    let differences = (a - b)?.abs()?.flatten_all()?.to_vec1::<f32>()?;
    Ok(differences.into_iter().fold(0., |most, difference| {
        if difference.is_nan() { f32::INFINITY } else { difference.max(most) }
    }))
}

pub fn decibels(float: &Tensor, quantized: &Tensor) -> Result<f64> {
    let mut deviation = Deviation::default();
    deviation.add(float, quantized)?;
    Ok(deviation.sqnr_db())
}

pub fn bits(tensor: &Tensor) -> Result<Vec<u32>> {
    let values = tensor.flatten_all()?.to_vec1::<f32>()?;
    Ok(values.into_iter().map(f32::to_bits).collect())
}
