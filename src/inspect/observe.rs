//! A single run of a model whose layers report to taps.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::Tensor;

use crate::deviation::Deviation;
use crate::error::{Error, Result};
use crate::kernels::Precision;
use crate::module::{
    AnyNorm, Layer, Quantizable, Receiver, Replay, Tap, VisitorMut, Walk, WalkMut,
};

/// A run of a model, and what was measured during it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Observed<T> {
    /// The result of the run.
    pub result: T,
    /// How far the output of the other layer is from the layer's, on the layer's inputs, for each
    /// layer that was called, by path.
    pub outputs: BTreeMap<String, Deviation>,
    /// Layers, by path, that report nothing, or that were not called.
    pub silent: Vec<String>,
}

/// Runs a model while each layer in `others` is compared with the function there, on the inputs
/// that the layer gets.
///
/// `others` are quantized layers as functions: [`replays`]. `run` may call the model any number of
/// times and from any threads. The model is left as it was, also when `run` fails or panics.
///
/// # Errors
/// When one of the functions fails, or the walk over the model does. An error of `run` is in its
/// result.
pub fn observe<M, T>(
    model: &mut M,
    others: BTreeMap<String, Replay>,
    run: impl FnOnce(&M) -> T,
) -> Result<Observed<T>>
where
    M: Quantizable + ?Sized,
{
    // The sums of one layer are in the order of its calls.
    let compare = |other: &mut (Replay, Option<Deviation>), inputs: &[&Tensor], output: &Tensor| {
        let mut one = Deviation::default();
        one.add(output, &(other.0)(inputs)?)?;
        other.1.get_or_insert_default().merge(&one);
        Ok(())
    };
    let others = others.into_iter();
    let states = others.map(|(path, other)| (path, (other, None)));
    let (result, compared) = gathered(model, states.collect(), compare, run)?;
    let (mut outputs, mut silent) = (BTreeMap::new(), Vec::new());
    for (path, (_, sums)) in compared {
        match sums {
            Some(sums) => drop(outputs.insert(path, sums)),
            None => silent.push(path),
        }
    }
    Ok(Observed { result, outputs, silent })
}

/// How sensitive a model is to quantizing each of its layers, by one run of it: how far the output
/// of the quantized layer is from the float one's, on the float model's inputs, for each quantized
/// layer that was called and reports its output, by path.
///
/// `run` may call the float model any number of times and from any threads. The model is left as it
/// was, also when `run` fails or panics.
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use candle_dynquant::{inspect, nn, quantize_dynamic, QConfigSpec};
///
/// let weight = Tensor::randn(0f32, 1., (32, 32), &Device::Cpu)?;
/// let mut float = nn::Linear::new(weight, None);
/// let mut quantized = float.clone();
/// quantize_dynamic(&mut quantized, &QConfigSpec::int8())?;
/// let xs = Tensor::randn(0f32, 1., (4, 32), &Device::Cpu)?;
/// let outputs = inspect::sensitivity(&mut float, &quantized, |model| model.forward(&xs))?;
/// assert!(outputs[""].sqnr_db() > 30.);
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
///
/// # Errors
/// When `run` or a quantized layer fails, or the walk over a model does.
pub fn sensitivity<M, T>(
    float: &mut M,
    quantized: &M,
    run: impl FnOnce(&M) -> candle_core::Result<T>,
) -> Result<BTreeMap<String, Deviation>>
where
    M: Quantizable + ?Sized,
{
    let observed = observe(float, replays(quantized)?, run)?;
    observed.result?;
    Ok(observed.outputs)
}

/// The quantized layers of a model as functions, by path: those that can be called by themselves.
///
/// # Errors
/// As the walk over the model.
pub fn replays<M: Quantizable + ?Sized>(model: &M) -> Result<BTreeMap<String, Replay>> {
    let mut replays = BTreeMap::new();
    Walk::layers(model, |path, layer| {
        let replay = layer.replay().filter(|_| is_quantized(layer));
        replays.extend(replay.map(|replay| (path.to_owned(), replay)));
        Ok(())
    })?;
    Ok(replays)
}

/// Whether a layer multiplies, or has a weight, in fewer bits.
pub(super) fn is_quantized(layer: &dyn Layer) -> bool {
    layer.precision().is_some_and(Precision::is_reduced)
        || layer.weight_infos().iter().any(|weight| weight.quantized)
}

/// Runs a model whose layers and norms at these paths report each call to the state at the path,
/// one call after the other; returns the result and the states.
///
/// # Errors
/// When the walk over the model fails, or `report` does, after which a state gets no more calls.
pub(crate) fn gathered<M, S, T>(
    model: &mut M,
    states: Vec<(String, S)>,
    report: impl Fn(&mut S, &[&Tensor], &Tensor) -> Result<()> + Send + Sync + 'static,
    run: impl FnOnce(&M) -> T,
) -> Result<(T, Vec<(String, S)>)>
where
    M: Quantizable + ?Sized,
    S: Send + 'static,
{
    let report = Arc::new(report);
    let shared = |(path, state)| (path, Arc::new(Mutex::new(Some(Ok(state)))));
    let states: Vec<_> = states.into_iter().map(shared).collect();
    let receivers = states.iter().map(|(path, state)| {
        let (state, report) = (Arc::clone(state), Arc::clone(&report));
        let receiver: Arc<Receiver> = Arc::new(move |inputs: &[&Tensor], output: &Tensor| {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(Ok(current)) = &mut *state
                && let Err(error) = report(current, inputs, output)
            {
                *state = Some(Err(error));
            }
        });
        (path.as_str(), receiver)
    });
    let result = tapped(model, &receivers.collect(), run)?;
    let taken = states.into_iter().filter_map(|(path, state)| {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        Some(match state.take()? {
            Ok(state) => Ok((path, state)),
            Err(error) => Err(Error::at(error, &path)),
        })
    });
    Ok((result, taken.collect::<Result<_>>()?))
}

/// Runs a model whose layers and norms report to the receivers at their paths.
fn tapped<M, T>(
    model: &mut M,
    receivers: &BTreeMap<&str, Arc<Receiver>>,
    run: impl FnOnce(&M) -> T,
) -> Result<T>
where
    M: Quantizable + ?Sized,
{
    struct Taps<'a> {
        receivers: &'a BTreeMap<&'a str, Arc<Receiver>>,
        attached: bool,
    }
    impl Taps<'_> {
        /// The tap of a place, if that has a receiver.
        fn at(&self, path: &str) -> Option<Option<Tap>> {
            let receiver = self.receivers.get(path)?;
            Some(self.attached.then(|| Tap::to(receiver)))
        }
    }
    impl VisitorMut for Taps<'_> {
        fn layer(&mut self, path: &str, layer: &mut dyn Layer) -> Result<bool> {
            Ok(self.at(path).is_some_and(|tap| layer.attach(tap)))
        }

        fn norm(&mut self, path: &str, norm: &mut dyn AnyNorm) -> Result<bool> {
            let tap = self.at(path);
            let is_there = tap.is_some();
            tap.into_iter().for_each(|tap| norm.attach(tap));
            Ok(is_there)
        }
    }
    let taps = |attached| Taps { receivers, attached };
    WalkMut::over_while(model, &mut taps(true), run, &mut taps(false))
}
