//! Equalisation: moves range from the output of a layer norm, or of a layer, to the weights that
//! multiply it. The float model computes the same, and the quantized model is more accurate.

mod config;
mod factors;
mod find;
mod fold;
mod report;

use std::collections::BTreeMap;

use candle_core::Tensor;

pub use config::Equalization;
pub use report::{EqualizeReport, EqualizedPair};

use crate::error::{Error, Result};
use crate::module::Quantizable;
use crate::quantize::Skipped;
use crate::tensor::to_f32_vec;
use find::Probed;
use fold::{Fold, fold};

/// Difference of the float model's output up to which a pair is kept, in units of its maximum
/// element.
const TOLERANCE: f64 = 1e-5;

/// Layers that are tried as the source of another, from the last one before it.
const GUESSES: usize = 2;

/// Equalizes pairs of a norm and the layers that read it, in place and before quantizing; the float
/// model's output is the same.
///
/// `probe` runs the model on a small input of the kind that it is for, such as 16 sentences. Norms
/// and layers report their inputs and outputs to taps, which tell the readers of each norm and
/// their ranges. The output must not change by more than a hundred-thousandth; pairs that change it
/// are undone. The model is unchanged by an error or a panic.
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use candle_dynquant::{equalize, nn, quantize_dynamic, Equalization, QConfigSpec, Quantizable};
///
/// #[derive(Quantizable, Clone)]
/// struct Block { norm: nn::LayerNorm, up: nn::Linear }
///
/// impl Block {
///     fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
///         self.up.forward(&self.norm.forward(xs)?)
///     }
/// }
///
/// let gain = Tensor::rand(0.1f32, 4., 32, &Device::Cpu)?;
/// let mut model = Block {
///     norm: nn::LayerNorm::new(gain.clone(), gain.zeros_like()?, 1e-5),
///     up: nn::Linear::new(Tensor::randn(0f32, 1., (64, 32), &Device::Cpu)?, None),
/// };
/// let xs = Tensor::randn(0f32, 1., (4, 32), &Device::Cpu)?;
/// let before = model.forward(&xs)?.to_vec2::<f32>()?;
/// let report = equalize(&mut model, &Equalization::default(), |model| model.forward(&xs))?;
/// assert_eq!((&report.pairs[0].source[..], &report.pairs[0].layers[..]), ("norm", &["up".to_owned()][..]));
/// assert_eq!(model.forward(&xs)?.to_vec2::<f32>()?, before);
/// quantize_dynamic(&mut model, &QConfigSpec::int8())?;
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
///
/// # Theory
/// Where every reader of a norm's output `y` multiplies it, `y W^T = (y / s) (W s)^T` for any
/// factors `s`, one a channel: the norm's weight and bias are divided by `s`, and the columns of
/// `W`, in each tap of a convolution, multiplied. Nothing is added at run time. Per-row int8 loses
/// least where the channels of `y` have similar ranges and so have the columns of `W`:
/// `s = max|y|^alpha / max|W|^(1 - alpha)`, SmoothQuant's formula, with `y` as it is on a few
/// typical inputs. (By the norm's weight and bias instead of `y`, nothing is gained: a trained
/// norm's outliers come from what it normalizes.)
///
/// A layer takes the norm's place where its output reaches the next one times something that does
/// not depend on it ([`between_layers`](Equalization::between_layers)): its rows and its bias are
/// divided.
///
/// A norm of a post-norm transformer is also read as a residual, by the next "add and norm"
/// ([`forward_add`](crate::nn::LayerNorm::forward_add)), which multiplies its residual by `s` while
/// it adds. Factors are powers of two, so that each product has the same bits as before, in any
/// float dtype.
///
/// # Checkpoints
/// An equalized model, quantized or not, is [saved](crate::checkpoint::save) and loaded like any
/// other; where a norm multiplies its residual, with this crate's
/// [`nn::LayerNorm`](crate::nn::LayerNorm) only.
///
/// # Errors
/// When `probe` fails or its output is not finite, a regex is malformed or matches nothing, or
/// `alpha` is not between 0 and 1.
pub fn equalize<M>(
    model: &mut M,
    config: &Equalization,
    mut probe: impl FnMut(&M) -> candle_core::Result<Tensor>,
) -> Result<EqualizeReport>
where
    M: Quantizable + Clone,
{
    if !(0. ..=1.).contains(&config.alpha) {
        let expected = "a number from 0 to 1";
        return Err(Error::argument("alpha", expected, config.alpha));
    }
    let (expected, probed) = Probed::run(&mut model.clone(), |model| probe(model))?;
    let expected = finite(&expected)?;
    let found = probed.pairs(config)?;
    let mut folding = Folding {
        probed,
        expected,
        alpha: config.alpha,
        probe,
        model: model.clone(),
        report: EqualizeReport { pairs: Vec::new(), left: found.left },
    };
    if folding.change(found.pairs.clone())?.is_some() {
        // One of them is read by more than was seen.
        for pair in found.pairs {
            let path = pair.source.clone();
            if let Some(by) = folding.change(vec![pair])? {
                folding.report.left.push(Skipped::new(path, changes(by)));
            }
        }
    }
    if config.between_layers {
        folding.between_layers(config)?;
    }
    *model = folding.model;
    Ok(folding.report)
}

