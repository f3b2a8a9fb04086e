//! The result of `quantize_dynamic`, layer by layer.

use serde::Serialize;

use crate::kernels::{Isa, Precision};
use crate::module::LayerKind;
use crate::quantize::float_tensors::{self, FloatTensor};
use crate::quantize::hidden::OpaqueField;
use crate::quantize::outcome::Outcome;
use crate::quantize::owners::{HeldWeights, Holder, Owners};
use crate::quantize::spec::decision::Decision;
use crate::quantize::survey::Survey;
use crate::quantize::swap::QuantizedLayers;

/// The result of [`quantize_dynamic`](crate::quantize_dynamic).
///
/// `Display` prints the totals, then fields that may hold layers and float tensors in no layer,
/// then a table in which layers of one kind, outcome and size share a row
/// (`layer.{0-11}.{query,key,value}`); `{:#}` gives each layer a separate row.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The instruction set that the quantized layers run on.
    pub isa: String,
    /// Every layer of the model, in the order of the walk.
    pub layers: Vec<LayerReport>,
    /// Fields that are not module trees and were not visited.
    pub opaque: Vec<OpaqueField>,
    /// The opaque fields that may hold layers, which then stayed float.
    pub hidden: Vec<OpaqueField>,
    /// Float tensors with two or more dimensions that no layer holds, the largest first; none where
    /// together they are at most 1 % of the bytes of all weights and such tensors.
    ///
    /// Skipped fields do not count, nor do candle's caches of keys and values.
    pub float_tensors: Vec<FloatTensor>,
}

/// A layer and its outcome.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LayerReport {
    /// Path in the model.
    pub path: String,
    /// The name it was loaded under, if it remembers one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_name: Option<String>,
    /// The kind of layer.
    pub kind: LayerKind,
    /// Other paths that lead to it through a shared pointer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shared_as: Vec<String>,
    /// Swapped, or why not.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The precision of its factors now, of a layer without weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) precision: Option<Precision>,
    /// Elements of its weights.
    pub parameters: usize,
    /// Bytes of its weights before quantization. Memory shared with the layer in
    /// [`tied_to`](Self::tied_to) is counted there; a view includes the rest of its storage unless
    /// another layer counts that.
    pub bytes_before: usize,
    /// Bytes of its weights now, scales and padding included; shared memory is counted once.
    pub bytes_after: usize,
    /// The layer, or the float tensor in none, that counts memory this one shared with it before
    /// quantization: preferably one that was left and still holds that memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tied_to: Option<String>,
    /// Weights that exceeded the range of float16 or bfloat16 and were clamped to it.
    #[serde(skip_serializing_if = "is_zero")]
    pub saturated: usize,
    /// Weights that lost precision or became 0, because all of their channel is below the normal
    /// range of float16 or bfloat16.
    #[serde(skip_serializing_if = "is_zero")]
    pub underflowed: usize,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Report {
    pub(in crate::quantize) fn new(
        isa: Isa,
        survey: Survey,
        decisions: Vec<Decision>,
        quantized: &QuantizedLayers,
    ) -> Self {
        let layers = survey.layers.iter().map(|l| &l.path);
        let tensors = survey.tensors.iter().map(|t| &t.path);
        let paths: Vec<String> = layers.chain(tensors).cloned().collect();
        let is_swapped = |path: &String| quantized.replacements.contains_key(path);
        let before = Owners::before(&survey, |layer| is_swapped(&paths[layer]));
        let float_tensors = float_tensors::named(&survey, &before);
        let hidden = survey.hidden();
        let after = survey.layers.iter().map(|l| {
            let replacement = quantized.replacements.get(&l.path);
            HeldWeights {
                swapped: replacement.is_some(),
                holder: Holder::new(&l.kind),
                weights: replacement.map_or_else(|| l.weights.clone(), |r| r.weight_infos()),
            }
        });
        let after = Owners::new(after.collect());
        let layers = survey.layers.into_iter().zip(decisions).enumerate();
        let layers = layers.map(|(index, (found, decision))| {
            let swapped = matches!(decision, Decision::Swap { .. });
            let count = |elements| {
                if swapped { after.count(index, elements) } else { 0 }
            };
            LayerReport {
                parameters: found.parameters(),
                bytes_before: before.bytes(index),
                bytes_after: after.bytes(index),
                tied_to: before.other(index).map(|owner| paths[owner].clone()),
                saturated: count(|info| info.saturated),
                underflowed: count(|info| info.underflowed),
                precision: match quantized.replacements.get(&found.path) {
                    Some(replacement) => replacement.precision(),
                    None => found.precision,
                },
                outcome: match (decision, quantized.sharing.get(&found.path)) {
                    (_, Some(lender)) => Outcome::Shared { with: lender.clone() },
                    (Decision::Swap { qconfig, .. }, None) => Outcome::Swapped { to: qconfig },
                    (Decision::Leave(reason), None) => Outcome::Left { reason },
                },
                path: found.path,
                checkpoint_name: found.checkpoint_name,
                kind: found.kind,
                shared_as: found.shared_as,
            }
        });
        Self {
            isa: isa.to_string(),
            layers: layers.collect(),
            hidden,
            opaque: survey.opaque,
            float_tensors,
        }
    }

    /// The layers that were swapped, including those that share another layer's quantized weight.
    pub fn swapped(&self) -> impl Iterator<Item = &LayerReport> {
        self.layers.iter().filter(|l| !matches!(l.outcome, Outcome::Left { .. }))
    }

    /// The layers that were left as they were.
    pub fn left(&self) -> impl Iterator<Item = &LayerReport> {
        self.layers.iter().filter(|l| matches!(l.outcome, Outcome::Left { .. }))
    }

    /// Bytes of the swapped layers' weights before; the model is smaller by this less
    /// [`bytes_after`](Self::bytes_after).
    ///
    /// Memory that several layers hold, by clones or by views, counts once, and not at all if a
    /// layer that was left, or a float tensor in no layer, holds any of it, because then it is not
    /// freed. Tensors in opaque and in skipped fields are not known.
    pub fn bytes_before(&self) -> usize {
        self.swapped().map(|l| l.bytes_before).sum()
    }

    /// Bytes of the swapped layers' weights now; a shared weight counts once.
    pub fn bytes_after(&self) -> usize {
        self.swapped().map(|l| l.bytes_after).sum()
    }
}
