//! GPTQ: weights in groups, quantized for the inputs of a few typical runs.

mod collect;
mod config;
mod report;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

pub use config::GptqConfig;
pub use report::GptqReport;

use crate::error::{Error, Result};
use crate::kernels::{self, InputProducts, Isa};
use crate::module::{Layer, LayerKind, Quantizable, Visitor, Walk};
use crate::qconfig::QConfig;
use crate::quantize::spec::decision::Decision;
use crate::quantize::survey::{FoundLayer, Survey};
use crate::quantize::swap::Replacements;
use crate::quantize::{Skipped, quantize_prepared};
use collect::{Inputs, LayerInputs, collect};
use report::{KIND, LARGE, NOT_CALLED};

/// Quantizes a model in place as [`quantize_dynamic`](crate::quantize_dynamic) does, layers in
/// groups with smaller errors on inputs like those that `run` gives it.
///
/// `run` runs the model on typical inputs, some dozens of sentences for example, from one thread.
/// It is called as often as the [memory](GptqConfig::memory) for sums makes it necessary, with the
/// float model. Layers of kind `Linear` report their inputs; layers in groups that report none, are
/// not called or have too many inputs are rounded, as by `quantize_dynamic`, and named in the
/// report. The model is unchanged by an error.
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use candle_dynquant::{GptqConfig, QConfigSpec, gptq, nn, quantize_dynamic};
///
/// // Inputs of few directions.
/// let directions = Tensor::randn(0f32, 1., (8, 64), &Device::Cpu)?;
/// let xs = Tensor::randn(0f32, 1., (100, 8), &Device::Cpu)?.matmul(&directions)?;
/// let float = nn::Linear::new(Tensor::randn(0f32, 1., (32, 64), &Device::Cpu)?, None);
/// let (mut rounded, mut model) = (float.clone(), float.clone());
/// quantize_dynamic(&mut rounded, &QConfigSpec::int4())?;
/// let report = gptq(&mut model, &GptqConfig::new(QConfigSpec::int4()), |model| model.forward(&xs))?;
/// println!("{report}"); // 1 of 1 layers in groups quantized by their inputs
///
/// let error = |model: &nn::Linear| -> candle_core::Result<f32> {
///     (model.forward(&xs)? - float.forward(&xs)?)?.sqr()?.sum_all()?.to_scalar()
/// };
/// assert!(error(&model)? < 0.5 * error(&rounded)?);
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
///
/// # Theory
/// Rounding each weight to the nearest code leaves the least errors of weights, not of products: on
/// inputs that depend on each other, the error of one weight can be made up for by others. With the
/// inputs `X`, `[rows, k]`, of a layer, the error of a channel with the weights `w` and the values
/// `q` of its codes is `|X (w - q)|^2 = |L^T (w - q)|^2`, where `L L^T = X^T X`. From the last
/// input to the first, each becomes the code next to
///
/// `t_j = w_j + sum over i > j of (L_ij / L_jj) (w_i - q_i)`,
///
/// which makes its term of the sum the least, `(L_jj (t_j - q_j))^2`. A group's scale is the one
/// that leaves the least sum of these terms for the `t` of when the group begins. This is GPTQ
/// (Frantar et al., 2022), of which the inputs are taken from the last to the first, so that the
/// factor of `X^T X` serves in place of the factor of its inverse; other orders, as by size, are
/// not offered. `damping` times the mean of the diagonal is added to it.
///
/// The inputs are the float model's. Codes, scales and products are as for any weight in groups:
/// the layers are as fast, are saved and loaded alike, and their bits depend on neither threads nor
/// instruction set.
///
/// # Errors
/// As [`quantize_dynamic`](crate::quantize_dynamic), and when `run` fails or reaches no layer in
/// groups, an input is NaN or infinite, the spec quantizes no layer in groups, or the damping is
/// not above 0 or too little.
pub fn gptq<M, T>(
    model: &mut M,
    config: &GptqConfig,
    mut run: impl FnMut(&M) -> candle_core::Result<T>,
) -> Result<GptqReport>
where
    M: Quantizable + ?Sized,
{
    config.check()?;
    let mut by_inputs = ByInputs {
        isa: kernels::active()?,
        damping: config.damping,
        inputs: BTreeMap::new(),
        layers: Replacements::new(),
        fed_back: BTreeMap::new(),
        rounded: Vec::new(),
    };
    let mut runs = 0;
    let make = |model: &mut M, survey: &Survey, decisions: &[Decision]| {
        let mut places = places(survey, decisions, config, &mut by_inputs.rounded)?;
        let mut is_reached = places.is_empty();
        while !places.is_empty() {
            let rest = places.split_off(at_once(&places, config.memory));
            by_inputs.inputs = collect(model, by_inputs.isa, places, &mut run)?;
            is_reached |= by_inputs.inputs.values().any(|inputs| inputs.rows > 0 || !inputs.fits);
            Walk::over(model, &mut by_inputs)?;
            runs += 1;
            places = rest;
        }
        if !is_reached {
            let expected = "inputs for a layer in groups, from a call of the given model";
            return Err(Error::argument("run", expected, "none"));
        }
        Ok(std::mem::take(&mut by_inputs.layers))
    };
    let quantized = quantize_prepared(model, &config.spec, |_| ControlFlow::Continue(()), make)?;
    Ok(GptqReport { fed_back: by_inputs.fed_back, rounded: by_inputs.rounded, runs, quantized })
}

