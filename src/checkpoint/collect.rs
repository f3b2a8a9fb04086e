//! A model's layers and norms as they are saved, with the names that their tensors may have.

use candle_core::Tensor;

use crate::error::Result;
use crate::module::{Affine, AnyLayer, AnyNorm, LayerKind, Visitor};
use crate::stored::{Quantized, Value};

/// A weight and the names that its tensor may have.
pub(super) struct Held<W = Quantized> {
    pub path: String,
    pub kind: LayerKind,
    pub names: Vec<String>,
    pub weight: W,
}

/// A norm and the prefixes that its tensors may have.
pub(super) struct HeldNorm {
    pub path: String,
    pub prefixes: Vec<String>,
    pub affine: Affine,
    /// Whether the parameters are others than those of the checkpoint.
    pub folded: bool,
}

/// The layers and norms of the model.
#[derive(Default)]
pub(super) struct Collect {
    pub held: Vec<Held>,
    pub floats: Vec<Held<Tensor>>,
    pub norms: Vec<HeldNorm>,
    pub embeddings: Vec<String>,
    /// Linears without quantized weights: a tied head has no tensor that tells of it.
    pub float_linears: Vec<String>,
}

impl Visitor for Collect {
    fn layer(&mut self, path: &str, layer: &dyn AnyLayer) -> Result<()> {
        let own = [layer.checkpoint_name(), Some(path)];
        let own: Vec<&str> = own.into_iter().flatten().collect();
        let stored = layer.stored()?;
        match layer.kind() {
            LayerKind::Embedding => self.embeddings.extend(own.iter().map(|n| (*n).to_owned())),
            LayerKind::Linear if stored.iter().all(|weight| weight.quantized().is_none()) => {
                self.float_linears.push(own[0].to_owned());
            }
            _ => {}
        }
        for weight in stored {
            let names = own.iter().map(|prefix| join(prefix, weight.name()));
            let (path, kind, names) = (path.to_owned(), layer.kind(), names.collect());
            match weight.into_value() {
                Value::Quantized(weight) => self.held.push(Held {
                    path,
                    kind,
                    names,
                    weight,
                }),
                Value::Float(weight) => self.floats.push(Held {
                    path,
                    kind,
                    names,
                    weight,
                }),
            }
        }
        Ok(())
    }

    fn norm(&mut self, path: &str, norm: &dyn AnyNorm) -> Result<()> {
        let prefixes = [norm.checkpoint_name(), Some(path)].into_iter().flatten();
        self.norms.push(HeldNorm {
            path: path.to_owned(),
            prefixes: prefixes.map(str::to_owned).collect(),
            affine: norm.affine(),
            folded: norm.is_folded(),
        });
        Ok(())
    }
}

/// The name of a tensor of the module `prefix`.
pub(super) fn join(prefix: &str, name: &str) -> String {
    match prefix {
        "" => name.to_owned(),
        prefix => format!("{prefix}.{name}"),
    }
}
