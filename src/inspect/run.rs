//! The measurements of a model: its weights, then one run of each side.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::Tensor;
use serde::Serialize;

use super::codes::{ActivationInspection, Activations, WeightInspection};
use super::observe::tapped;
use crate::deviation::Deviation;
use crate::error::{Error, Fault, Result};
use crate::kernels::Precision;
use crate::module::{Layer, LayerKind, Quantizable, Receiver, Replay, Visitor, Walk, WeightInfo};
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
    /// Its path.
    pub path: String,
    /// Its kind.
    pub kind: LayerKind,
    /// Whether it is quantized.
    pub quantized: bool,
    /// Bytes of its weights before, each memory counted once.
    #[doc(hidden)]
    pub bytes_before: usize,
    /// Bytes of its weights afterwards.
    #[doc(hidden)]
    pub bytes_after: usize,
    /// Bits that each element of its weights takes now, scales and padding included; `None` if it
    /// has no weights.
    pub bits: Option<f64>,
    /// Its quantized weights.
    pub weights: Vec<WeightInspection>,
    /// The activations that it multiplies; `None` if it was not called.
    pub input: Option<ActivationInspection>,
    /// Its quantized output against its float one, both on the float model's inputs; `None` if it
    /// was not called, or is not quantized.
    pub output: Option<Deviation>,
    /// Its output in the run of the quantized model against that in the float model's run: with
    /// what the layers before it added; `None` if it was not called.
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
/// When `run` fails, the models have other layers than each other, or a layer computes something
/// else by itself than in the model.
pub fn inspect<M: Quantizable>(
    float: &mut M,
    quantized: &mut M,
    run: impl Fn(&M) -> candle_core::Result<Tensor>,
) -> Result<Inspection> {
    let (before, after) = (Sides::of(float)?, Sides::of(quantized)?);
    let paths = |sides: &Sides| {
        sides
            .0
            .iter()
            .map(|side| side.path.clone())
            .collect::<Vec<_>>()
    };
    if paths(&before) != paths(&after) {
        return Err(Error::from(Fault::InvalidArgument {
            what: "quantized model",
            expected: format!("the {} layers of the float one", before.0.len()),
            got: format!("{} layers, or of other names", after.0.len()),
        }));
    }
    let probes: Vec<_> = after.0.iter().map(Probe::new).collect();
    let expected = with_taps(float, &before, &probes, Probe::of_float, &run)?;
    let got = with_taps(quantized, &before, &probes, Probe::of_quantized, &run)?;
    let mut output = Deviation::default();
    output.add(&expected, &got)?;
    let mut seen = [HashSet::new(), HashSet::new()];
    let layers = before.0.into_iter().zip(after.0).zip(probes);
    let layers = layers.map(|((before, after), probe)| {
        let [bytes_before, bytes_after] = [
            held(&before.infos, &mut seen[0]),
            held(&after.infos, &mut seen[1]),
        ];
        let path = before.path.clone();
        let layer = || -> Result<LayerInspection> {
            let measured = probe.finish()?;
            Ok(LayerInspection {
                kind: after.kind.clone(),
                quantized: after.is_quantized(),
                bytes_before,
                bytes_after,
                bits: bits(&after.infos),
                weights: weights(&before, &after)?,
                input: measured.activations.as_ref().and_then(Activations::finish),
                output: measured.output,
                along: measured.along,
                path: before.path.clone(),
            })
        };
        layer().map_err(|e| e.at(&path))
    });
    Ok(Inspection {
        layers: layers.collect::<Result<_>>()?,
        output,
    })
}

/// A layer of one of the models.
struct Side {
    path: String,
    kind: LayerKind,
    infos: Vec<WeightInfo>,
    precision: Option<Precision>,
    values: Vec<Tensor>,
    stored: Vec<StoredWeight>,
    replay: Option<Replay>,
}

impl Side {
    fn is_quantized(&self) -> bool {
        self.precision.is_some_and(Precision::is_reduced)
            || self.infos.iter().any(|info| info.quantized)
    }
}

/// The layers in the order of the walk.
struct Sides(Vec<Side>);

impl Sides {
    fn of<M: Quantizable>(model: &M) -> Result<Self> {
        let mut sides = Self(Vec::new());
        Walk::over(model, &mut sides)?;
        Ok(sides)
    }
}

impl Visitor for Sides {
    fn layer(&mut self, path: &str, layer: &dyn Layer) -> Result<()> {
        self.0.push(Side {
            path: path.to_owned(),
            kind: layer.kind(),
            infos: layer.weight_infos(),
            precision: layer.precision(),
            values: layer.weights()?,
            // A layer of a user's own that cannot be saved has none to show.
            stored: layer.stored().unwrap_or_default(),
            replay: layer.replay(),
        });
        Ok(())
    }
}

