//! `quantize_dynamic`: survey the whole model, check everything, then swap.

pub(crate) mod float_tensors;
mod hidden;
mod outcome;
mod owners;
pub(crate) mod progress;
pub(crate) mod report;
pub(crate) mod spec;
pub(crate) mod survey;
pub(crate) mod swap;
pub(crate) mod text;

pub use float_tensors::FloatTensor;
pub use hidden::OpaqueField;
pub use outcome::{LeftReason, Outcome, Skipped};
pub use progress::Progress;
pub use report::{LayerReport, Report};
pub use spec::{OneOrMany, QConfigSpec, Target};

use std::ops::ControlFlow;

use crate::error::Result;
use crate::kernels;
use crate::module::Quantizable;
use crate::trace;
use progress::Reporter;
use spec::decision::Decision;
use survey::Survey;
use swap::Replacements;

/// Quantizes the layers of `model` that `spec` matches, in place, and reports every layer's
/// outcome.
///
/// Weights are quantized here, once; activations are quantized in every forward call. To keep the
/// float model, quantize a clone: tensors are shared, so a clone is cheap.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::{nn, quantize_dynamic, QConfigSpec, Quantizable};
///
/// #[derive(Quantizable, Clone)]
/// struct Mlp { up: nn::Linear, down: nn::Linear }
///
/// let linear = |o: usize, i: usize| -> candle_core::Result<nn::Linear> {
///     Ok(nn::Linear::new(Tensor::randn(0f32, 0.1, (o, i), &Device::Cpu)?, None))
/// };
/// let float = Mlp { up: linear(64, 32)?, down: linear(32, 64)? };
/// let mut model = float.clone();
/// let report = quantize_dynamic(&mut model, &QConfigSpec::int8())?;
/// assert_eq!(report.swapped().count(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When a rule or the whole spec matches nothing, a regex is malformed, two layers have one path, a
/// matched weight cannot be quantized, or a type marked `#[quantizable(strict)]` holds float
/// tensors in no layer that a report would name. The model is then as it was. A layer whose int8
/// products could leave an i32 is left, unless a rule has its exact name or it is the only one.
pub fn quantize_dynamic<M>(model: &mut M, spec: &QConfigSpec) -> Result<Report>
where
    M: Quantizable + ?Sized,
{
    quantize_dynamic_with(model, spec, |_| ControlFlow::Continue(()))
}

/// [`quantize_dynamic`] that calls `progress` after each layer, in the order in which layers are
/// quantized: as the walk has them, embeddings last. [`ControlFlow::Break`] cancels it.
///
/// ```
/// use std::ops::ControlFlow;
///
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::{nn, quantize_dynamic_with, QConfigSpec};
///
/// let linear = |_| -> candle_core::Result<nn::Linear> {
///     Ok(nn::Linear::new(Tensor::randn(0f32, 0.1, (64, 32), &Device::Cpu)?, None))
/// };
/// let mut model: Vec<nn::Linear> = (0..3).map(linear).collect::<Result<_, _>>()?;
/// let mut seen = Vec::new();
/// quantize_dynamic_with(&mut model, &QConfigSpec::int8(), |progress| {
///     println!("{}/{} {}", progress.layers, progress.total_layers, progress.path);
///     seen.push((progress.path.to_owned(), progress.bytes));
///     ControlFlow::Continue(())
/// })?;
/// assert_eq!(seen[1], ("1".to_owned(), 2 * 64 * 32 * 4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`quantize_dynamic`], and [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) when
/// `progress` asks to stop. The model is then as it was, also after a panic of `progress`.
pub fn quantize_dynamic_with<M>(
    model: &mut M,
    spec: &QConfigSpec,
    progress: impl FnMut(&Progress<'_>) -> ControlFlow<()>,
) -> Result<Report>
where
    M: Quantizable + ?Sized,
{
    quantize_prepared(model, spec, progress, |_, _, _| Ok(Replacements::new()))
}

/// [`quantize_dynamic_with`] that takes the layers that `prepare` has quantized already, once it is
/// known that the spec fits the model. `prepare` leaves the model as it is.
pub(crate) fn quantize_prepared<M>(
    model: &mut M,
    spec: &QConfigSpec,
    mut progress: impl FnMut(&Progress<'_>) -> ControlFlow<()>,
    prepare: impl FnOnce(&mut M, &Survey, &[Decision]) -> Result<Replacements>,
) -> Result<Report>
where
    M: Quantizable + ?Sized,
{
    let isa = kernels::active()?;
    let survey = Survey::new(model)?;
    let mut decisions = spec.resolve(&survey)?;
    float_tensors::checked(&survey, |layer| decisions[layer].is_swapped())?;
    let prepared = prepare(model, &survey, &decisions)?;
    let reporter = Reporter::new(&survey, &decisions, &mut progress);
    trace::quantize!(isa, reporter.total());
    let mut quantized = swap::quantize(model, &survey, &decisions, prepared, reporter)?;
    quantized.settle(&survey, &mut decisions)?;
    let report = Report::new(isa, survey, decisions, &quantized);
    swap::rehearse(model, &quantized.replacements)?;
    swap::install(model, quantized.replacements)?;
    trace::installed!(report);
    Ok(report)
}

/// The report of a model as it is.
pub(crate) fn report<M: Quantizable + ?Sized>(model: &M) -> Result<Report> {
    let survey = Survey::new(model)?;
    let decision = |found: &survey::FoundLayer| {
        Decision::Leave(if found.is_quantized() {
            LeftReason::AlreadyQuantized
        } else {
            LeftReason::Float
        })
    };
    let decisions = survey.layers.iter().map(decision).collect();
    Ok(Report::new(kernels::active()?, survey, decisions, &swap::QuantizedLayers::default()))
}
