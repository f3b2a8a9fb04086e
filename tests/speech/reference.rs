//! A folder of weights with the original's answers to generated signals, and comparisons with them.

use crate::kit::*;

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

/// The largest difference of two elements; infinite where one is NaN.
pub fn largest_difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    let differences = (a - b)?.abs()?.flatten_all()?.to_vec1::<f32>()?;
    Ok(differences.into_iter().fold(0., |most, difference| {
        if difference.is_nan() { f32::INFINITY } else { difference.max(most) }
    }))
}
