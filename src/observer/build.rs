//! Observers by their configuration.

use candle_core::Tensor;

use super::config::{Observer, ObserverConfig, ObserverKind};
use super::formula::QParamsFormula;
use super::histogram::HistogramObserver;
use super::ranges::RangeObserver;
use super::weight_qparams::WeightQParams;
use crate::error::{Error, Result};

/// Computes the parameters of some channels from their ranges.
pub(crate) type RangeFormula = Box<dyn Fn(&[[f32; 2]]) -> Result<WeightQParams> + Send + Sync>;

impl ObserverConfig {
    /// The observer that this configuration describes; it has seen nothing.
    ///
    /// # Errors
    /// When an argument is invalid, or the observer does not support it.
    pub fn build(&self) -> Result<Box<dyn Observer>> {
        Ok(match (self.formula()?, &self.kind) {
            (Some(formula), _) => Box::new(RangeObserver::new(formula, self)),
            (None, ObserverKind::Histogram { bins }) => {
                Box::new(HistogramObserver::new(self, *bins)?)
            }
            (None, ObserverKind::Custom(custom)) => (custom.build)(self)?,
            (None, _) => Box::new(Placeholder),
        })
    }

    /// The formula of an observer that keeps the range of each channel and nothing else: applied to
    /// the ranges of some channels of a weight, it gives what the observer gives them after it has
    /// seen the whole weight once.
    pub(crate) fn range_formula(&self) -> Result<Option<RangeFormula>> {
        let formula = self.formula()?.filter(|_| self.qscheme.is_per_channel());
        Ok(formula.map(|formula| -> RangeFormula {
            Box::new(move |ranges| formula.calculate_qparams(ranges))
        }))
    }

    /// The formula for the ranges that an observer keeps; `None` if it keeps something else.
    fn formula(&self) -> Result<Option<QParamsFormula>> {
        if let Some(constant) = self.averaging_constant()
            && !(constant > 0. && constant <= 1.)
        {
            let expected = "above 0 and at most 1";
            return Err(Error::argument("averaging_constant", expected, constant));
        }
        match &self.kind {
            ObserverKind::OnnxRuntime => QParamsFormula::onnxruntime(self).map(Some),
            ObserverKind::Histogram { .. }
            | ObserverKind::Placeholder
            | ObserverKind::Custom(_) => Ok(None),
            kind => QParamsFormula::pytorch(self, kind).map(Some),
        }
    }
}

/// PyTorch's `PlaceholderObserver`.
#[derive(Debug)]
struct Placeholder;

impl Observer for Placeholder {
    fn observe(&mut self, _: &Tensor) -> Result<()> {
        Ok(())
    }

    fn calculate_qparams(&self) -> Result<WeightQParams> {
        let expected = "an observer that chooses a scale";
        Err(Error::qconfig(expected, "PlaceholderObserver"))
    }
}
