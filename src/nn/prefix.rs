//! The place in a checkpoint that a layer was loaded from.

use std::sync::Arc;

use candle_nn::VarBuilder;

/// The name of the place that a layer was loaded from, for the layer to remember.
pub fn prefix_of(vb: &VarBuilder<'_>) -> Option<Arc<str>> {
    let prefix = vb.prefix();
    (!prefix.is_empty()).then(|| prefix.into())
}