/// The model with the pairs that were folded so far.
struct Folding<M, P> {
    probed: Probed,
    /// The output of the probe.
    expected: Vec<f32>,
    alpha: f64,
    probe: P,
    model: M,
    report: EqualizeReport,
}

impl<M, P> Folding<M, P>
where
    M: Quantizable + Clone,
    P: FnMut(&M) -> candle_core::Result<Tensor>,
{
    /// Folds pairs of layers. Either all pairs of a kind are folded or none, since what holds for
    /// one block holds for the others.
    fn between_layers(&mut self, config: &Equalization) -> Result<()> {
        let mut left = Vec::new();
        for rank in 0..GUESSES {
            let mut kinds: BTreeMap<_, Vec<EqualizedPair>> = BTreeMap::new();
            for (pair, fault) in self.probed.guesses(config, rank, &self.report.readers())? {
                match fault {
                    Some(fault) => left.push((pair, fault)),
                    None => kinds.entry(pair.kind()).or_default().push(pair),
                }
            }
            for pairs in kinds.into_values() {
                if let Some(by) = self.change(pairs.clone())? {
                    left.extend(pairs.into_iter().map(|pair| (pair, changes(by))));
                }
            }
        }
        let mut readers = self.report.readers();
        for (pair, reason) in left {
            let others = pair.layers.into_iter();
            let others = others.filter(|layer| readers.insert(layer.clone()));
            if others.count() > 0 {
                self.report.left.push(Skipped::new(pair.source, reason));
            }
        }
        Ok(())
    }

    /// Folds these pairs; returns the change of the output if it is too large, and the model then
    /// stays.
    fn change(&mut self, pairs: Vec<EqualizedPair>) -> Result<Option<f64>> {
        let folds = pairs.into_iter().map(|pair| {
            let ranges = self.probed.ranges(&pair)?;
            Fold::new(&self.model, pair, &ranges, self.alpha)
        });
        let folds: Vec<Fold> = folds.collect::<Result<_>>()?;
        let folded = fold(&self.model, &folds)?;
        let got = to_f32_vec(&(self.probe)(&folded)?, "probe")?;
        let by = relative(&self.expected, &got);
        if by > TOLERANCE {
            return Ok(Some(by));
        }
        self.model = folded;
        let pairs = folds.into_iter().map(|fold| fold.pair);
        self.report.pairs.extend(pairs);
        Ok(None)
    }
}

/// Why pairs are left that change the output, in units of the maximum element.
fn changes(by: f64) -> String {
    format!("would change the output by {by:.1e}")
}

/// The output of the probe.
fn finite(output: &Tensor) -> Result<Vec<f32>> {
    let values = to_f32_vec(output, "probe")?;
    let got = match &values[..] {
        [] => "none",
        all if all.iter().all(|value| value.is_finite()) => return Ok(values),
        _ => "a NaN or an infinity",
    };
    Err(Error::argument("output of the probe", "finite numbers", got))
}

/// The maximum difference, in units of the maximum element.
fn relative(expected: &[f32], got: &[f32]) -> f64 {
    if expected.len() != got.len() {
        return f64::INFINITY;
    }
    let sizes = expected.iter().map(|x| x.abs());
    let pairs = expected.iter().zip(got);
    let by = pairs.map(|(expected, got)| match f64::from(expected - got).abs() {
        by if by.is_nan() => f64::INFINITY,
        by => by,
    });
    by.fold(0., f64::max) / f64::from(sizes.fold(f32::MIN_POSITIVE, f32::max))
}
