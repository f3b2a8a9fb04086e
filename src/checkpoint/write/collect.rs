//! A model's layers and norms as they are saved, with the names that their tensors may have.

use candle_core::Tensor;

use crate::error::Result;
use crate::kernels::Precision;
use crate::module::{Affine, AnyNorm, Layer, LayerKind, Visitor, WeightInfo};
use crate::weight::{Origin, Quantized, StoredValue};

/// A weight and the names that its tensor may have.
pub struct Held<W = Quantized> {
    pub path: String,
    pub kind: LayerKind,
    pub names: Vec<String>,
    /// The part of a tensor that it was made of.
    pub origin: Option<Origin>,
    /// Whether the layer asked the checkpoint for it by its name.
    pub by_name: bool,
    /// Whether a checkpoint without it is complete.
    pub is_computed: bool,
    pub weight: W,
}

pub struct Float {
    pub tensor: Tensor,
    pub folded: bool,
}

/// A bias and the name of its tensor, as far as the weight's is known.
pub struct HeldBias {
    pub path: String,
    pub name: String,
    pub bias: Tensor,
}

/// A norm and the prefixes that its tensors may have.
pub struct HeldNorm {
    pub path: String,
    pub prefixes: Vec<String>,
    /// Whether it asked the checkpoint for them by its name.
    pub by_name: bool,
    pub affine: Affine,
    /// Whether the parameters differ from the checkpoint's.
    pub folded: bool,
}

/// Attention, and the name it was loaded under.
pub struct HeldAttention {
    pub path: String,
    pub name: Option<String>,
    pub precision: Precision,
}

#[derive(Default)]
pub struct Collect {
    pub held: Vec<Held>,
    pub floats: Vec<Held<Float>>,
    pub biases: Vec<HeldBias>,
    /// Weights that layers do not hand out: the checkpoint has them.
    pub kept: Vec<Held<()>>,
    pub norms: Vec<HeldNorm>,
    pub attention: Vec<HeldAttention>,
    pub embeddings: Vec<String>,
    /// Linears without quantized weights: a tied head has no tensor that tells of it.
    pub float_linears: Vec<String>,
}

impl<W> Held<W> {
    /// Another weight in the same place.
    pub fn with<T>(&self, weight: T) -> Held<T> {
        Held {
            path: self.path.clone(),
            kind: self.kind.clone(),
            names: self.names.clone(),
            origin: self.origin.clone(),
            by_name: self.by_name,
            is_computed: self.is_computed,
            weight,
        }
    }

    /// The name of the bias beside it: by the tensor's name, or the name that the layer asked for.
    fn bias_name(&self) -> Option<String> {
        let weight = match &self.origin {
            Some(origin) => origin.is_whole().then_some(&*origin.name)?,
            None => self.names.first().filter(|_| self.by_name)?,
        };
        let (prefix, last) = weight.rsplit_once('.').unwrap_or(("", weight));
        Some(join(prefix, &format!("bias{}", last.strip_prefix("weight")?)))
    }
}

impl Visitor for Collect {
    fn layer(&mut self, path: &str, layer: &dyn Layer) -> Result<()> {
        let prefixes = [layer.checkpoint_name(), Some(path)];
        let prefixes: Vec<&str> = prefixes.into_iter().flatten().collect();
        let stored = layer.stored()?;
        self.attention.extend(layer.precision().map(|precision| HeldAttention {
            path: path.to_owned(),
            name: layer.checkpoint_name().map(str::to_owned),
            precision,
        }));
        match layer.kind() {
            LayerKind::Embedding => {
                self.embeddings.extend(prefixes.iter().map(|n| (*n).to_owned()))
            }
            LayerKind::Linear if stored.iter().all(|weight| weight.quantized().is_none()) => {
                self.float_linears.push(prefixes[0].to_owned());
            }
            _ => {}
        }
        let infos = layer.weight_infos();
        if layer.kind() == LayerKind::Embedding {
            let origins = infos.iter().filter_map(|info| info.origin.as_ref());
            let modules = origins.filter_map(|origin| origin.name.strip_suffix(".weight"));
            self.embeddings.extend(modules.map(str::to_owned));
        }
        let held = |name: &str| {
            let info = infos.iter().find(|info| info.name == name);
            let origin = info.and_then(|info| info.origin.clone());
            Held {
                path: path.to_owned(),
                kind: layer.kind(),
                names: prefixes.iter().map(|prefix| join(prefix, name)).collect(),
                origin,
                by_name: layer.checkpoint_name().is_some(),
                is_computed: false,
                weight: (),
            }
        };
        let kept = |info: &&WeightInfo| stored.iter().all(|weight| weight.name() != info.name);
        self.kept.extend(infos.iter().filter(kept).map(|info| held(&info.name)));
        for weight in stored {
            let held = Held { is_computed: weight.is_computed(), ..held(weight.name()) };
            let (value, bias) = weight.into_parts();
            if let Some((name, bias)) = held.bias_name().zip(bias) {
                self.biases.push(HeldBias { path: path.to_owned(), name, bias });
            }
            match value {
                StoredValue::Quantized(weight) => self.held.push(held.with(weight)),
                StoredValue::Float { weight, folded } => {
                    self.floats.push(held.with(Float { tensor: weight, folded }))
                }
            }
        }
        Ok(())
    }

    fn norm(&mut self, path: &str, norm: &dyn AnyNorm) -> Result<()> {
        let prefixes = [norm.checkpoint_name(), Some(path)].into_iter().flatten();
        self.norms.push(HeldNorm {
            path: path.to_owned(),
            prefixes: prefixes.map(str::to_owned).collect(),
            by_name: norm.checkpoint_name().is_some(),
            affine: norm.affine(),
            folded: norm.is_folded(),
        });
        Ok(())
    }
}

/// The name of a tensor of the module `prefix`.
pub fn join(prefix: &str, name: &str) -> String {
    match prefix {
        "" => name.to_owned(),
        prefix => format!("{prefix}.{name}"),
    }
}
