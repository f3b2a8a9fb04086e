//! Each layer in all its precisions, quantized once: one is in the model, the others wait here.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use super::units::{Assignment, LayerPrecision, Unit, Units};
use crate::error::{Error, Fault, Result};
use crate::module::{LayerKind, Quantizable, Replay, WeightDType};
use crate::quantize::progress::Reporter;
use crate::quantize::spec::decision::{Decision, Refusal};
use crate::quantize::spec::with_hidden;
use crate::quantize::survey::{FoundLayer, Survey};
use crate::quantize::swap::{self, Replacements};
use crate::quantize::{FloatTensor, LeftReason, Progress, QConfigSpec, float_tensors};
use crate::weight::StoredWeight;

pub(super) struct Candidates {
    pub units: Units,
    /// Identifies the model: its layers, their shapes and their scales.
    pub fingerprint: String,
    /// Tensors that stay float whatever is decided.
    pub float_tensors: Vec<FloatTensor>,
    /// The layers that are not in the model, by precision.
    waiting: BTreeMap<LayerPrecision, Replacements>,
    installed: Assignment,
}

impl Candidates {
    /// Quantizes every layer that `spec` matches, in each precision that it supports.
    pub fn new<M: Quantizable + ?Sized>(model: &mut M, spec: &QConfigSpec) -> Result<Self> {
        let survey = Survey::new(model)?;
        let decisions = spec.resolve(&survey)?;
        if !decisions.iter().any(Decision::is_swapped) {
            let hint = "all layers that the spec matches are quantized already";
            let hint = with_hidden(hint.into(), &survey);
            return Err(Error::from(Fault::NothingMatched { hint }));
        }
        let float_tensors = float_tensors::checked(&survey, |layer| decisions[layer].is_swapped())?;
        let mut waiting = BTreeMap::new();
        let mut sharing = BTreeMap::new();
        let mut refused = BTreeMap::new();
        for precision in [
            LayerPrecision::Int4,
            LayerPrecision::Int8,
            LayerPrecision::Int8PerRow,
            LayerPrecision::BFloat16,
            LayerPrecision::Float16,
        ] {
            let pairs = decisions.iter().zip(&survey.layers);
            let decisions: Vec<_> = pairs
                .map(|(decision, layer)| in_precision(decision, &layer.kind, precision))
                .collect();
            let mut go_on = |_: &Progress<'_>| ControlFlow::Continue(());
            let reporter = Reporter::new(&survey, &decisions, &mut go_on);
            let quantized =
                swap::quantize(model, &survey, &decisions, Replacements::new(), reporter)?;
            sharing.extend(quantized.sharing);
            for (path, error) in quantized.refused {
                refused.entry(path).or_insert(error);
            }
            waiting.insert(precision, quantized.replacements);
        }
        for replacements in waiting.values() {
            swap::rehearse(model, replacements)?;
        }
        let units = units(&survey, &sharing, &waiting);
        if let (true, Some((path, error))) = (units.0.is_empty(), refused.pop_first()) {
            return Err(error.at(&path));
        }
        Ok(Self {
            fingerprint: fingerprint(&survey, &waiting),
            installed: units.uniform(LayerPrecision::Float),
            units,
            waiting,
            float_tensors,
        })
    }

    /// The layers as a search begins with them, as functions by path.
    pub fn quantized_replays(&self) -> BTreeMap<String, Replay> {
        let start = self.units.starts().last().map(|p| self.units.uniform(*p));
        let start = start.iter().flat_map(|assignment| &assignment.0);
        let mut replays = BTreeMap::new();
        for (unit, precision) in self.units.0.iter().zip(start) {
            for path in &unit.paths {
                let layer = self.waiting.get(precision).and_then(|layers| layers.get(path));
                if let Some(replay) = layer.and_then(|layer| layer.replay()) {
                    replays.insert(path.clone(), replay);
                }
            }
        }
        replays
    }

