//! How a stored weight is to be understood and used.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::halves::HalfType;
use crate::qconfig::file::Activations;
use crate::qconfig::{DynamicConfig, GroupConfig};
use crate::qparams::{QDType, QScheme};

/// Suffixes of the tensors that belong to a quantized weight.
pub(crate) const SCALE: &str = "_scale";
pub(crate) const ZERO_POINT: &str = "_zero_point";
pub(crate) const UNSIGNED_ZERO_POINT: &str = "_zero_point_unsigned";
/// Those of a weight of 4 bits, which has none of its own name: eight codes an i32, and its shape.
pub(crate) const PACKED: &str = "_packed";
pub(crate) const SHAPE: &str = "_shape";
/// The minimum of each group of codes that are not signed; this crate's own.
pub(crate) const MINIMUM: &str = "_minimum";
/// The number of the group of each input, where groups do not follow one another.
pub(crate) const G_IDX: &str = "_g_idx";
/// The prefix of the parameters of a norm that multiplies its residual, and the name of the
/// factors.
pub(crate) const EQUALIZED: &str = "equalized";
pub(crate) const RESIDUAL: &str = "residual_weight";
/// The suffix under which a backend marks a quantized weight; no tensor of a file.
pub(crate) const FORMAT: &str = "_dynquant";
/// The name under which a backend gives the word for the precision of attention; no tensor of a
/// file.
pub(crate) const ATTENTION: &str = "attention_dynquant";

/// The tensors say the rest: shape, codes or halves, scales, zero points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Int8 {
        codes: Codes,
        /// How activations become codes in products; `None` of a table.
        activation: Option<DynamicConfig>,
    },
    Half {
        half: HalfType,
        /// Elements that were clamped when they became halves.
        saturated: usize,
        /// Whether it is no table.
        multiplied: bool,
    },
    Groups {
        groups: GroupConfig,
        /// Whether it is no table.
        multiplied: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Codes {
    pub dtype: QDType,
    pub qscheme: QScheme,
}

/// A format as it is written.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Written {
    /// `None` of halves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    codes: Option<Codes>,
    /// Whether halves are bfloat16; otherwise they are float16.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    bfloat16: bool,
    /// Activations in products; `None` of a table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    activation: Option<Activations>,
    /// `None` of weights that have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    groups: Option<GroupConfig>,
    #[serde(default, skip_serializing_if = "is_zero")]
    saturated: usize,
}

// serde's signature.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl Format {
    /// The codes of observers; `None` of others.
    pub fn codes(self) -> Option<Codes> {
        match self {
            Self::Int8 { codes, .. } => Some(codes),
            Self::Half { .. } | Self::Groups { .. } => None,
        }
    }

    /// The groups that share a scale; `None` of weights that have none.
    pub fn groups(self) -> Option<GroupConfig> {
        match self {
            Self::Groups { groups, .. } => Some(groups),
            Self::Int8 { .. } | Self::Half { .. } => None,
        }
    }

    /// The integers that are stored, whatever their use.
    pub fn elements(self) -> (Option<Codes>, Option<GroupConfig>) {
        (self.codes(), self.groups())
    }

    /// Whether it is one of integers, which other libraries read.
    pub fn has_integers(self) -> bool {
        !matches!(self, Self::Half { .. })
    }

    /// How activations become codes in products; `None` of all but int8, and of a table.
    pub fn activation(self) -> Option<DynamicConfig> {
        match self {
            Self::Int8 { activation, .. } => activation,
            Self::Half { .. } | Self::Groups { .. } => None,
        }
    }

    /// Whether it is no table.
    pub fn is_multiplied(self) -> bool {
        match self {
            Self::Int8 { activation, .. } => activation.is_some(),
            Self::Half { multiplied, .. } | Self::Groups { multiplied, .. } => multiplied,
        }
    }

    /// Elements that were clamped when they became halves.
    pub fn saturated(self) -> usize {
        match self {
            Self::Int8 { .. } | Self::Groups { .. } => 0,
            Self::Half { saturated, .. } => saturated,
        }
    }

    /// The format of more such halves; `None` if others differ in more than what was clamped.
    pub fn joined(self, other: Self) -> Option<Self> {
        match (self, other) {
            (
                Self::Half {
                    half,
                    saturated,
                    multiplied,
                },
                Self::Half {
                    saturated: more, ..
                },
            ) => {
                let joined = |saturated| Self::Half {
                    half,
                    saturated,
                    multiplied,
                };
                (joined(more) == other).then(|| joined(saturated + more))
            }
            _ => (self == other).then_some(self),
        }
    }
}

impl From<Format> for Written {
    fn from(format: Format) -> Self {
        let activation = match format {
            Format::Int8 { activation, .. } => activation.map(Activations::Dynamic),
            Format::Half {
                half, multiplied, ..
            } => multiplied.then(|| Activations::Word(half.activations())),
            Format::Groups { groups, multiplied } => {
                multiplied.then_some(Activations::of_groups(groups))
            }
        };
        Self {
            codes: format.codes(),
            bfloat16: matches!(format, Format::Half { half, .. } if half == HalfType::BFloat16),
            activation,
            groups: format.groups(),
            saturated: format.saturated(),
        }
    }
}

impl TryFrom<Written> for Format {
    type Error = Error;

    /// Checks that activations fit the weight.
    fn try_from(written: Written) -> Result<Self> {
        let half = if written.bfloat16 {
            HalfType::BFloat16
        } else {
            HalfType::Float16
        };
        let of_half = Activations::Word(half.activations());
        let activation = written.activation;
        let (multiplied, saturated) = (activation.is_some(), written.saturated);
        // Halves alone have more to say of.
        let is_plain = !written.bfloat16 && saturated == 0;
        match (written.codes, written.groups, activation) {
            (None, Some(groups), None | Some(Activations::PER_GROUP | Activations::PER_ROW))
                if is_plain =>
            {
                groups.blocks()?;
                let per_row = activation == Some(Activations::PER_ROW);
                Ok(Self::Groups {
                    groups: GroupConfig { per_row, ..groups },
                    multiplied,
                })
            }
            (None, None, own) if own.is_none_or(|own| own == of_half) => Ok(Self::Half {
                half,
                saturated,
                multiplied,
            }),
            (Some(codes), None, None) if !written.bfloat16 => Ok(Self::Int8 {
                codes,
                activation: None,
            }),
            (Some(codes), None, Some(Activations::Dynamic(dynamic)))
                if is_plain && codes.qscheme != QScheme::PerChannelAffineFloatQParams =>
            {
                let activation = Some(dynamic);
                Ok(Self::Int8 { codes, activation })
            }
            _ => Err(Error::unsupported(
                "weight",
                "codes with dynamic activations and integer zero points, float16 with \
                       float activations, bfloat16 with bfloat16 activations, groups with \
                       per_group or per_row activations, or a table without activations",
                serde_json::to_string(&written).unwrap_or_default(),
            )),
        }
    }
}
