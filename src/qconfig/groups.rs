//! Weights of integers in groups of inputs.

use std::fmt;

use crate::error::{Error, Result};
use crate::kernels::Blocks;
use crate::words::words;

/// Inputs whose codes are multiplied together: groups are multiples of them, and activations have a
/// scale for each.
pub(crate) const BLOCK: usize = 32;

/// The integers of a weight in groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IntType {
    /// 4 bits.
    Int4,
    /// 8 bits.
    Int8,
}

words!(IntType, "integer dtype", prefix "torch.", {
    Int4 => "int4",
    Int8 => "int8",
});

impl IntType {
    /// The difference of an unsigned code and a signed one.
    pub(crate) fn offset(self) -> i32 {
        match self {
            Self::Int4 => 8,
            Self::Int8 => 128,
        }
    }
}

/// The numbers that the codes of a group represent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupScheme {
    /// `scale * code`, the code signed.
    Symmetric,
    /// `scale * (code - zero_point)`, where the zero point is an unsigned code.
    Affine,
    /// `scale * code + minimum`, the code unsigned: GGUF's Q4_1, of files only.
    Minimum,
}

words!(GroupScheme, "scheme of groups", prefix "", {
    Symmetric => "symmetric",
    Affine => "affine",
    Minimum => "minimum",
});

/// Integer weights of which groups of inputs share a scale: torchao's `PerGroup`.
///
/// Activations become 8-bit integers at every call, symmetric, with a scale for each 32 inputs of a
/// row, or one for the row, so that a row's result does not depend on the rows beside it. Scales of
/// weights minimize the squares of errors, in float16.
///
/// ```
/// use candle_dynquant::{GroupConfig, GroupScheme, QConfig};
///
/// let mut config = GroupConfig::INT4;
/// assert_eq!(QConfig::Groups(config), QConfig::int4());
/// config.group_size = Some(128);
/// config.scheme = GroupScheme::Affine;
/// assert_eq!(config.to_string(), "int4 affine in groups of 128");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GroupConfig {
    /// The integers.
    #[doc(hidden)]
    pub dtype: IntType,
    /// Inputs of a channel that share a scale, a multiple of 32; all of them if `None`.
    pub group_size: Option<usize>,
    /// The meaning of codes; integers of 8 bits are symmetric.
    pub scheme: GroupScheme,
    /// Whether the activations of a row have one scale, as in torchao, instead of one for each 32:
    /// less accurate, as fast.
    pub per_row: bool,
}

impl GroupConfig {
    /// 4 bits, symmetric, in groups of 32.
    pub const INT4: Self = Self {
        dtype: IntType::Int4,
        group_size: Some(BLOCK),
        scheme: GroupScheme::Symmetric,
        per_row: false,
    };

    /// 8 bits, symmetric, in groups of 32.
    pub const INT8: Self = Self { dtype: IntType::Int8, ..Self::INT4 };

    /// Bytes of a weight `[out_features, in_features]` in a checkpoint: codes, float16 scales,
    /// zero points and minimums.
    ///
    /// ```
    /// use candle_dynquant::GroupConfig;
    ///
    /// assert_eq!(GroupConfig::INT4.bytes([768, 3072]), 768 * 3072 * 9 / 16);
    /// ```
    #[doc(hidden)]
    pub fn bytes(self, [n, k]: [usize; 2]) -> usize {
        let codes = if self.dtype == IntType::Int4 { n * k.div_ceil(8) * 4 } else { n * k };
        let zero_points = match self.scheme {
            GroupScheme::Symmetric => 0,
            GroupScheme::Affine => n.div_ceil(8) * 4,
            GroupScheme::Minimum => 2 * n,
        };
        codes + (2 * n + zero_points) * self.count(k)
    }

    /// The format of the blocks of a weight, each of 32 inputs of a group.
    ///
    /// # Errors
    /// When groups are not multiples of 32, or integers of 8 bits are not symmetric.
    pub(crate) fn blocks(self) -> Result<Blocks> {
        if let Some(size) = self.group_size
            && (size == 0 || !size.is_multiple_of(BLOCK))
        {
            return Err(Error::argument("group_size", format!("a multiple of {BLOCK}"), size));
        }
        match (self.dtype, self.scheme) {
            (IntType::Int4, GroupScheme::Symmetric) => Ok(Blocks::Int4),
            (IntType::Int4, GroupScheme::Affine) => Ok(Blocks::Int4ZeroPoint),
            (IntType::Int4, GroupScheme::Minimum) => Ok(Blocks::Int4Minimum),
            (IntType::Int8, GroupScheme::Symmetric) => Ok(Blocks::Int8),
            (IntType::Int8, scheme) => Err(Error::qconfig("symmetric groups of int8", scheme)),
        }
    }

    /// Inputs of a group of a channel of `k`, in whole blocks.
    pub(crate) fn inputs(self, k: usize) -> usize {
        let all = k.next_multiple_of(BLOCK).max(BLOCK);
        self.group_size.map_or(all, |size| size.min(all))
    }

    /// Groups of a channel of `k` inputs.
    pub(crate) fn count(self, k: usize) -> usize {
        k.div_ceil(self.inputs(k))
    }
}

/// `int4 in groups of 32`.
impl fmt::Display for GroupConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.dtype)?;
        if self.scheme != GroupScheme::Symmetric {
            write!(f, " {}", self.scheme)?;
        }
        match self.group_size {
            Some(size) => write!(f, " in groups of {size}")?,
            None => f.write_str(" per channel")?,
        }
        if self.per_row {
            f.write_str(", activations per row")?;
        }
        Ok(())
    }
}
