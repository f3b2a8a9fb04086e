//! How a model is quantized by its inputs.

use crate::error::{Error, Result};
use crate::quantize::QConfigSpec;

/// The options of [`gptq`](super::gptq()); a spec gives the layers and their configurations.
#[derive(Clone, Debug, PartialEq)]
pub struct GptqConfig {
    pub(super) spec: QConfigSpec,
    pub(super) damping: f64,
    pub(super) memory: usize,
}

impl GptqConfig {
    /// Damping of 0.01, and 1 GiB for sums.
    pub fn new(spec: QConfigSpec) -> Self {
        Self { spec, damping: 0.01, memory: 1 << 30 }
    }

    /// The damping: a share of the mean square of all inputs of the layer, which is added to the
    /// mean square of each input. The more, the less errors are fed back. 0.01 by default, above 0.
    #[must_use]
    pub fn damping(self, damping: f64) -> Self {
        Self { damping, ..self }
    }

    /// Bytes for sums of products of inputs, 1 GiB by default; for a layer of `k` inputs they take
    /// `4 k^2`. The model is run as often as it takes to have the sums of all layers, at least one
    /// layer each time. A layer whose sums take more than this and than 4 GiB (32,768 inputs) is
    /// rounded, and named in the report.
    #[must_use]
    pub fn memory(self, bytes: usize) -> Self {
        Self { memory: bytes, ..self }
    }

    /// Whether there may be sums for a layer of `k` inputs.
    pub(super) fn has_memory(&self, k: usize) -> bool {
        let most = (self.memory as u128).max(1 << 32);
        let k = k as u128;
        4 * k * k <= most
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.damping > 0. && self.damping.is_finite() {
            return Ok(());
        }
        Err(Error::argument("damping", "a number above 0", self.damping))
    }
}
