//! The readers of each norm, and of layers between which something is multiplied, from one run of
//! the model with taps.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use candle_core::Tensor;
use regex::Captures;

use super::config::Equalization;
use super::factors::column_maxima;
use super::report::EqualizedPair;
use crate::error::{Error, Fault, Result};
use crate::inspect::gathered;
use crate::module::{AnyNorm, Layer, LayerKind, MemoryId, Quantizable, Visitor, Walk, WeightId};
use crate::name_regex::NameRegex;
use crate::nn::{Conv1d, Conv2d, Linear};
use crate::quantize::Skipped;

/// A layer or a norm of the model.
struct ProbedLayer {
    path: String,
    is_norm: bool,
    /// Whether its inputs can be multiplied by factors.
    folds: bool,
    /// Whether it is a convolution, which folds factors of a norm of its channels.
    is_convolution: bool,
    /// Elements of a row of its output, if they can be divided by factors.
    divides: Option<usize>,
    /// Columns of its weights; the length of a norm.
    sizes: Vec<usize>,
    weights: Vec<WeightId>,
    calls: Vec<ProbedCall>,
}

/// A forward call. The memory of its tensors is not used for others as long as the tensors live.
struct ProbedCall {
    /// Calls that ended before, of all places.
    before: usize,
    inputs: Vec<MemoryId>,
    output: MemoryId,
    input_tensors: Vec<Tensor>,
    output_tensor: Tensor,
}

/// The places of a model in the order of the walk, with their calls.
pub(super) struct Probed {
    places: Vec<ProbedLayer>,
}

/// The pairs to be folded, and the sources that cannot be.
#[derive(Default)]
pub(super) struct FoundPairs {
    pub pairs: Vec<EqualizedPair>,
    pub left: Vec<Skipped>,
}

impl Visitor for Probed {
    fn layer(&mut self, path: &str, layer: &dyn Layer) -> Result<()> {
        // Embeddings read indexes.
        if layer.kind() == LayerKind::Embedding {
            return Ok(());
        }
        let weights = layer.weight_infos();
        let is_float = weights.iter().all(|w| !w.quantized);
        let any = layer as &dyn Any;
        let linear = any.downcast_ref::<Linear>();
        let linear = linear.filter(|linear| linear.projection().activation().is_none());
        let conv1d = any.downcast_ref::<Conv1d>().map(|layer| layer.config().groups);
        let conv2d = any.downcast_ref::<Conv2d>().map(|layer| layer.config().groups);
        let is_convolution = conv1d.or(conv2d) == Some(1);
        let divided = linear.filter(|_| is_float).and(weights.first());
        self.places.push(ProbedLayer {
            path: path.to_owned(),
            is_norm: false,
            folds: (layer.kind() == LayerKind::Linear || is_convolution) && is_float,
            is_convolution,
            divides: divided.and_then(|weight| weight.shape.first().copied()),
            sizes: weights.iter().filter_map(|w| w.shape.get(1).copied()).collect(),
            weights: weights.into_iter().filter_map(|w| w.id).collect(),
            calls: Vec::new(),
        });
        Ok(())
    }

