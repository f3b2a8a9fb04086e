//! A checkpoint whose tensors are all loaded, known to be harmless, or named in an error.

use std::collections::HashSet;
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, bail, ensure};
use candle_core::{DType, Device, Result as CandleResult, Shape, Tensor};
use candle_dynquant::Checkpoint;
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

use crate::tables::TENSORS;

/// A checkpoint that records which tensors were loaded.
pub(crate) struct Loaded {
    checkpoint: Checkpoint,
    asked: Arc<Mutex<HashSet<String>>>,
    /// The beginnings of the names of tensors that belong to another model.
    others: &'static [&'static str],
}

const WEIGHT: &str = ".weight";

impl Loaded {
    pub fn new(checkpoint: Checkpoint) -> Self {
        Self { checkpoint, asked: Arc::default(), others: &[] }
    }

    /// Leaves out the tensors whose names begin so.
    pub fn without(self, others: &'static [&'static str]) -> Self {
        Self { others, ..self }
    }

    pub fn is_quantized(&self) -> bool {
        self.checkpoint.tensors().any(|tensor| tensor.quantized)
    }

    pub fn bytes(&self) -> u64 {
        self.checkpoint.tensors().map(|tensor| tensor.bytes).sum()
    }

    pub fn var_builder(&self) -> VarBuilder<'static> {
        let backend = Backend {
            vb: self.checkpoint.var_builder(DType::F32, &Device::Cpu),
            asked: Arc::clone(&self.asked),
        };
        VarBuilder::from_backend(Box::new(backend), DType::F32, Device::Cpu)
    }

    /// Checks that no tensor was left out, and that the model's are floats.
    pub fn check(&self, place: &dyn Display) -> Result<()> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        // The scales and other parts of a quantized weight stand beside it.
        let is_part = |name: &str| {
            let mut modules = name.match_indices('.').map(|(at, _)| &name[..at]);
            self.checkpoint.is_quantized()
                && !name.ends_with(".bias")
                && modules.any(|module| asked.contains(&format!("{module}{WEIGHT}")))
        };
        let mut names = self.checkpoint.tensors().map(|tensor| tensor.name);
        let passed_over = names.find(|name| {
            let is_other = self.others.iter().any(|other| name.starts_with(other));
            !is_other
                && !asked.contains(name)
                && TENSORS.treatment(name).is_none()
                && !is_part(name)
        });
        ensure!(
            passed_over.is_none(),
            "{place}: tensor {:?}: expected tensors of the model that its config.json describes, \
             got one that none of its layers has",
            passed_over.unwrap_or_default(),
        );
        let mut tensors = self.checkpoint.tensors().filter(|tensor| !tensor.quantized);
        let wrong = tensors.find(|tensor| {
            let is_float = tensor.dtype.contains('F') || tensor.dtype.starts_with('Q');
            !is_float && asked.contains(&tensor.name) && !is_part(&tensor.name)
        });
        if let Some(tensor) = wrong {
            let (name, got) = (tensor.name, tensor.dtype);
            bail!("{place}: tensor {name:?}: expected floats, got {got}");
        }
        Ok(())
    }
}

struct Backend {
    vb: VarBuilder<'static>,
    asked: Arc<Mutex<HashSet<String>>>,
}

impl Backend {
    /// Records a tensor; the description of a quantized weight is requested by a longer name.
    fn remember(&self, name: &str) {
        let end = name.rfind(WEIGHT).map(|at| at + WEIGHT.len());
        let end = end.filter(|end| !name[*end..].starts_with(char::is_alphanumeric));
        let end = end.unwrap_or(name.len());
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.extend([name, &name[..end]].map(str::to_owned));
    }
}

impl SimpleBackend for Backend {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: Init,
        dtype: DType,
        _: &Device,
    ) -> CandleResult<Tensor> {
        self.remember(name);
        self.vb.get_with_hints_dtype(shape, name, init, dtype)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, _: &Device) -> CandleResult<Tensor> {
        self.remember(name);
        self.vb.get_unchecked_dtype(name, dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.vb.contains_tensor(name)
    }
}
