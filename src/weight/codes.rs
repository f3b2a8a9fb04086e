//! The parameters that weights become codes with: of weights that are multiplied and of tables that
//! are looked up.

use candle_core::Tensor;

use crate::error::{Error, Result};
use crate::kernels::{self, Coding, Extent, Isa, PanelValues};
use crate::observer::{ObserverConfig, ObserverKind, RangeFormula, WeightQParams, ZeroPoints};
use crate::qparams::{QDType, QScheme};
use crate::tensor::Elements;

/// The parameters of a weight, whose rows are `channels`, that an observer chooses.
///
/// `weight` is `[channels, k]`, contiguous and f32.
///
/// # Errors
/// When the channels are along another axis, an element is NaN or infinite, or the observer does
/// not support its arguments or breaks its contract.
pub(crate) fn observe(
    isa: Isa,
    weight: &Tensor,
    channels: &str,
    config: &ObserverConfig,
) -> Result<WeightQParams> {
    check_axis(channels, config)?;
    let (n, k) = weight.dims2()?;
    if let ObserverKind::Custom(_) = config.kind {
        // It might let them pass.
        kernels::check_finite(isa, k, Elements::new(weight).as_slice()?)?;
    }
    let mut observer = config.build()?;
    observer.observe(weight)?;
    let qparams = observer.calculate_qparams()?;
    let dtype = qparams.dtype();
    if dtype != config.dtype {
        let expected = format!("an observer for {}", config.dtype);
        return Err(unsupported(expected, format!("one that chose {dtype}")));
    }
    let (scales, per_channel) = (qparams.scales().len(), config.qscheme.is_per_channel());
    if scales != 1 && !(per_channel && scales == n) {
        let expected = if per_channel {
            format!("one scale, or one for each of {n} {channels}")
        } else {
            format!("one scale for {}", config.qscheme)
        };
        return Err(unsupported(expected, scales.to_string()));
    }
    Ok(qparams)
}

/// The parameters of a weight that is multiplied.
pub(crate) struct Parameters {
    dtype: QDType,
    choice: Choice,
}

enum Choice {
    /// The parameters that an observer computes from the weight.
    Observed(WeightQParams),
    /// The formula that is applied to the ranges of channels just before they become codes: the
    /// weight is read once.
    Ranges(RangeFormula),
}

impl Parameters {
    /// The parameters that an observer chooses for `weight`, `[output channels, k]`, contiguous and
    /// f32.
    ///
    /// # Errors
    /// As [`observe`], and when the zero points are floats.
    pub fn choose(isa: Isa, weight: &Tensor, config: &ObserverConfig) -> Result<Self> {
        const CHANNELS: &str = "output channels";
        check_axis(CHANNELS, config)?;
        let integers = config.qscheme != QScheme::PerChannelAffineFloatQParams;
        let choice = match config.range_formula()? {
            // Before the first element there is one scale for all.
            Some(formula) if integers && weight.elem_count() > 0 => Choice::Ranges(formula),
            _ => {
                let qparams = observe(isa, weight, CHANNELS, config)?;
                if let ZeroPoints::Float(_) = qparams.zero_points() {
                    let expected = "integer zero points, for a weight that is multiplied";
                    return Err(unsupported(expected.into(), config.qscheme.to_string()));
                }
                Choice::Observed(qparams)
            }
        };
        Ok(Self { dtype: config.dtype, choice })
    }

    /// How the values of each of these channels become i8.
    ///
    /// # Errors
    /// When an element is NaN or infinite, or f32 cannot hold a scale.
    pub fn codings(&self, channels: &PanelValues<'_>) -> Result<Vec<Coding>> {
        let stored = |coding: Coding| coding.moved(-self.dtype.offset());
        let range = channels.range.clone();
        match &self.choice {
            Choice::Observed(qparams) => Ok(range.map(|i| stored(qparams.coding(i))).collect()),
            Choice::Ranges(formula) => {
                let ranges: Vec<_> = channels.extents()?.iter().map(Extent::range).collect();
                let qparams = formula(&ranges)?;
                Ok((0..range.len()).map(|i| stored(qparams.coding(i))).collect())
            }
        }
    }
}

fn check_axis(channels: &str, config: &ObserverConfig) -> Result<()> {
    match config.ch_axis {
        0 | -2 => Ok(()),
        axis => {
            Err(unsupported(format!("ch_axis 0, of the {channels}"), format!("ch_axis {axis}")))
        }
    }
}

fn unsupported(expected: String, got: String) -> Error {
    Error::qconfig(expected, got)
}
