//! Where in a checkpoint a layer was loaded.

use std::sync::Arc;

use candle_nn::VarBuilder;

/// The name that a layer remembers of where it was loaded from.
pub fn prefix_of(vb: &VarBuilder<'_>) -> Option<Arc<str>> {
    let prefix = vb.prefix();
    (!prefix.is_empty()).then(|| prefix.into())
}
