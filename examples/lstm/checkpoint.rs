//! The tensors of a safetensors file, checked before candle sees them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use candle_core::safetensors::Load;
use candle_core::{DType, Device, Result as CandleResult, Shape, Tensor};
use candle_nn::VarBuilder;
use candle_nn::var_builder::SimpleBackend;
use safetensors::{Dtype, SafeTensors};

/// Tensors by name, all f32; it remembers which of them were asked for.
pub struct Checkpoint {
    path: PathBuf,
    tensors: BTreeMap<String, Tensor>,
    used: Mutex<BTreeSet<String>>,
}

impl Checkpoint {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self> {
        // Read, not mapped: a mapped file that changes under a program is undefined behaviour.
        let buffer = fs::read(path)
            .with_context(|| format!("{}: expected a readable file", path.display()))?;
        let file = SafeTensors::deserialize(&buffer).with_context(|| {
            format!(
                "{}: expected a complete safetensors file, got {} bytes that are none",
                path.display(),
                buffer.len()
            )
        })?;
        let mut tensors = BTreeMap::new();
        for (key, view) in file.iter() {
            ensure!(
                matches!(
                    view.dtype(),
                    Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16
                ),
                "{}: tensor {key:?}: expected f64, f32, f16 or bf16, got {:?}",
                path.display(),
                view.dtype(),
            );
            let tensor = view.load(&Device::Cpu)?.to_dtype(DType::F32)?;
            tensors.insert(key.to_owned(), tensor);
        }
        Ok(Self {
            path: path.to_owned(),
            tensors,
            used: Mutex::default(),
        })
    }

    /// The tensors as an ordinary VarBuilder.
    pub fn var_builder(&self) -> VarBuilder<'_> {
        VarBuilder::from_backend(Box::new(Backend(self)), DType::F32, Device::Cpu)
    }

    /// Bytes of the tensors that were asked for; an error if some were not.
    pub fn finish(self) -> Result<usize> {
        let used = self
            .used
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let mut unused = self.tensors.keys().filter(|key| !used.contains(*key));
        if let Some(first) = unused.next() {
            bail!(
                "{}: expected only tensors of the model that config.json describes, got {} more: {first:?}{}",
                self.path.display(),
                self.tensors.len() - used.len(),
                if unused.next().is_some() { ", .." } else { "" },
            );
        }
        let bytes = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
        Ok(self.tensors.values().map(bytes).sum())
    }
}

/// Hands the tensors to candle, with errors that name the file.
struct Backend<'a>(&'a Checkpoint);

impl SimpleBackend for Backend<'_> {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: candle_nn::Init,
        dtype: DType,
        dev: &Device,
    ) -> CandleResult<Tensor> {
        let tensor = self.get_unchecked(name, dtype, dev)?;
        if tensor.shape() != &shape {
            candle_core::bail!(
                "{}: tensor {name:?}: expected shape {:?}, got {:?}",
                self.0.path.display(),
                shape.dims(),
                tensor.dims(),
            );
        }
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> CandleResult<Tensor> {
        let Some(tensor) = self.0.tensors.get(name) else {
            candle_core::bail!(
                "{}: expected tensor {name:?}, got no such tensor",
                self.0.path.display(),
            );
        };
        let mut used = self.0.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.insert(name.to_owned());
        tensor.to_dtype(dtype)?.to_device(dev)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.tensors.contains_key(name)
    }
}
