//! How a stored weight is to be understood and used.

use candle_core::DType;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::qconfig::ActivationConfig;
use crate::qparams::{QDType, QScheme};

/// Suffixes of the tensors that belong to a quantized weight.
pub(crate) const SCALE: &str = "_scale";
pub(crate) const ZERO_POINT: &str = "_zero_point";
pub(crate) const UNSIGNED_ZERO_POINT: &str = "_zero_point_unsigned";
/// The prefix of the parameters of a norm that multiplies its residual, and the name of the
/// factors.
pub(crate) const EQUALIZED: &str = "equalized";
pub(crate) const RESIDUAL: &str = "residual_weight";
/// The suffix under which a backend describes the weight; no tensor of a file.
pub(crate) const FORMAT: &str = "_dynquant";

/// The tensors say the rest: shape, codes or halves, scales, zero points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Format {
    /// `None` of halves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codes: Option<Codes>,
    /// Whether halves are bfloat16; otherwise they are float16.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bfloat16: bool,
    /// The treatment of activations in products; `None` of a table that is only looked up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<ActivationConfig>,
    /// Elements that were clamped when they became halves.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub saturated: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Codes {
    pub dtype: QDType,
    pub qscheme: QScheme,
}

// serde's signature.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl Format {
    /// The dtype of the weight, if it is one of halves.
    pub fn halves(self) -> DType {
        if self.bfloat16 {
            DType::BF16
        } else {
            DType::F16
        }
    }

    /// Checks that activations fit the weight.
    pub fn check(self) -> Result<Self> {
        let fits = match (self.codes, self.activation) {
            (codes, None) => !(self.bfloat16 && codes.is_some()),
            (Some(codes), Some(ActivationConfig::Dynamic(_))) => {
                self.saturated == 0
                    && !self.bfloat16
                    && codes.qscheme != QScheme::PerChannelAffineFloatQParams
            }
            (None, Some(ActivationConfig::Float)) => !self.bfloat16,
            (None, Some(ActivationConfig::BFloat16)) => self.bfloat16,
            _ => false,
        };
        if fits {
            Ok(self)
        } else {
            Err(Error::UnsupportedCheckpoint {
                what: "weight",
                expected: "codes with dynamic activations and integer zero points, float16 with \
                       float activations, bfloat16 with bfloat16 activations, or a table \
                       without activations"
                    .into(),
                got: serde_json::to_string(&self).unwrap_or_default(),
            })
        }
    }
}
