//! How a stored weight is to be understood and used.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::halves::HalfType;
use crate::observer::ObserverConfig;
use crate::qconfig::file::Activations;
use crate::qconfig::{DynamicConfig, GroupConfig, GroupScheme, QConfig};
use crate::qparams::{QDType, QScheme};
use crate::weight::coded::Coded;

/// Suffixes of the tensors that belong to a quantized weight.
pub(crate) const SCALE: &str = "_scale";
pub(crate) const ZERO_POINT: &str = "_zero_point";
pub(crate) const UNSIGNED_ZERO_POINT: &str = "_zero_point_unsigned";
/// Suffixes of the tensors of a weight of 4 bits, which has no tensor of the plain name: eight
/// codes an i32, and its shape.
pub(crate) const PACKED: &str = "_packed";
pub(crate) const SHAPE: &str = "_shape";
/// The minimum of each group of codes that are not signed; a suffix of this crate.
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

/// The numbers of a weight, and what it is for. The tensors say the rest: shape, codes or halves,
/// scales, zero points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    pub numbers: Numbers,
    /// The activations that it is multiplied with; `None` of a table.
    pub activations: Option<Activations>,
    /// Elements that were clamped when they became halves.
    pub saturated: usize,
}

/// The numbers of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbers {
    Codes(Codes),
    Half(HalfType),
    Groups(GroupConfig),
}

/// 8-bit codes, as observers choose them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Codes {
    pub dtype: QDType,
    pub qscheme: QScheme,
}

impl From<&ObserverConfig> for Codes {
    fn from(config: &ObserverConfig) -> Self {
        Self { dtype: config.dtype, qscheme: config.qscheme }
    }
}

impl<C> From<&Coded<C>> for Codes {
    fn from(coded: &Coded<C>) -> Self {
        let &Coded { dtype, qscheme, .. } = coded;
        Self { dtype, qscheme }
    }
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

impl Numbers {
    /// The format of a table.
    pub fn table(self) -> Format {
        Format { numbers: self, activations: None, saturated: 0 }
    }

    /// The format of a weight that is multiplied; `dynamic` is for codes.
    pub fn multiplied(self, dynamic: DynamicConfig) -> Format {
        let activations = match self {
            Self::Codes(_) => Activations::Dynamic(dynamic),
            Self::Half(half) => Activations::Word(half.facts().activations),
            Self::Groups(groups) => Activations::of_groups(groups),
        };
        Format { activations: Some(activations), ..self.table() }
    }
}

/// The format of a weight that is multiplied, or of a table, before any of its elements is clamped.
impl From<&QConfig> for Format {
    fn from(config: &QConfig) -> Self {
        let numbers = match config {
            QConfig::Int8 { weight, .. } | QConfig::Table(weight) => Numbers::Codes(weight.into()),
            QConfig::Half(half) => Numbers::Half(*half),
            QConfig::Groups(groups) => Numbers::Groups(*groups),
        };
        let is_table = matches!(config, QConfig::Table(_));
        Self { activations: (!is_table).then(|| config.activations()), ..numbers.table() }
    }
}

impl GroupScheme {
    /// The suffix of the numbers beside the scales.
    pub(crate) fn suffix(self) -> Option<&'static str> {
        match self {
            Self::Symmetric => None,
            Self::Affine => Some(ZERO_POINT),
            Self::Minimum => Some(MINIMUM),
        }
    }
}

impl Format {
    /// The codes of observers; `None` of others.
    pub fn codes(self) -> Option<Codes> {
        match self.numbers {
            Numbers::Codes(codes) => Some(codes),
            _ => None,
        }
    }

    /// The type of halves; `None` of integers, which other libraries read.
    pub fn half(self) -> Option<HalfType> {
        match self.numbers {
            Numbers::Half(half) => Some(half),
            _ => None,
        }
    }

    /// The groups that share a scale; `None` of weights that have none.
    pub fn groups(self) -> Option<GroupConfig> {
        match self.numbers {
            Numbers::Groups(groups) => Some(groups),
            _ => None,
        }
    }

    /// How activations become codes in products; `None` of all but int8, and of a table.
    pub fn dynamic(self) -> Option<DynamicConfig> {
        match self.activations {
            Some(Activations::Dynamic(dynamic)) => Some(dynamic),
            Some(Activations::Word(_)) | None => None,
        }
    }

    /// Whether it is multiplied; otherwise it is a table.
    pub fn is_multiplied(self) -> bool {
        self.activations.is_some()
    }

    /// The format of more such rows; `None` if others differ in more than what was clamped.
    pub fn joined(self, other: Self) -> Option<Self> {
        let saturated = self.saturated.saturating_add(other.saturated);
        let [joined, same] = [self, other].map(|format| Self { saturated, ..format });
        (joined == same).then_some(joined)
    }
}

impl From<Format> for Written {
    fn from(format: Format) -> Self {
        Self {
            codes: format.codes(),
            bfloat16: format.half() == Some(HalfType::BFloat16),
            activation: format.activations,
            groups: format.groups(),
            saturated: format.saturated,
        }
    }
}

impl TryFrom<Written> for Format {
    type Error = Error;

    /// Checks that activations fit the weight.
    fn try_from(written: Written) -> Result<Self> {
        let half = if written.bfloat16 { HalfType::BFloat16 } else { HalfType::Float16 };
        let activations = written.activation;
        let numbers = match (written.codes, written.groups) {
            (Some(codes), None) => Some(Numbers::Codes(codes)),
            (None, Some(groups)) => {
                groups.blocks()?;
                let per_row = activations == Some(Activations::PER_ROW);
                Some(Numbers::Groups(GroupConfig { per_row, ..groups }))
            }
            (None, None) => Some(Numbers::Half(half)),
            (Some(_), Some(_)) => None,
        };
        let format =
            numbers.map(|numbers| Self { numbers, activations, saturated: written.saturated });
        let is_consistent = |format: &Self| {
            let multiplied = format.numbers.multiplied(format.dynamic().unwrap_or_default());
            let is_table =
                format.codes().is_some_and(|c| c.qscheme == QScheme::PerChannelAffineFloatQParams);
            // Halves alone have more to say of.
            (format.half().is_some() || !written.bfloat16 && written.saturated == 0)
                && (activations.is_none() || activations == multiplied.activations && !is_table)
        };
        format.filter(is_consistent).ok_or_else(|| {
            Error::unsupported(
                "weight",
                "codes with dynamic activations and integer zero points, float16 with \
                 float activations, bfloat16 with bfloat16 activations, groups with \
                 per_group or per_row activations, or a table without activations",
                serde_json::to_string(&written).unwrap_or_default(),
            )
        })
    }
}
