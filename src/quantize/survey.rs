//! The first look at a model: which layers stand where, before any rule is applied.

use std::collections::HashSet;

use super::OpaqueField;
use crate::error::{Error, Result};
use crate::module::{AnyLayer, LayerKind, Quantizable, Visitor, Walk, WeightInfo};

/// One layer of the model.
pub(super) struct Found {
    pub path: String,
    pub checkpoint_name: Option<String>,
    pub kind: LayerKind,
    /// Other paths that lead to the same layer through a shared pointer.
    pub shared_as: Vec<String>,
    pub weights: Vec<WeightInfo>,
}

impl Found {
    /// Every name a rule can know the layer by.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.path)
            .chain(&self.checkpoint_name)
            .chain(&self.shared_as)
            .map(String::as_str)
    }

    pub fn is_quantized(&self) -> bool {
        self.weights.iter().all(|w| !w.dtype.is_float())
    }

    pub fn bytes(&self) -> usize {
        self.weights.iter().map(|w| w.bytes).sum()
    }
}

/// Everything a walk over the model meets.
#[derive(Default)]
pub(super) struct Survey {
    pub layers: Vec<Found>,
    pub opaque: Vec<OpaqueField>,
}

impl Survey {
    pub fn of<M: Quantizable + ?Sized>(model: &M) -> Result<Self> {
        let mut survey = Self::default();
        Walk::over(model, &mut survey)?;
        let mut seen = HashSet::new();
        for layer in &survey.layers {
            if !seen.insert(layer.path.as_str()) {
                let path = layer.path.clone();
                return Err(Error::DuplicatePath { path });
            }
        }
        Ok(survey)
    }
}

impl Visitor for Survey {
    fn layer(&mut self, path: &str, layer: &dyn AnyLayer) -> Result<()> {
        self.layers.push(Found {
            path: path.to_owned(),
            checkpoint_name: layer.checkpoint_name().map(str::to_owned),
            kind: layer.kind(),
            shared_as: Vec::new(),
            weights: layer.weights(),
        });
        Ok(())
    }

    fn opaque(&mut self, path: &str, type_name: &'static str) {
        self.opaque.push(OpaqueField {
            path: path.to_owned(),
            type_name: type_name.to_owned(),
        });
    }

    fn shared(&mut self, path: &str, first: &str) {
        for layer in &mut self.layers {
            let below = match layer.path.strip_prefix(first) {
                Some("") => Some(path.to_owned()),
                Some(rest) if first.is_empty() => Some(format!("{path}.{rest}")),
                Some(rest) if rest.starts_with('.') => Some(format!("{path}{rest}")),
                _ => None,
            };
            layer.shared_as.extend(below);
        }
    }
}
