//! `quantize_dynamic`: survey the whole model, check everything, then swap.

mod hidden;
mod owners;
mod report;
mod spec;
mod survey;
mod swap;

pub use hidden::{HiddenField, HiddenReason};
pub use report::{LayerReport, LeftReason, OpaqueField, Outcome, Report};
pub use spec::{OneOrMany, QConfigSpec, Target};

use crate::error::Result;
use crate::kernels::Isa;
use crate::module::Quantizable;
use survey::Survey;

/// Quantizes the layers of `model` that `spec` matches, in place, and reports every layer's outcome.
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
/// When a rule or the whole spec matches nothing, a regex is malformed, two layers have one
/// path, or a matched weight cannot be quantized. The model is then as it was.
pub fn quantize_dynamic<M>(model: &mut M, spec: &QConfigSpec) -> Result<Report>
where
    M: Quantizable + ?Sized,
{
    let isa = Isa::active()?;
    let survey = Survey::of(model)?;
    let decisions = spec.resolve(&survey)?;
    let quantized = swap::quantize(model, &survey, &decisions)?;
    let report = Report::new(isa, survey, decisions, &quantized);
    swap::rehearse(model, &quantized.replacements)?;
    swap::install(model, quantized.replacements)?;
    Ok(report)
}
