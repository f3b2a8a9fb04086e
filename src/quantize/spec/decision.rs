//! The decision of a spec for a layer.

use crate::qconfig::QConfig;
use crate::quantize::outcome::LeftReason;

#[derive(Clone)]
pub(crate) enum Decision {
    Swap { qconfig: QConfig, refusal: Refusal },
    Leave(LeftReason),
}

impl Decision {
    pub(crate) fn is_swapped(&self) -> bool {
        matches!(self, Self::Swap { .. })
    }

    /// Whether the layer is quantized, now or before.
    pub(crate) fn is_quantized(&self) -> bool {
        matches!(self, Self::Swap { .. } | Self::Leave(LeftReason::AlreadyQuantized))
    }
}

/// The consequence of a layer's error.
#[derive(Clone, Copy)]
pub(crate) enum Refusal {
    /// The call fails: a rule has the layer's exact name.
    Fails,
    /// The layer is left if int8 has no room for it; else the call fails.
    LeavesAtLimit,
    /// The layer is left.
    Leaves,
}
