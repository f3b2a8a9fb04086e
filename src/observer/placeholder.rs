//! An observer that observes nothing.

use candle_core::Tensor;

use super::config::Observer;
use super::weight_qparams::WeightQParams;
use crate::error::{Error, Result};

/// PyTorch's `PlaceholderObserver`: it observes nothing and has no qparams.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::observer::{Observer, PlaceholderObserver};
///
/// let mut observer = PlaceholderObserver;
/// observer.observe(&Tensor::new(&[1f32], &Device::Cpu)?)?;
/// assert!(observer.calculate_qparams().is_err());
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct PlaceholderObserver;

impl Observer for PlaceholderObserver {
    fn observe(&mut self, _: &Tensor) -> Result<()> {
        Ok(())
    }

    fn calculate_qparams(&self) -> Result<WeightQParams> {
        Err(Error::UnsupportedQConfig {
            expected: "an observer that chooses a scale".into(),
            got: "PlaceholderObserver".into(),
        })
    }
}