/// Bytes of weights in memory that was not seen before.
fn held(infos: &[WeightInfo], seen: &mut HashSet<crate::module::MemoryId>) -> usize {
    let new = infos
        .iter()
        .filter(|info| info.id.as_ref().is_none_or(|id| seen.insert(id.memory())));
    new.map(|info| info.bytes).sum()
}

/// Bits for each element of some weights.
fn bits(infos: &[WeightInfo]) -> Option<f64> {
    let elements = |info: &WeightInfo| info.shape.iter().product::<usize>();
    let elements: usize = infos.iter().map(elements).sum();
    let bytes: usize = infos.iter().map(|info| info.bytes).sum();
    (elements > 0).then(|| 8. * bytes as f64 / elements as f64)
}

/// The quantized weights of a layer beside the float ones.
fn weights(before: &Side, after: &Side) -> Result<Vec<WeightInspection>> {
    let stored: BTreeMap<_, _> = after
        .stored
        .iter()
        .filter_map(|weight| Some((weight.name(), weight.quantized()?)))
        .collect();
    let pairs = before.values.iter().zip(&after.values).zip(&after.infos);
    pairs
        .filter_map(|((float, quantized), info)| {
            let stored = stored.get(info.name.as_str())?;
            Some(WeightInspection::of(&info.name, [float, quantized], stored))
        })
        .collect()
}

/// The measurements of a layer during the runs.
struct Probe {
    /// The quantized layer, if it is one.
    other: Option<Replay>,
    /// How many of its inputs it multiplies, the first ones.
    multiplied: usize,
    state: Mutex<Result<Measured>>,
}

#[derive(Default)]
struct Measured {
    activations: Option<Activations>,
    output: Option<Deviation>,
    along: Option<Deviation>,
    /// The outputs of the float model's calls, and how many of them were compared.
    outputs: Vec<Tensor>,
    compared: usize,
}

impl Probe {
    fn new(after: &Side) -> Arc<Self> {
        // Indexes are no activations, and of attention three operands are some.
        let multiplied = match after.kind {
            LayerKind::Embedding => 0,
            LayerKind::Attention => 3,
            _ => 1,
        };
        let mut quantized = after.stored.iter().filter_map(StoredWeight::quantized);
        let config = quantized.find_map(|own| own.format().activation());
        Arc::new(Self {
            other: after.replay.clone().filter(|_| after.is_quantized()),
            multiplied,
            state: Mutex::new(Ok(Measured {
                activations: (multiplied > 0).then(|| Activations::new(config)),
                ..Default::default()
            })),
        })
    }

    /// Changes what was gathered so far; after an error nothing more is.
    fn update(&self, change: impl FnOnce(&mut Measured) -> Result<()>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(measured) = &mut *state
            && let Err(error) = change(measured)
        {
            *state = Err(error);
        }
    }

    fn of_float(&self, inputs: &[&Tensor], output: &Tensor) {
        self.update(|measured| {
            if let Some(activations) = &mut measured.activations {
                let mut inputs = inputs.iter().take(self.multiplied);
                inputs.try_for_each(|input| activations.add(input))?;
            }
            if let Some(other) = &self.other {
                let sums = measured.output.get_or_insert_default();
                sums.add(output, &other(inputs)?)?;
            }
            measured.outputs.push(output.clone());
            Ok(())
        });
    }

    fn of_quantized(&self, _inputs: &[&Tensor], output: &Tensor) {
        self.update(|measured| {
            let Some(expected) = measured.outputs.get(measured.compared) else {
                return Err(Error::from(Fault::InvalidArgument {
                    what: "run",
                    expected: format!("the float model's {} calls", measured.outputs.len()),
                    got: "more of the quantized one".into(),
                }));
            };
            measured.compared += 1;
            measured.along.get_or_insert_default().add(expected, output)
        });
    }

    fn finish(&self) -> Result<Measured> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *state, Ok(Measured::default()))
    }
}

/// Runs a model whose layers report to their probes.
fn with_taps<M: Quantizable>(
    model: &mut M,
    sides: &Sides,
    probes: &[Arc<Probe>],
    report: fn(&Probe, &[&Tensor], &Tensor),
    run: impl Fn(&M) -> candle_core::Result<Tensor>,
) -> Result<Tensor> {
    let receivers = probes.iter().map(|probe| {
        let probe = Arc::clone(probe);
        let receiver: Arc<Receiver> =
            Arc::new(move |inputs: &[&Tensor], output: &Tensor| report(&probe, inputs, output));
        receiver
    });
    let receivers: Vec<_> = receivers.collect();
    let paths = sides.0.iter().map(|side| side.path.as_str());
    Ok(tapped(model, &paths.zip(&receivers).collect(), run)??)
}
