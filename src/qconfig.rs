//! What a layer is quantized to: how its weight is observed, how its activations are.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::qparams::QScheme;

/// Over how much of an activation one scale and zero point stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Granularity {
    /// All rows of a call share one: PyTorch's way, in which rows influence each other.
    PerTensor,
    /// Each row (token) has its own, so that its result does not depend on the rows beside it.
    PerRow,
}

/// How the activations of a layer are quantized at every call: u8, affine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ActivationConfig {
    /// Whether rows share their scale.
    pub granularity: Granularity,
    /// Use only 7 of the 8 bits, as PyTorch does on x86; costs accuracy and gains nothing here.
    pub reduce_range: bool,
}

/// How the weight of a layer is quantized, once: qint8, by its minimum and maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WeightConfig {
    /// Granularity and symmetry.
    pub qscheme: QScheme,
}

/// How one layer is quantized; PyTorch's `QConfig`.
///
/// ```
/// use candle_dynquant::{Granularity, QConfig};
///
/// let qconfig = QConfig::per_row_dynamic();
/// assert_eq!(qconfig.activation.granularity, Granularity::PerRow);
/// assert_eq!(qconfig.to_string(), "qint8 per channel, u8 per row");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QConfig {
    /// Activations, at every call.
    pub activation: ActivationConfig,
    /// Weights, once.
    pub weight: WeightConfig,
}

impl QConfig {
    /// A configuration from its parts.
    pub const fn new(qscheme: QScheme, granularity: Granularity, reduce_range: bool) -> Self {
        Self {
            activation: ActivationConfig {
                granularity,
                reduce_range,
            },
            weight: WeightConfig { qscheme },
        }
    }

    /// PyTorch's `default_dynamic_qconfig`: one weight scale, one 7-bit activation scale a call.
    ///
    /// Bit-equal to torch 2.9.1 on x86.
    pub const fn default_dynamic() -> Self {
        Self::new(QScheme::PerTensorSymmetric, Granularity::PerTensor, true)
    }

    /// PyTorch's `per_channel_dynamic_qconfig`: a weight scale per output channel.
    ///
    /// Bit-equal to torch 2.9.1 on x86.
    pub const fn per_channel_dynamic() -> Self {
        Self::new(QScheme::PerChannelSymmetric, Granularity::PerTensor, true)
    }

    /// What we recommend: a weight scale per output channel, an 8-bit activation scale per row.
    pub const fn per_row_dynamic() -> Self {
        Self::new(QScheme::PerChannelSymmetric, Granularity::PerRow, false)
    }
}

impl fmt::Display for QConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weight = match self.weight.qscheme {
            QScheme::PerTensorSymmetric => "qint8 per tensor",
            QScheme::PerChannelSymmetric => "qint8 per channel",
        };
        let bits = if self.activation.reduce_range { 7 } else { 8 };
        let activation = match self.activation.granularity {
            Granularity::PerTensor => "per tensor",
            Granularity::PerRow => "per row",
        };
        write!(f, "{weight}, u{bits} {activation}")
    }
}
