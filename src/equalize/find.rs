//! The readers of each norm, from one run of the model with taps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::Tensor;
use regex::Captures;

use super::config::Equalization;
use super::factors::column_maxima;
use super::report::{LeftNorm, NormPair, Unfoldable};
use crate::error::{Error, Fault, Result};
use crate::inspect::tapped;
use crate::module::{
    AnyNorm, Layer, LayerKind, MemoryId, Quantizable, Receiver, Visitor, Walk, WeightId,
};
use crate::name_regex::NameRegex;

/// A layer or a norm of the model.
struct Place {
    path: String,
    is_norm: bool,
    /// Whether it can be multiplied by the factors.
    folds: bool,
    /// Columns of its weights; the length of a norm.
    sizes: Vec<usize>,
    weights: Vec<WeightId>,
    calls: Vec<Call>,
}

/// A forward call. The memory of its tensors is not used for others as long as the tensors live.
struct Call {
    inputs: Vec<MemoryId>,
    output: MemoryId,
    output_tensor: Tensor,
    _inputs: Vec<Tensor>,
}

/// The places of a model in the order of the walk, with their calls.
pub(super) struct Probed {
    places: Vec<Place>,
}

/// The pairs to be folded, and the norms that cannot be.
pub(super) struct Found {
    pub pairs: Vec<NormPair>,
    pub left: Vec<LeftNorm>,
}

impl Visitor for Probed {
    fn layer(&mut self, path: &str, layer: &dyn Layer) -> Result<()> {
        // Embeddings read indexes.
        if layer.kind() == LayerKind::Embedding {
            return Ok(());
        }
        let weights = layer.weight_infos();
        self.places.push(Place {
            path: path.to_owned(),
            is_norm: false,
            folds: layer.kind() == LayerKind::Linear && weights.iter().all(|w| !w.quantized),
            sizes: weights
                .iter()
                .filter_map(|w| w.shape.get(1).copied())
                .collect(),
            weights: weights.into_iter().filter_map(|w| w.id).collect(),
            calls: Vec::new(),
        });
        Ok(())
    }

    fn norm(&mut self, path: &str, norm: &dyn AnyNorm) -> Result<()> {
        self.places.push(Place {
            path: path.to_owned(),
            is_norm: true,
            folds: true,
            sizes: vec![norm.affine().weight.elem_count()],
            weights: Vec::new(),
            calls: Vec::new(),
        });
        Ok(())
    }
}

impl Probed {
    /// Runs the model, with taps at all places: its output, and the inputs of each call.
    pub fn run<M: Quantizable>(
        model: &mut M,
        run: impl FnOnce(&M) -> candle_core::Result<Tensor>,
    ) -> Result<(Tensor, Self)> {
        let mut probed = Self { places: Vec::new() };
        Walk::over(model, &mut probed)?;
        let calls: Vec<Arc<Mutex<Vec<Call>>>> =
            probed.places.iter().map(|_| Arc::default()).collect();
        let receivers = calls.iter().map(|calls| {
            let calls = Arc::clone(calls);
            let receiver: Arc<Receiver> = Arc::new(move |inputs: &[&Tensor], output: &Tensor| {
                let memory = |tensor: &Tensor| WeightId::of_tensor(tensor).memory();
                let call = Call {
                    inputs: inputs.iter().map(|input| memory(input)).collect(),
                    output: memory(output),
                    output_tensor: output.clone(),
                    _inputs: inputs.iter().copied().cloned().collect(),
                };
                calls
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(call);
            });
            receiver
        });
        let receivers: Vec<_> = receivers.collect();
        let paths = probed.places.iter().map(|place| place.path.as_str());
        let by_path: BTreeMap<_, _> = paths.zip(&receivers).collect();
        let output = tapped(model, &by_path, run)??;
        for (place, calls) in probed.places.iter_mut().zip(calls) {
            place.calls =
                std::mem::take(&mut *calls.lock().unwrap_or_else(PoisonError::into_inner));
        }
        Ok((output, probed))
    }

    /// The maximum of each channel's absolute values in the outputs of a norm.
    pub fn ranges(&self, norm: &str) -> Result<Vec<f32>> {
        let calls = self.places.iter().filter(|place| place.path == norm);
        let outputs = calls.flat_map(|place| &place.calls).map(|call| {
            let columns = call.output_tensor.dims().last().copied().unwrap_or(1);
            Ok(call.output_tensor.reshape(((), columns))?)
        });
        column_maxima(&outputs.collect::<Result<Vec<_>>>()?)
    }