    /// Gives the model the precisions of `assignment`; quantized layers are only moved.
    pub fn install<M: Quantizable + ?Sized>(
        &mut self,
        model: &mut M,
        assignment: &Assignment,
    ) -> Result<()> {
        let mut replacements = Replacements::new();
        let mut leaving = BTreeMap::new();
        let units = self.units.0.iter().zip(&self.installed.0);
        for ((unit, from), to) in units.zip(&assignment.0).filter(|((_, from), to)| from != to) {
            for path in &unit.paths {
                let waiting = self.waiting.get_mut(to);
                if let Some(layer) = waiting.and_then(|layers| layers.remove(path)) {
                    replacements.insert(path.clone(), layer);
                    leaving.insert(path.clone(), *from);
                }
            }
        }
        for (path, layer) in swap::install(model, replacements)? {
            let precision = leaving.get(&path).copied().unwrap_or(LayerPrecision::Float);
            self.waiting.entry(precision).or_default().insert(path, layer);
        }
        self.installed.clone_from(assignment);
        Ok(())
    }
}

/// The decision for a layer in a precision, given the spec's. The layer may refuse another
/// configuration than the spec's: then it does not have that precision.
fn in_precision(given: &Decision, kind: &LayerKind, precision: LayerPrecision) -> Decision {
    // Nothing reads the reason.
    let left = Decision::Leave(LeftReason::NoRule);
    let Decision::Swap { qconfig: given, refusal } = given else {
        return left;
    };
    let qconfig = precision.of_layer(kind, given);
    qconfig.map_or(left, |qconfig| Decision::Swap {
        refusal: if qconfig == *given { *refusal } else { Refusal::Leaves },
        qconfig,
    })
}

/// Layers that share a quantized weight in any precision are one unit.
fn units(
    survey: &Survey,
    sharing: &BTreeMap<String, String>,
    waiting: &BTreeMap<LayerPrecision, Replacements>,
) -> Units {
    let mut units: Vec<Unit> = Vec::new();
    let has = |path: &str| {
        let quantized = waiting.iter().filter(|(_, layers)| layers.contains_key(path));
        quantized.map(|(precision, _)| *precision).collect::<BTreeSet<_>>()
    };
    for layer in &survey.layers {
        let mut precisions = has(&layer.path);
        if precisions.is_empty() || sharing.contains_key(&layer.path) {
            continue;
        }
        precisions.insert(LayerPrecision::Float);
        let others = sharing.iter().filter(|(_, lender)| **lender == layer.path);
        let others: Vec<String> = others.map(|(path, _)| path.clone()).collect();
        for other in &others {
            precisions.retain(|p| *p == LayerPrecision::Float || has(other).contains(p));
        }
        units.push(Unit {
            paths: [layer.path.clone()].into_iter().chain(others).collect(),
            kind: layer.kind.clone(),
            parameters: layer.parameters(),
            channels: channels(layer),
            float_bytes: float_bytes(layer),
            precisions,
        });
    }
    Units(units)
}

fn channels(layer: &FoundLayer) -> usize {
    let axis = usize::from(layer.kind == LayerKind::Embedding);
    let shape = layer.weights.first().map(|weight| &weight.shape);
    shape.and_then(|shape| shape.get(axis)).map_or(1, |size| (*size).max(1))
}

fn float_bytes(layer: &FoundLayer) -> usize {
    let bytes = |dtype| match dtype {
        WeightDType::F64 => 8,
        dtype if dtype.is_half() => 2,
        _ => 4,
    };
    let bytes = layer.weights.iter().map(|weight| bytes(weight.dtype));
    bytes.max().unwrap_or(4)
}

/// FNV-1a of what a history depends on.
fn fingerprint(survey: &Survey, waiting: &BTreeMap<LayerPrecision, Replacements>) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for layer in &survey.layers {
        add(format!("{} {} ", layer.path, layer.kind).as_bytes());
        for weight in &layer.weights {
            add(format!("{} {:?} {:?} ", weight.name, weight.shape, weight.dtype).as_bytes());
        }
    }
    for (precision, layers) in waiting {
        for (path, layer) in layers {
            add(format!("{precision} {path} ").as_bytes());
            // A custom layer may not give them.
            let stored = layer.stored().unwrap_or_default();
            for weight in stored.iter().filter_map(StoredWeight::quantized) {
                for scale in weight.scales() {
                    add(&scale.to_le_bytes());
                }
            }
        }
    }
    format!("{hash:016x}")
}