    fn norm(&mut self, path: &str, norm: &dyn AnyNorm) -> Result<()> {
        self.places.push(ProbedLayer {
            path: path.to_owned(),
            is_norm: true,
            folds: true,
            is_convolution: false,
            divides: Some(norm.affine().weight.elem_count()),
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
        let ended = AtomicUsize::new(0);
        let add = move |calls: &mut Vec<ProbedCall>, inputs: &[&Tensor], output: &Tensor| {
            let memory = |tensor: &Tensor| WeightId::of_tensor(tensor).memory();
            calls.push(ProbedCall {
                before: ended.fetch_add(1, Relaxed),
                inputs: inputs.iter().map(|input| memory(input)).collect(),
                output: memory(output),
                input_tensors: inputs.iter().copied().cloned().collect(),
                output_tensor: output.clone(),
            });
            Ok(())
        };
        let calls = probed.places.iter();
        let calls = calls.map(|place| (place.path.clone(), Vec::new()));
        let (output, calls) = gathered(model, calls.collect(), add, run)?;
        let output = output?;
        for (place, (_, calls)) in probed.places.iter_mut().zip(calls) {
            place.calls = calls;
        }
        Ok((output, probed))
    }

    /// The maximum of each channel's absolute values in the outputs of a pair's norm, or in what
    /// its layers read.
    pub fn ranges(&self, pair: &EqualizedPair) -> Result<Vec<f32>> {
        let place = |path: &str| self.places.iter().find(|place| place.path == path);
        let source = place(&pair.source).filter(|place| place.is_norm);
        let tensors: Vec<&Tensor> = match source {
            Some(norm) => norm.calls.iter().map(|call| &call.output_tensor).collect(),
            None => {
                let layers = pair.layers.iter().filter_map(|path| place(path));
                let calls = layers.flat_map(|layer| &layer.calls);
                let inputs = calls.filter_map(|call| call.input_tensors.first());
                inputs.collect()
            }
        };
        let matrices = tensors.into_iter().map(|tensor| {
            let columns = tensor.dims().last().copied().unwrap_or(1);
            Ok(tensor.reshape(((), columns))?)
        });
        column_maxima(&matrices.collect::<Result<Vec<_>>>()?)
    }

    /// The pairs that the config names, or else those that were seen.
    pub fn pairs(&self, config: &Equalization) -> Result<FoundPairs> {
        let unused = self.unused(config)?;
        let named = self.named(config)?;
        let mut found = FoundPairs::default();
        for source in self.places.iter().filter(|place| place.divides.is_some()) {
            let outputs: BTreeSet<MemoryId> = source.calls.iter().map(|call| call.output).collect();
            let layers = match named.get(source.path.as_str()) {
                Some(layers) => layers.clone(),
                None if !config.pairs.is_empty() || !source.is_norm => continue,
                None => self.readers(&outputs, 0),
            };
            if layers.iter().all(|place| place.is_norm) {
                continue;
            }
            let mut residuals = self.readers(&outputs, 1);
            residuals.retain(|place| place.is_norm);
            let fault = (self.missed(source, &unused))
                .or_else(|| self.fault((source, &layers), &residuals, &outputs, named.is_empty()));
            match fault {
                Some(reason) => found.left.push(Skipped::new(source.path.clone(), reason)),
                None => found.pairs.push(EqualizedPair::new(source, &layers, &residuals)),
            }
        }
        Ok(found)
    }

    /// Layers that do not read a norm, each with a layer whose output may be a factor of its input
    /// and has as many elements: the last one before it, or the `rank`-th before that. Each pair
    /// has the reason why it cannot be folded, as far as that is known. Readers in `known` are left
    /// out.
    pub fn guesses(
        &self,
        config: &Equalization,
        rank: usize,
        known: &BTreeSet<String>,
    ) -> Result<Vec<(EqualizedPair, Option<String>)>> {
        let unused = self.unused(config)?;
        let norms = self.places.iter().filter(|place| place.is_norm);
        let calls = norms.flat_map(|place| &place.calls);
        let outputs: BTreeSet<MemoryId> = calls.map(|call| call.output).collect();
        let source = |reader: &ProbedLayer, call: &ProbedCall| {
            let mut sources = Vec::new();
            for (index, place) in self.places.iter().enumerate() {
                let calls = place.calls.iter().map(|earlier| earlier.before);
                let last = calls.filter(|before| *before < call.before).max();
                let fits = !place.is_norm && reader.sizes.first() == place.divides.as_ref();
                let last = last.filter(|_| fits && place.path != reader.path);
                sources.extend(last.map(|before| (before, index)));
            }
            sources.sort_unstable();
            Some(sources.iter().nth_back(rank)?.1)
        };
        let mut readers: BTreeMap<usize, Vec<&ProbedLayer>> = BTreeMap::new();
        for reader in &self.places {
            let is_linear = !reader.is_norm && reader.folds && !reader.is_convolution;
            let is_reader = is_linear && !known.contains(&reader.path);
            let reads = |call: &ProbedCall| call.inputs.iter().any(|input| outputs.contains(input));
            if !is_reader || reader.calls.iter().any(reads) {
                continue;
            }
            let sources = reader.calls.iter().map(|call| source(reader, call));
            let sources: BTreeSet<Option<usize>> = sources.collect();
            if let (Some(Some(index)), 1) = (sources.first(), sources.len()) {
                readers.entry(*index).or_default().push(reader);
            }
        }
        let pairs = readers.into_iter().map(|(index, layers)| {
            let source = &self.places[index];
            let fault = (self.missed(source, &unused))
                .or_else(|| self.tied(source))
                .or_else(|| self.fault((source, &layers), &[], &outputs, false));
            (EqualizedPair::new(source, &layers, &[]), fault)
        });
        Ok(pairs.collect())
    }

    /// The layers that no output depends on.
    fn unused(&self, config: &Equalization) -> Result<Vec<&ProbedLayer>> {
        let mut all = Vec::new();
        for pattern in &config.unused {
            all.extend(self.matching(pattern, |_| true)?);
        }
        Ok(all)
    }

    /// The layers and norms whose paths a regex matches as a whole and that `accepts` takes; an
    /// error if there are none.
    fn matching(
        &self,
        pattern: &str,
        accepts: impl Fn(&ProbedLayer) -> bool,
    ) -> Result<Vec<&ProbedLayer>> {
        let regex = NameRegex::whole(pattern);
        let regex = regex.compiled()?;
        let all = self.places.iter();
        let all = all.filter(|place| regex.is_match(&place.path) && accepts(place));
        let all: Vec<_> = all.collect();
        if all.is_empty() {
            return Err(unmatched(pattern, "the path of a layer"));
        }
        Ok(all)
    }

    /// The layers whose input `index` is one of `outputs`.
    fn readers(&self, outputs: &BTreeSet<MemoryId>, index: usize) -> Vec<&ProbedLayer> {
        let is_output = |input: &MemoryId| outputs.contains(input);
        let reads = |call: &ProbedCall| call.inputs.get(index).is_some_and(is_output);
        let reads = |place: &&ProbedLayer| place.calls.iter().any(reads);
        self.places.iter().filter(reads).collect()
    }

    /// Why the source is left if a layer that may read it was not called.
    fn missed(&self, source: &ProbedLayer, unused: &[&ProbedLayer]) -> Option<String> {
        let may_read =
            |place: &&ProbedLayer| place.sizes.iter().any(|size| source.divides == Some(*size));
        let is_unused = |place: &&ProbedLayer| unused.iter().any(|other| other.path == place.path);
        let missed = self.places.iter().filter(|place| place.calls.is_empty());
        let mut missed = missed.filter(may_read).filter(|place| !is_unused(place));
        Some(format!("the probe does not reach {}", missed.next()?.path))
    }

    /// Why the output cannot be divided for these readers. Layers named by the user are not checked
    /// for what they read: the norm's output may reach them through a copy.
    fn fault(
        &self,
        (source, layers): (&ProbedLayer, &[&ProbedLayer]),
        residuals: &[&ProbedLayer],
        outputs: &BTreeSet<MemoryId>,
        seen: bool,
    ) -> Option<String> {
        let only = |place: &ProbedLayer, index: usize| {
            let mut inputs = place.calls.iter().map(|call| call.inputs.get(index));
            inputs.all(|input| input.is_some_and(|input| outputs.contains(input)))
        };
        let reads_others = |place: &ProbedLayer| format!("{} reads other tensors too", place.path);
        for place in layers {
            let has_channels = source.is_norm && place.sizes.first() == source.divides.as_ref();
            if place.is_norm || !place.folds || place.is_convolution && !has_channels {
                let expected = "a float Linear, or Conv1d or Conv2d of the norm's channels";
                return Some(format!("read by {}, which is not {expected}", place.path));
            }
            if seen && !only(place, 0) {
                return Some(reads_others(place));
            }
            if let Some(tied) = self.tied(place) {
                return Some(tied);
            }
        }
        let others = residuals.iter().find(|place| !only(place, 1));
        others.map(|place| reads_others(place))
    }

    /// Why a layer is left if another has its weight, which would be held twice.
    fn tied(&self, place: &ProbedLayer) -> Option<String> {
        let has = |weight: &WeightId| place.weights.contains(weight);
        let holders = self.places.iter();
        let holders = holders.filter(|other| other.weights.iter().any(has));
        (holders.count() > 1).then(|| format!("{} shares its weight", place.path))
    }

    /// The layers that the config names for each source.
    fn named(&self, config: &Equalization) -> Result<BTreeMap<&str, Vec<&ProbedLayer>>> {
        let mut named = BTreeMap::new();
        for [source, layers] in &config.pairs {
            let sources = NameRegex::whole(source);
            let sources = sources.compiled()?;
            let before = named.len();
            for place in self.places.iter().filter(|place| place.divides.is_some()) {
                let Some(groups) = sources.captures(&place.path) else {
                    continue;
                };
                let layers = self.matching(&expand(layers, &groups), |place| !place.is_norm)?;
                named.insert(place.path.as_str(), layers);
            }
            if named.len() == before {
                let expected = "the path of a norm, or of a float Linear without an activation";
                return Err(unmatched(source, expected));
            }
        }
        Ok(named)
    }
}

impl EqualizedPair {
    fn new(source: &ProbedLayer, layers: &[&ProbedLayer], residuals: &[&ProbedLayer]) -> Self {
        let paths =
            |places: &[&ProbedLayer]| places.iter().map(|place| place.path.clone()).collect();
        Self { source: source.path.clone(), layers: paths(layers), residuals: paths(residuals) }
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
