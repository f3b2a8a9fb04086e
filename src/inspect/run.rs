//! The measurements of a model: its weights, then one run of each side.

use std::collections::HashSet;

use candle_core::Tensor;
use serde::Serialize;

use super::codes::{ActivationInspection, ActivationTotals, WeightInspection};
use super::observe::{gathered, is_quantized};
use crate::deviation::Deviation;
use crate::error::{Error, Result};
use crate::module::{LayerKind, Quantizable, Replay, Walk, WeightInfo};
use crate::weight::StoredWeight;

/// How far a quantized model is from its float original; see [`inspect`].
///
/// `{}` prints it as a table, serde writes it as JSON.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Inspection {
    /// The layers in the order of the walk.
    pub layers: Vec<LayerInspection>,
    /// The quantized model's output against the float model's.
    pub output: Deviation,
}

/// How far one layer is from its float original.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LayerInspection {
    /// The path of the layer.
    pub path: String,
    /// The kind of layer.
    pub kind: LayerKind,
    /// Whether it is quantized.
    pub quantized: bool,
    /// Bytes of its weights before, each memory counted once.
    pub(crate) bytes_before: usize,
    /// Bytes of its weights afterwards.
    pub(crate) bytes_after: usize,
    /// Bits that each element of its weights takes now, scales and padding included; `None` if it
    /// has no weights.
    pub bits: Option<f64>,
    /// The quantized weights.
    pub weights: Vec<WeightInspection>,
    /// The activations that it multiplies; `None` if it was not called.
    pub input: Option<ActivationInspection>,
    /// The output of the quantized layer against the float one's, both on the float model's inputs;
    /// `None` if it was not called, or is not quantized.
    pub output: Option<Deviation>,
    /// The output in the run of the quantized model against the output in the float model's run:
    /// with what the layers before it added; `None` if it was not called.
    pub along: Option<Deviation>,
}

/// Measures a quantized model against its float original: weights, and outputs on sample inputs,
/// layer by layer and end to end.
///
/// For an equalized model, `float` is the equalized float one. `run` calls a model with the sample
/// inputs and returns its output; the models are run once each, with taps, and are as they were
/// afterwards. The calls of a layer are compared in their order, so `run` makes them on one thread.
/// All layers' outputs are held during it: some dozens of inputs are enough.
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use candle_dynquant::{inspect, nn, quantize_dynamic, QConfigSpec};
///
/// let linear = |_| -> candle_core::Result<nn::Linear> {
///     Ok(nn::Linear::new(Tensor::randn(0f32, 1., (32, 32), &Device::Cpu)?, None))
/// };
/// let mut float: Vec<nn::Linear> = (0..3).map(linear).collect::<Result<_, _>>()?;
/// let mut quantized = float.clone();
/// quantize_dynamic(&mut quantized, &QConfigSpec::int8())?;
/// let xs = Tensor::randn(0f32, 1., (16, 32), &Device::Cpu)?;
/// let inspection = inspect::inspect(&mut float, &mut quantized, |model| {
///     model.iter().try_fold(xs.clone(), |xs, layer| layer.forward(&xs))
/// })?;
/// println!("{inspection}");
/// assert!(inspection.layers[2].output.unwrap().sqnr_db() > inspection.output.sqnr_db());
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
///
/// # Errors
/// When `run` fails, the models differ in their layers, or a layer computes something else by
/// itself than in the model.
pub fn inspect<M: Quantizable>(
    float: &mut M,
    quantized: &mut M,
    run: impl Fn(&M) -> candle_core::Result<Tensor>,
) -> Result<Inspection> {
    let (before, after) = (sides(float)?, sides(quantized)?);
    let paths = |sides: &[Side]| -> Vec<_> { sides.iter().map(|s| s.path.clone()).collect() };
    if paths(&before) != paths(&after) {
        let expected = format!("the {} layers of the float one", before.len());
        let got = format!("{} layers, or of other names", after.len());
        return Err(Error::argument("quantized model", expected, got));
    }
    let probes = after.iter().map(|side| (side.path.clone(), Probe::new(side)));
    let (expected, probes) = gathered(float, probes.collect(), Probe::of_float, &run)?;
    let expected = expected?;
    let (got, probes) = gathered(quantized, probes, Probe::of_quantized, &run)?;
    let got = got?;
    let mut output = Deviation::default();
    output.add(&expected, &got)?;
    let mut seen = [HashSet::new(), HashSet::new()];
    let layers = before.into_iter().zip(after).zip(probes);
    let layers = layers.map(|((before, after), (path, probe))| {
        let weights = weights(&before, &after).map_err(|e| e.at(&path))?;
        Ok(LayerInspection {
            path,
            quantized: after.quantized,
            bytes_before: held(&before.infos, &mut seen[0]),
            bytes_after: held(&after.infos, &mut seen[1]),
            bits: bits(&after.infos),
            kind: after.kind,
            weights,
            input: probe.activations.as_ref().and_then(ActivationTotals::finish),
            output: probe.output,
            along: probe.along,
        })
    });
    Ok(Inspection { layers: layers.collect::<Result<_>>()?, output })
}

