//! Observers that keep ranges: of all elements, or of each channel.

use candle_core::Tensor;

use super::config::{Observer, ObserverConfig};
use super::formula::QParamsFormula;
use super::values::ranges;
use super::weight_qparams::WeightQParams;
use crate::error::{Error, Result};

/// Minimum and maximum of the whole weight or of each channel, or averages of them.
#[derive(Clone, Debug)]
pub(super) struct RangeObserver {
    formula: QParamsFormula,
    /// `None` for one range of all elements.
    ch_axis: Option<isize>,
    /// The share of the newest in averages; `None` keeps the extremes.
    averaging_constant: Option<f32>,
    /// Empty before the first element is seen.
    seen: Vec<[f32; 2]>,
}

impl RangeObserver {
    pub fn new(formula: QParamsFormula, config: &ObserverConfig) -> Self {
        Self {
            formula,
            ch_axis: config.qscheme.is_per_channel().then_some(config.ch_axis),
            averaging_constant: config.averaging_constant(),
            seen: Vec::new(),
        }
    }

    fn join(&self, old: [f32; 2], new: [f32; 2]) -> [f32; 2] {
        match self.averaging_constant {
            None => [old[0].min(new[0]), old[1].max(new[1])],
            Some(share) => [0, 1].map(|end| old[end] + share * (new[end] - old[end])),
        }
    }
}

impl Observer for RangeObserver {
    fn observe(&mut self, tensor: &Tensor) -> Result<()> {
        let new = ranges(tensor, self.ch_axis)?;
        if new.is_empty() || self.seen.is_empty() {
            // The first ranges are taken as they are.
            self.seen.extend(new);
            return Ok(());
        }
        if self.seen.len() != new.len() {
            let expected = format!("{} channels, as before", self.seen.len());
            return Err(Error::shape("observe", expected, &[new.len()]));
        }
        let joined = self.seen.iter().zip(new).map(|(old, new)| self.join(*old, new));
        self.seen = joined.collect();
        Ok(())
    }

    fn calculate_qparams(&self) -> Result<WeightQParams> {
        self.formula.calculate_qparams(&self.seen)
    }

    fn ranges(&self) -> Vec<[f32; 2]> {
        self.seen.clone()
    }
}