    /// The pairs that the config names, or else those that were seen.
    pub fn pairs(&self, config: &Equalization) -> Result<Found> {
        let unused = config.unused.iter();
        let unused: Vec<_> = unused.map(NameRegex::whole).collect();
        let unused = unused.iter().map(NameRegex::compiled);
        let unused = unused.collect::<Result<Vec<_>>>()?;
        for (regex, pattern) in unused.iter().zip(&config.unused) {
            if !self.places.iter().any(|place| regex.is_match(&place.path)) {
                return Err(unmatched(pattern, "the path of a layer"));
            }
        }
        let named = self.named(config)?;
        let mut found = Found {
            pairs: Vec::new(),
            left: Vec::new(),
        };
        for norm in self.places.iter().filter(|place| place.is_norm) {
            let outputs: BTreeSet<MemoryId> = norm.calls.iter().map(|call| call.output).collect();
            let layers = match named.get(norm.path.as_str()) {
                Some(layers) => layers.clone(),
                None if !config.pairs.is_empty() => continue,
                None => self.readers(&outputs, 0),
            };
            if layers.iter().all(|place| place.is_norm) {
                continue;
            }
            let residuals = self.readers(&outputs, 1);
            let residuals: Vec<_> = residuals
                .into_iter()
                .filter(|place| place.is_norm)
                .collect();
            let is_unused = |place: &Place| unused.iter().any(|regex| regex.is_match(&place.path));
            let fault = (self.missed(norm, is_unused))
                .or_else(|| self.fault(&layers, &residuals, &outputs, named.is_empty()));
            let paths = |places: &[&Place]| places.iter().map(|place| place.path.clone()).collect();
            match fault {
                Some(reason) => found.left.push(LeftNorm {
                    path: norm.path.clone(),
                    reason,
                }),
                None => found.pairs.push(NormPair {
                    norm: norm.path.clone(),
                    layers: paths(&layers),
                    residuals: paths(&residuals),
                }),
            }
        }
        Ok(found)
    }

    /// Those with a call whose input of that index is one of these outputs.
    fn readers(&self, outputs: &BTreeSet<MemoryId>, index: usize) -> Vec<&Place> {
        let reads = |call: &Call| {
            call.inputs
                .get(index)
                .is_some_and(|it| outputs.contains(it))
        };
        let readers = self.places.iter();
        readers
            .filter(|place| place.calls.iter().any(reads))
            .collect()
    }

    /// A place that may read the norm, but was not called.
    fn missed(&self, norm: &Place, is_unused: impl Fn(&Place) -> bool) -> Option<Unfoldable> {
        let may_read = |place: &&Place| place.sizes.iter().any(|size| norm.sizes.contains(size));
        let missed = self.places.iter().filter(|place| place.calls.is_empty());
        let mut missed = missed.filter(may_read).filter(|place| !is_unused(place));
        let layer = missed.next()?.path.clone();
        Some(Unfoldable::NotCalled { layer })
    }

    /// Why the output cannot be divided for these readers. Of layers that a user names it is not
    /// asked what they read: the norm's output may reach them by way of a copy.
    fn fault(
        &self,
        layers: &[&Place],
        residuals: &[&Place],
        outputs: &BTreeSet<MemoryId>,
        seen: bool,
    ) -> Option<Unfoldable> {
        let only = |place: &Place, index: usize| {
            let mut inputs = place.calls.iter().map(|call| call.inputs.get(index));
            inputs.all(|input| input.is_some_and(|input| outputs.contains(input)))
        };
        let path = |place: &Place| place.path.clone();
        for place in layers {
            let layer = path(place);
            let holders = self.places.iter().filter(|other| {
                other
                    .weights
                    .iter()
                    .any(|weight| place.weights.contains(weight))
            });
            if place.is_norm || !place.folds {
                return Some(Unfoldable::NotLinear { layer });
            }
            if seen && !only(place, 0) {
                return Some(Unfoldable::ReadsOthers { layer });
            }
            if holders.count() > 1 {
                return Some(Unfoldable::Tied { layer });
            }
        }
        let others = residuals.iter().find(|place| !only(place, 1));
        others.map(|place| Unfoldable::ReadsOthers { layer: path(place) })
    }

    /// The layers that the config names for each norm.
    fn named(&self, config: &Equalization) -> Result<BTreeMap<&str, Vec<&Place>>> {
        let mut named = BTreeMap::new();
        for [norm, layers] in &config.pairs {
            let norms = NameRegex::whole(norm);
            let norms = norms.compiled()?;
            let before = named.len();
            for place in self.places.iter().filter(|place| place.is_norm) {
                let Some(groups) = norms.captures(&place.path) else {
                    continue;
                };
                let pattern = expand(layers, &groups);
                let layers = NameRegex::whole(&pattern);
                let layers = layers.compiled()?;
                let layers = self
                    .places
                    .iter()
                    .filter(|place| layers.is_match(&place.path));
                let layers: Vec<_> = layers.filter(|place| !place.is_norm).collect();
                if layers.is_empty() {
                    return Err(unmatched(&pattern, "the path of a layer"));
                }
                named.insert(place.path.as_str(), layers);
            }
            if named.len() == before {
                return Err(unmatched(norm, "the path of a norm"));
            }
        }
        Ok(named)
    }
}

/// `layers` with `$1` and so on replaced by the texts of those groups.
fn expand(layers: &str, groups: &Captures<'_>) -> String {
    let mut parts = layers.split('$');
    let mut pattern = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        let index = &part[..part.len() - rest.len()];
        match index.parse() {
            Ok(index) => {
                let text = groups.get(index).map_or("", |group| group.as_str());
                pattern += &regex::escape(text);
            }
            // The end of the text, as in any regex.
            Err(_) => pattern = pattern + "$" + index,
        }
        pattern += rest;
    }
    pattern
}

fn unmatched(pattern: &str, expected: &str) -> Error {
    Error::from(Fault::UnmatchedRule {
        rule: format!("regex {pattern:?}"),
        hint: format!("expected {expected} as a whole"),
    })
}
