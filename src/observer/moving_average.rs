//! Averages of minimum and maximum that weight each tensor more than those before it.

use candle_core::Tensor;

use super::config::{Observer, ObserverConfig};
use super::formula::Formula;
use super::min_max::Extremes;
use super::values::ranges;
use super::weight_qparams::WeightQParams;
use crate::error::{Error, Result};

/// PyTorch's `MovingAverageMinMaxObserver`: averages of minimum and maximum, per tensor.
///
/// The first tensor's are taken as they are; later ones move them by `averaging_constant`
/// times the difference, in f32.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::observer::{
///     MovingAverageMinMaxObserver, Observer, ObserverConfig, ObserverKind,
/// };
/// use candle_dynquant::{QDType, QScheme};
///
/// let kind = ObserverKind::MovingAverageMinMax { averaging_constant: 0.5 };
/// let config = ObserverConfig::new(kind, QDType::QUInt8, QScheme::PerTensorAffine);
/// let mut observer = MovingAverageMinMaxObserver::new(&config, 0.5)?;
/// observer.observe(&Tensor::new(&[-1f32, 1.], &Device::Cpu)?)?;
/// observer.observe(&Tensor::new(&[-3f32, 5.], &Device::Cpu)?)?;
/// assert_eq!((observer.min_val(), observer.max_val()), (Some(-2.), Some(3.)));
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MovingAverageMinMaxObserver {
    formula: Formula,
    averaging_constant: f32,
    averages: Extremes,
}

impl MovingAverageMinMaxObserver {
    /// One that has seen nothing; `config.kind` does not matter. PyTorch's default constant is
    /// 0.01.
    ///
    /// # Errors
    /// When the scheme is per channel, the constant is not above 0 and at most 1, or another
    /// argument is invalid.
    pub fn new(config: &ObserverConfig, averaging_constant: f32) -> Result<Self> {
        check_averaging_constant(averaging_constant)?;
        Ok(Self {
            formula: Formula::per_tensor(config, "MovingAverageMinMax")?,
            averaging_constant,
            averages: Extremes::default(),
        })
    }

    /// Average of the minima.
    pub fn min_val(&self) -> Option<f32> {
        self.averages.0.first().map(|range| range[0])
    }

    /// Average of the maxima.
    pub fn max_val(&self) -> Option<f32> {
        self.averages.0.first().map(|range| range[1])
    }
}

impl Observer for MovingAverageMinMaxObserver {
    fn observe(&mut self, tensor: &Tensor) -> Result<()> {
        let ranges = ranges(tensor, None)?;
        self.averages
            .update(ranges, average(self.averaging_constant))
    }

    fn calculate_qparams(&self) -> Result<WeightQParams> {
        self.formula.calculate_qparams(&self.averages.0)
    }
}

/// PyTorch's `MovingAveragePerChannelMinMaxObserver`: averages for each index of `ch_axis`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::observer::{
///     MovingAveragePerChannelMinMaxObserver, Observer, ObserverConfig, ObserverKind,
/// };
/// use candle_dynquant::{QDType, QScheme};
///
/// let kind = ObserverKind::MovingAveragePerChannelMinMax { averaging_constant: 0.5 };
/// let config = ObserverConfig::new(kind, QDType::QUInt8, QScheme::PerChannelAffine);
/// let mut observer = MovingAveragePerChannelMinMaxObserver::new(&config, 0.5)?;
/// observer.observe(&Tensor::new(&[[-1f32, 1.], [0., 4.]], &Device::Cpu)?)?;
/// observer.observe(&Tensor::new(&[[-3f32, 5.], [0., 8.]], &Device::Cpu)?)?;
/// assert_eq!(observer.max_val(), [3., 6.]);
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MovingAveragePerChannelMinMaxObserver {
    pub(super) formula: Formula,
    ch_axis: isize,
    averaging_constant: f32,
    averages: Extremes,
}

impl MovingAveragePerChannelMinMaxObserver {
    /// One that has seen nothing; `config.kind` does not matter. PyTorch's default constant is
    /// 0.01.
    ///
    /// # Errors
    /// When the scheme is per tensor, the constant is not above 0 and at most 1, or another
    /// argument is invalid.
    pub fn new(config: &ObserverConfig, averaging_constant: f32) -> Result<Self> {
        check_averaging_constant(averaging_constant)?;
        Ok(Self {
            formula: Formula::per_channel(config, "MovingAveragePerChannelMinMax")?,
            ch_axis: config.ch_axis,
            averaging_constant,
            averages: Extremes::default(),
        })
    }

    /// Average of the minima of each channel.
    pub fn min_val(&self) -> Vec<f32> {
        self.averages.0.iter().map(|range| range[0]).collect()
    }

    /// Average of the maxima of each channel.
    pub fn max_val(&self) -> Vec<f32> {
        self.averages.0.iter().map(|range| range[1]).collect()
    }
}

impl Observer for MovingAveragePerChannelMinMaxObserver {
    fn observe(&mut self, tensor: &Tensor) -> Result<()> {
        let ranges = ranges(tensor, Some(self.ch_axis))?;
        self.averages
            .update(ranges, average(self.averaging_constant))
    }

    fn calculate_qparams(&self) -> Result<WeightQParams> {
        self.formula.calculate_qparams(&self.averages.0)
    }
}

fn average(constant: f32) -> impl Fn([f32; 2], [f32; 2]) -> [f32; 2] {
    move |old, new| [0, 1].map(|end| old[end] + constant * (new[end] - old[end]))
}

fn check_averaging_constant(constant: f32) -> Result<()> {
    if constant > 0. && constant <= 1. {
        return Ok(());
    }
    Err(Error::InvalidArgument {
        what: "averaging_constant",
        expected: "above 0 and at most 1".into(),
        got: constant.to_string(),
    })
}
