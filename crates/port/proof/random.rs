//! Weights that depend only on their names.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::VarBuilder;
use candle_nn::var_builder::SimpleBackend;

/// The values of a tensor, which depend on the name only.
pub fn values(name: &str, dims: &[usize]) -> Result<Tensor> {
    let mut state = name
        .bytes()
        .fold(0x9e37_79b9_7f4a_7c15_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let count = dims.iter().product::<usize>();
    // The products of an output: of an image's convolution, over its window too.
    let from = if dims.len() == 4 { 1 } else { dims.len().max(1) - 1 };
    let products = dims[from..].iter().product::<usize>() as f32;
    let around_one = ["weight", "running_var", "cluster_usage"];
    let around_one = around_one.iter().any(|end| name.ends_with(end));
    let norm = dims.len() == 1 && around_one;
    let scale = if dims.len() > 1 { (3. / products).sqrt() } else { 0.1 };
    let values = (0..count).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let value = ((state >> 40) as f32 / (1u64 << 24) as f32 * 2. - 1.) * scale;
        if norm { 1. + value } else { value }
    });
    Tensor::from_vec(values.collect(), dims, &Device::Cpu)
}

/// The largest difference between two float outputs, the largest value of the first, and how far an
/// int8 output is from that, in decibels.
pub fn compared(
    original: &Tensor,
    float: &Tensor,
    int8: &Tensor,
) -> anyhow::Result<(f32, f32, f64)> {
    let flat = |t: &Tensor| t.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>();
    let (original, float, int8) = (flat(original)?, flat(float)?, flat(int8)?);
    let lengths = [original.len(), float.len(), int8.len()];
    anyhow::ensure!(lengths == [original.len(); 3], "{lengths:?} values");
    let pairs = original.iter().zip(&float);
    let difference = pairs.fold(0f32, |max, (a, b)| max.max((a - b).abs()));
    let largest = original.iter().fold(0f32, |max, a| max.max(a.abs()));
    let power: f64 = original.iter().map(|a| f64::from(*a).powi(2)).sum();
    let pairs = original.iter().zip(&int8);
    let noise: f64 = pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum();
    Ok((difference, largest, 10. * (power / noise).log10()))
}

/// The tensors that a model loaded, with their shapes.
pub type Asked = Arc<Mutex<BTreeMap<String, Vec<usize>>>>;

/// Writes these tensors as a safetensors file.
pub fn write(asked: &Asked, path: &Path) -> anyhow::Result<()> {
    let asked = asked.lock().map_err(|_| anyhow::anyhow!("poisoned"))?;
    let tensors = asked.iter();
    let tensors = tensors.map(|(name, dims)| Ok((name.clone(), values(name, dims)?)));
    let tensors = tensors.collect::<Result<HashMap<_, _>>>()?;
    Ok(candle_core::safetensors::save(&tensors, path)?)
}

/// A loader of tensors whose values depend on their names.
pub struct Named {
    asked: Asked,
}

impl Named {
    pub fn vb() -> VarBuilder<'static> {
        Self::counted().0
    }

    /// A loader, with the tensors that a model loads from it.
    pub fn counted() -> (VarBuilder<'static>, Asked) {
        let asked = Asked::default();
        let backend = Self { asked: Arc::clone(&asked) };
        (VarBuilder::from_backend(Box::new(backend), DType::F32, Device::Cpu), asked)
    }
}

impl SimpleBackend for Named {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: candle_nn::Init,
        dtype: DType,
        _: &Device,
    ) -> Result<Tensor> {
        if let Ok(mut asked) = self.asked.lock() {
            asked.insert(name.to_owned(), shape.dims().to_vec());
        }
        values(name, shape.dims())?.to_dtype(dtype)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("{name} without a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        let ends = ["shared.weight", "class_embedding"];
        name == "shared" || ends.iter().any(|end| name.ends_with(end))
    }
}