/// A layer of one of the models.
struct Side {
    path: String,
    kind: LayerKind,
    infos: Vec<WeightInfo>,
    quantized: bool,
    values: Vec<Tensor>,
    stored: Vec<StoredWeight>,
    replay: Option<Replay>,
}

/// The layers in the order of the walk.
fn sides<M: Quantizable>(model: &M) -> Result<Vec<Side>> {
    let mut sides = Vec::new();
    Walk::layers(model, |path, layer| {
        sides.push(Side {
            path: path.to_owned(),
            kind: layer.kind(),
            infos: layer.weight_infos(),
            quantized: is_quantized(layer),
            values: layer.weights()?,
            // A custom layer that cannot be saved has none to show.
            stored: layer.stored().unwrap_or_default(),
            replay: layer.replay(),
        });
        Ok(())
    })?;
    Ok(sides)
}

/// Bytes of weights in memory that was not seen before.
fn held(infos: &[WeightInfo], seen: &mut HashSet<crate::module::MemoryId>) -> usize {
    let is_new = |info: &&WeightInfo| info.id.as_ref().is_none_or(|id| seen.insert(id.memory()));
    infos.iter().filter(is_new).map(|info| info.bytes).sum()
}

fn bits(infos: &[WeightInfo]) -> Option<f64> {
    let elements = |info: &WeightInfo| info.shape.iter().product::<usize>();
    let elements: usize = infos.iter().map(elements).sum();
    let bytes: usize = infos.iter().map(|info| info.bytes).sum();
    (elements > 0).then(|| 8. * bytes as f64 / elements as f64)
}

/// The quantized weights of a layer beside the float ones.
fn weights(before: &Side, after: &Side) -> Result<Vec<WeightInspection>> {
    let pairs = before.values.iter().zip(&after.values).zip(&after.infos);
    let weights = pairs.filter_map(|((float, quantized), info)| {
        let stored = after.stored.iter().rev();
        let mut stored = stored.filter(|weight| weight.name() == info.name);
        let stored = stored.find_map(StoredWeight::quantized)?;
        Some(WeightInspection::new(&info.name, [float, quantized], stored))
    });
    weights.collect()
}

/// The measurements of a layer during the runs.
struct Probe {
    /// The quantized layer as a function, if the layer is quantized.
    other: Option<Replay>,
    /// The number of inputs that the layer multiplies, from the first on.
    multiplied: usize,
    activations: Option<ActivationTotals>,
    output: Option<Deviation>,
    along: Option<Deviation>,
    /// The outputs of the float model's calls, and how many of them were compared.
    outputs: Vec<Tensor>,
    compared: usize,
}

impl Probe {
    fn new(after: &Side) -> Self {
        // Indexes are not activations; of attention three operands are.
        let multiplied = match after.kind {
            LayerKind::Embedding => 0,
            LayerKind::Attention => 3,
            _ => 1,
        };
        let mut quantized = after.stored.iter().filter_map(StoredWeight::quantized);
        let config = quantized.find_map(|own| own.format().dynamic());
        Self {
            other: after.replay.clone().filter(|_| after.quantized),
            multiplied,
            activations: (multiplied > 0).then(|| ActivationTotals::new(config)),
            output: None,
            along: None,
            outputs: Vec::new(),
            compared: 0,
        }
    }

    fn of_float(&mut self, inputs: &[&Tensor], output: &Tensor) -> Result<()> {
        if let Some(activations) = &mut self.activations {
            let mut inputs = inputs.iter().take(self.multiplied);
            inputs.try_for_each(|input| activations.add(input))?;
        }
        if let Some(other) = &self.other {
            let sums = self.output.get_or_insert_default();
            sums.add(output, &other(inputs)?)?;
        }
        self.outputs.push(output.clone());
        Ok(())
    }

    fn of_quantized(&mut self, _inputs: &[&Tensor], output: &Tensor) -> Result<()> {
        let Some(expected) = self.outputs.get(self.compared) else {
            let expected = format!("the float model's {} calls", self.outputs.len());
            return Err(Error::argument("run", expected, "more of the quantized one"));
        };
        self.compared += 1;
        self.along.get_or_insert_default().add(expected, output)
    }
}
