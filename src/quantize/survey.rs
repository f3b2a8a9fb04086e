//! Lists the layers, float tensors and opaque fields of a model before any rule is applied.

use std::collections::HashMap;

use candle_core::DType;

use super::hidden::OpaqueField;
use super::outcome::LeftReason;
use crate::error::{Error, Fault, Result};
use crate::kernels::Precision;
use crate::module::{
    FoundTensor, Layer, LayerKind, Quantizable, TensorField, Visitor, Walk, WeightDType, WeightId,
    WeightInfo,
};
use crate::qconfig::{Arithmetic, QConfig};

/// The last part of the names of output projections.
const HEADS: [&str; 2] = ["lm_head", "embed_out"];

/// A layer of the model.
pub(crate) struct FoundLayer {
    pub path: String,
    pub checkpoint_name: Option<String>,
    pub kind: LayerKind,
    /// Other paths that lead to the same layer through a shared pointer.
    pub shared_as: Vec<String>,
    pub weights: Vec<WeightInfo>,
    /// The precision of a layer without weights.
    pub precision: Option<Precision>,
}

impl FoundLayer {
    /// Every path that leads to the layer.
    pub fn paths(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.path).chain(&self.shared_as)
    }

    /// Every name that a rule can match.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.paths().chain(&self.checkpoint_name).map(String::as_str)
    }

    pub fn is_quantized(&self) -> bool {
        self.precision.is_some_and(Precision::is_reduced)
            || !self.weights.is_empty() && self.weights.iter().all(|w| w.quantized)
    }

    pub fn is_convolution(&self) -> bool {
        LayerKind::CONVOLUTIONS.contains(&self.kind)
    }

    /// The reason to leave it, whatever preset or rule by kind matches. ONNX Runtime leaves none.
    pub fn loses(&self, qconfig: &QConfig) -> Option<LeftReason> {
        if let QConfig::Int8 { activation, .. } = qconfig
            && activation.arithmetic == Arithmetic::OnnxRuntime
        {
            return None;
        }
        LeftReason::of_convolution(self.weights.first()?.convolution?)
    }

    /// Elements of its weights.
    pub fn parameters(&self) -> usize {
        let elements = |w: &WeightInfo| w.shape.iter().product::<usize>();
        self.weights.iter().map(elements).sum()
    }
}

/// The result of a walk over the model.
#[derive(Default)]
pub(crate) struct Survey {
    pub layers: Vec<FoundLayer>,
    pub tensors: Vec<FoundTensor>,
    pub opaque: Vec<OpaqueField>,
    /// Paths of `VarBuilder`s in strict types.
    pub strict_builders: Vec<String>,
}

impl Survey {
    pub fn new<M: Quantizable + ?Sized>(model: &M) -> Result<Self> {
        let mut survey = Self::default();
        let aside = Walk::over_with_aside(model, &mut survey)?;
        survey.strict_builders = aside.strict_builders;
        let matrices = aside.matrices.into_iter().filter(|found| is_matrix(&found.info.shape));
        survey.tensors.extend(matrices);
        let mut seen = HashMap::new();
        for (index, layer) in survey.layers.iter().enumerate() {
            for path in layer.paths() {
                // A layer may be visited twice at one path, if shared pointers are flattened.
                if *seen.entry(path).or_insert(index) != index {
                    return Err(Error::from(Fault::DuplicatePath { path: path.clone() }));
                }
            }
        }
        Ok(survey)
    }

    /// Whether a layer is an output projection, by its name or because it shares the matrix of an
    /// embedding.
    pub fn is_head(&self, layer: &FoundLayer) -> bool {
        let is_named = |name: &str| HEADS.contains(&name.rsplit('.').next().unwrap_or(name));
        fn id(layer: &FoundLayer) -> Option<&WeightId> {
            layer.weights.first()?.id.as_ref()
        }
        let matrix = id(layer);
        let mut embeddings = (self.layers.iter()).filter(|l| l.kind == LayerKind::Embedding);
        layer.kind == LayerKind::Linear
            && (layer.names().any(is_named)
                || matrix.is_some() && embeddings.any(|embedding| id(embedding) == matrix))
    }

    /// The opaque fields that may hold layers.
    pub fn hidden(&self) -> Vec<OpaqueField> {
        self.opaque.iter().filter(|field| field.advice.is_some()).cloned().collect()
    }
}

impl Visitor for Survey {
    fn layer(&mut self, path: &str, layer: &dyn Layer) -> Result<()> {
        self.layers.push(FoundLayer {
            path: path.to_owned(),
            checkpoint_name: layer.checkpoint_name().map(str::to_owned),
            kind: layer.kind(),
            shared_as: Vec::new(),
            weights: layer.weight_infos(),
            precision: layer.precision(),
        });
        Ok(())
    }

    fn tensor(&mut self, path: &str, tensor: TensorField<'_>) {
        self.tensors.extend(FoundTensor::new(path, tensor));
    }

    fn opaque(&mut self, path: &str, type_name: &'static str, is_copy: bool) {
        self.opaque.push(OpaqueField::new(path, type_name, is_copy));
    }

    fn shared(&mut self, path: &str, first: &str) {
        for layer in &mut self.layers {
            // Not by `path` alone: layers below `first` may have been met elsewhere before.
            let below: Vec<_> =
                layer.paths().filter_map(|known| rebase(known, first, path)).collect();
            layer.shared_as.extend(below);
        }
    }
}

/// A path at or below `from` as it reads from `to`.
fn rebase(path: &str, from: &str, to: &str) -> Option<String> {
    let below = match path.strip_prefix(from)? {
        rest if rest.is_empty() || from.is_empty() => rest,
        rest => rest.strip_prefix('.')?,
    };
    Some(match (to, below) {
        (to, "") => to.to_owned(),
        ("", below) => below.to_owned(),
        (to, below) => format!("{to}.{below}"),
    })
}

/// Whether a tensor of `bytes` keeps a memory alive that is at least twice as large.
pub fn keeps_more(bytes: usize, memory: usize) -> bool {
    memory > 0 && memory >= 2 * bytes
}

impl FoundTensor {
    /// The tensor, if it is a float one that reaches along two or more dimensions, or a view of
    /// more: norms and biases are vectors, and indexes and masks are integers.
    pub fn new(path: &str, field: TensorField<'_>) -> Option<Self> {
        let TensorField { tensor, held_by, strict } = field;
        let info = WeightInfo::of_float("", tensor);
        if info.dtype == WeightDType::Other && tensor.dtype() != DType::F8E4M3 {
            return None;
        }
        let memory = info.id.as_ref().and_then(WeightId::memory_bytes);
        let is_view = memory.is_some_and(|all| keeps_more(info.bytes, all));
        let is_held = is_matrix(&info.shape) && info.bytes > 0 || is_view;
        is_held.then(|| Self { path: path.to_owned(), held_by, strict, info })
    }
}

/// Whether a shape reaches along two or more dimensions.
pub fn is_matrix(shape: &[usize]) -> bool {
    shape.iter().filter(|size| **size > 1).count() >= 2
}