/// The layers in groups whose inputs are to be known; the others are rounded.
fn places(
    survey: &Survey,
    decisions: &[Decision],
    config: &GptqConfig,
    rounded: &mut Vec<Skipped>,
) -> Result<Vec<LayerInputs>> {
    let mut places = Vec::new();
    for (layer, decision) in survey.layers.iter().zip(decisions) {
        let Decision::Swap { qconfig, .. } = decision else {
            continue;
        };
        if !matches!(qconfig, QConfig::Groups(_)) {
            continue;
        }
        let path = layer.path.clone();
        match inputs_of(layer) {
            Some(k) if !config.has_memory(k) => {
                rounded.push(Skipped::new(path, format!("{LARGE}: {k} inputs")));
            }
            Some(k) => places.push(LayerInputs { path, k, qconfig: qconfig.clone() }),
            None => rounded.push(Skipped::new(path, KIND)),
        }
    }
    if places.is_empty() && rounded.is_empty() {
        let expected = "a spec that quantizes layers in groups, as `QConfigSpec::int4()`";
        return Err(Error::qconfig(expected, "one that quantizes none so"));
    }
    Ok(places)
}

/// The inputs of the weight of a layer that may report what the weight multiplies.
fn inputs_of(layer: &FoundLayer) -> Option<usize> {
    let reports = matches!(layer.kind, LayerKind::Linear | LayerKind::Custom(_));
    match &layer.weights[..] {
        [weight] if reports => weight.shape.get(1).copied(),
        _ => None,
    }
}

/// The number of places, one at least, whose sums fit.
fn at_once(places: &[LayerInputs], memory: usize) -> usize {
    let mut bytes = 0usize;
    let fit = places.iter().take_while(|place| {
        bytes = bytes.saturating_add(InputProducts::bytes(place.k));
        bytes <= memory
    });
    fit.count().max(1)
}

/// The visitor that quantizes layers of which the inputs are known.
struct ByInputs {
    isa: Isa,
    damping: f64,
    inputs: BTreeMap<String, Inputs>,
    layers: Replacements,
    fed_back: BTreeMap<String, usize>,
    rounded: Vec<Skipped>,
}

impl Visitor for ByInputs {
    fn layer(&mut self, path: &str, layer: &dyn Layer) -> Result<()> {
        let Some(inputs) = self.inputs.remove(path) else {
            return Ok(());
        };
        let (path, rows) = (path.to_owned(), inputs.rows);
        let mut round = |path, reason| self.rounded.push(Skipped::new(path, reason));
        if !inputs.fits || rows == 0 {
            round(path, if inputs.fits { NOT_CALLED } else { KIND });
            return Ok(());
        }
        let factor = inputs.products.factor(self.isa, self.damping);
        let factor = factor.ok_or_else(|| {
            Error::argument("damping", "enough for inputs that depend on each other", self.damping)
        })?;
        match layer.quantize_for_boxed(&inputs.place.qconfig, &factor)? {
            None => round(path, KIND),
            Some(quantized) => {
                self.layers.insert(path.clone(), quantized);
                self.fed_back.insert(path, rows);
            }
        }
        Ok(())
    }
}
