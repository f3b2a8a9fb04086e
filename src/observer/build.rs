//! Observers by their configuration.

use super::config::{Observer, ObserverConfig, ObserverKind};
use super::histogram::HistogramObserver;
use super::min_max::{MinMaxObserver, PerChannelMinMaxObserver};
use super::moving_average::{MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver};
use super::onnxruntime::OnnxRuntimeObserver;
use super::placeholder::PlaceholderObserver;
use super::weight_qparams::WeightQParams;
use crate::error::Result;

/// Computes the parameters of some channels from their ranges.
pub(crate) type RangeFormula = Box<dyn Fn(&[[f32; 2]]) -> Result<WeightQParams> + Send + Sync>;

impl ObserverConfig {
    /// The observer that this configuration describes; it has seen nothing.
    ///
    /// # Errors
    /// When an argument is invalid, or the observer does not support it.
    pub fn build(&self) -> Result<Box<dyn Observer>> {
        Ok(match &self.kind {
            ObserverKind::MinMax => Box::new(MinMaxObserver::new(self)?),
            ObserverKind::PerChannelMinMax => Box::new(PerChannelMinMaxObserver::new(self)?),
            ObserverKind::MovingAverageMinMax { averaging_constant } => {
                Box::new(MovingAverageMinMaxObserver::new(self, *averaging_constant)?)
            }
            ObserverKind::MovingAveragePerChannelMinMax { averaging_constant } => Box::new(
                MovingAveragePerChannelMinMaxObserver::new(self, *averaging_constant)?,
            ),
            ObserverKind::Histogram { bins } => Box::new(HistogramObserver::new(self, *bins)?),
            ObserverKind::OnnxRuntime => Box::new(OnnxRuntimeObserver::new(self)?),
            ObserverKind::Placeholder => Box::new(PlaceholderObserver),
            ObserverKind::Custom(custom) => (custom.build)(self)?,
        })
    }

    /// The formula of an observer that keeps the range of each channel and nothing else: applied to
    /// the ranges of some channels of a weight, it gives what the observer gives them after it has
    /// seen the whole weight once.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub(crate) fn range_formula(&self) -> Result<Option<RangeFormula>> {
        let formula = match &self.kind {
            ObserverKind::PerChannelMinMax => PerChannelMinMaxObserver::new(self)?.formula,
            ObserverKind::MovingAveragePerChannelMinMax { averaging_constant } => {
                MovingAveragePerChannelMinMaxObserver::new(self, *averaging_constant)?.formula
            }
            ObserverKind::OnnxRuntime if self.qscheme.is_per_channel() => {
                let observer = OnnxRuntimeObserver::new(self)?;
                return Ok(Some(Box::new(move |ranges| observer.of_ranges(ranges))));
            }
            _ => return Ok(None),
        };
        Ok(Some(Box::new(move |ranges| {
            formula.calculate_qparams(ranges)
        })))
    }
}
