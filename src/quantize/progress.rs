//! How far a call of `quantize_dynamic_with` is.

use std::ops::ControlFlow;

use super::spec::decision::Decision;
use super::survey::Survey;
use crate::error::{Error, Fault, Result};
use crate::module::WeightInfo;

/// How far a call of [`quantize_dynamic_with`](crate::quantize_dynamic_with) is: one more layer has
/// been quantized, or turned out to be one that is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// Path of the layer.
    pub path: &'a str,
    /// Layers that have been quantized, this one included.
    pub layers: usize,
    /// Layers that are to be quantized.
    pub total_layers: usize,
    /// Bytes that the weights of those layers had; a weight that several hold counts for each.
    pub bytes: usize,
    /// Bytes of the weights of all layers that are to be quantized.
    pub total_bytes: usize,
}

/// Calls a user's function layer by layer.
pub(crate) struct Reporter<'a> {
    call: &'a mut dyn FnMut(&Progress<'_>) -> ControlFlow<()>,
    now: Progress<'static>,
    cancelled: bool,
}

impl<'a> Reporter<'a> {
    pub fn new(
        survey: &Survey,
        decisions: &[Decision],
        call: &'a mut dyn FnMut(&Progress<'_>) -> ControlFlow<()>,
    ) -> Self {
        let layers = survey.layers.iter().zip(decisions);
        let swapped = layers.filter(|(_, decision)| matches!(decision, Decision::Swap { .. }));
        let bytes = swapped.map(|(layer, _)| bytes(&layer.weights));
        let (total_layers, total_bytes) =
            bytes.fold((0, 0), |(layers, sum), bytes| (layers + 1, sum + bytes));
        let now = Progress { path: "", layers: 0, total_layers, bytes: 0, total_bytes };
        Self { call, now, cancelled: false }
    }

    pub fn total(&self) -> Progress<'static> {
        self.now
    }

    /// Whether the function has asked to stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// The layer at `path`, which had these weights, is done.
    pub fn advance(&mut self, path: &str, weights: &[WeightInfo]) {
        self.now.layers += 1;
        self.now.bytes += bytes(weights);
        self.cancelled = (self.call)(&Progress { path, ..self.now }).is_break();
    }

    /// # Errors
    /// When the function has asked to stop.
    pub fn finish(self) -> Result<()> {
        if self.cancelled {
            return Err(Error::from(Fault::Cancelled {
                layers: self.now.layers,
                total_layers: self.now.total_layers,
            }));
        }
        Ok(())
    }
}

fn bytes(weights: &[WeightInfo]) -> usize {
    weights.iter().map(|weight| weight.bytes).sum()
}
