//! The minimum and the maximum of all elements seen.

use candle_core::Tensor;

use super::config::{Observer, ObserverConfig};
use super::formula::Formula;
use super::values::ranges;
use super::weight_qparams::WeightQParams;
use crate::error::{Error, Result};

/// PyTorch's `MinMaxObserver`: minimum and maximum of all tensors seen, per tensor.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::observer::{MinMaxObserver, Observer, ObserverConfig, ObserverKind};
/// use candle_dynquant::{QDType, QScheme};
///
/// let config =
///     ObserverConfig::new(ObserverKind::MinMax, QDType::QUInt8, QScheme::PerTensorAffine);
/// let mut observer = MinMaxObserver::new(&config)?;
/// observer.observe(&Tensor::new(&[-1f32, 0.5], &Device::Cpu)?)?;
/// observer.observe(&Tensor::new(&[1.55f32], &Device::Cpu)?)?;
/// assert_eq!(observer.calculate_qparams()?.scales(), [0.01]);
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MinMaxObserver {
    formula: Formula,
    seen: Extremes,
}

impl MinMaxObserver {
    /// One that has seen nothing; `config.kind` does not matter.
    ///
    /// # Errors
    /// When the scheme is per channel or another argument is invalid.
    pub fn new(config: &ObserverConfig) -> Result<Self> {
        Ok(Self {
            formula: Formula::per_tensor(config, "MinMax")?,
            seen: Extremes::default(),
        })
    }

    /// Minimum of the elements seen.
    pub fn min_val(&self) -> Option<f32> {
        self.seen.0.first().map(|range| range[0])
    }

    /// Maximum of the elements seen.
    pub fn max_val(&self) -> Option<f32> {
        self.seen.0.first().map(|range| range[1])
    }
}

impl Observer for MinMaxObserver {
    fn observe(&mut self, tensor: &Tensor) -> Result<()> {
        self.seen.update(ranges(tensor, None)?, widen)
    }

    fn calculate_qparams(&self) -> Result<WeightQParams> {
        self.formula.calculate_qparams(&self.seen.0)
    }
}

/// PyTorch's `PerChannelMinMaxObserver`: a minimum and a maximum for each index of the axis
/// `ch_axis`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::observer::{
///     Observer, ObserverConfig, ObserverKind, PerChannelMinMaxObserver,
/// };
/// use candle_dynquant::{QDType, QScheme};
///
/// let (kind, qscheme) = (ObserverKind::PerChannelMinMax, QScheme::PerChannelAffine);
/// let config = ObserverConfig::new(kind, QDType::QUInt8, qscheme);
/// let mut observer = PerChannelMinMaxObserver::new(&config)?;
/// observer.observe(&Tensor::new(&[[-1f32, 1.55], [0., 2.55]], &Device::Cpu)?)?;
/// assert_eq!(observer.calculate_qparams()?.scales(), [0.01, 0.01]);
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PerChannelMinMaxObserver {
    pub(super) formula: Formula,
    ch_axis: isize,
    seen: Extremes,
}

impl PerChannelMinMaxObserver {
    /// One that has seen nothing; `config.kind` does not matter.
    ///
    /// # Errors
    /// When the scheme is per tensor or another argument is invalid.
    pub fn new(config: &ObserverConfig) -> Result<Self> {
        Ok(Self {
            formula: Formula::per_channel(config, "PerChannelMinMax")?,
            ch_axis: config.ch_axis,
            seen: Extremes::default(),
        })
    }

    /// Minimum of each channel.
    pub fn min_val(&self) -> Vec<f32> {
        self.seen.0.iter().map(|range| range[0]).collect()
    }

    /// Maximum of each channel.
    pub fn max_val(&self) -> Vec<f32> {
        self.seen.0.iter().map(|range| range[1]).collect()
    }
}

impl Observer for PerChannelMinMaxObserver {
    fn observe(&mut self, tensor: &Tensor) -> Result<()> {
        let ranges = ranges(tensor, Some(self.ch_axis))?;
        self.seen.update(ranges, widen)
    }

    fn calculate_qparams(&self) -> Result<WeightQParams> {
        self.formula.calculate_qparams(&self.seen.0)
    }
}

/// The range of both.
pub(super) fn widen(old: [f32; 2], new: [f32; 2]) -> [f32; 2] {
    [old[0].min(new[0]), old[1].max(new[1])]
}

/// The range of each channel, or of the tensor; none before the first element is seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Extremes(pub Vec<[f32; 2]>);

impl Extremes {
    /// Takes the first ranges as they are, later ones through `join`.
    pub fn update(
        &mut self,
        new: Vec<[f32; 2]>,
        join: impl Fn([f32; 2], [f32; 2]) -> [f32; 2],
    ) -> Result<()> {
        if new.is_empty() {
            return Ok(());
        }
        if self.0.is_empty() {
            self.0 = new;
            return Ok(());
        }
        if self.0.len() != new.len() {
            return Err(Error::ShapeMismatch {
                op: "observe",
                expected: format!("{} channels, as before", self.0.len()),
                got: vec![new.len()],
            });
        }
        for (old, new) in self.0.iter_mut().zip(new) {
            *old = join(*old, new);
        }
        Ok(())
    }
}
