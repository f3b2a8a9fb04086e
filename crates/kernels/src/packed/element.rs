//! The types of weights.

use crate::isa::Isa;
use crate::qparams::activation::DynamicConfig;
use crate::qparams::blocks::{Blocks, INPUTS};

/// The type of a weight, which decides what its products do to activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Codes of 8 bits; activations become u8.
    Int8(DynamicConfig),
    /// f16; activations stay f32.
    Float16,
    /// bf16; activations are rounded to it.
    BFloat16,
    /// Codes with a scale for each 32 inputs; activations become i8.
    Blocks {
        /// The meaning of the codes.
        format: Blocks,
        /// Whether all activations of a row have one scale, or each 32 of them.
        per_row: bool,
    },
}

impl Element {
    /// Inputs that are stored together, and their bytes.
    pub(super) fn group(self) -> [usize; 2] {
        match self {
            Self::Int8(_) => [4, 4],
            Self::Float16 => [1, 2],
            Self::BFloat16 => [2, 4],
            Self::Blocks { format, .. } => [INPUTS, format.bytes()],
        }
    }

    pub(super) fn is_int8(self) -> bool {
        matches!(self, Self::Int8(_))
    }

    /// Whether alternate inputs are paired: see [`Registers::alternate`].
    pub(super) fn alternates(self, isa: Isa) -> bool {
        self == Self::BFloat16 && isa.registers().alternate
    }

    /// Groups of `k` inputs.
    pub(super) fn groups(self, isa: Isa, k: usize) -> usize {
        let groups = k.div_ceil(self.group()[0]);
        if self.alternates(isa) { groups.next_multiple_of(2) } else { groups }
    }
}
