//! Codes in blocks: 32 inputs of a channel that share a scale.

use half::f16;

/// Inputs of a block.
pub const INPUTS: usize = 32;

/// The meaning of the codes of a block, before the channel's factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blocks {
    /// 4 bits: `scale * (code - 8)`.
    Int4,
    /// 4 bits: `scale * (code - zero_point)`, the zero point an integer.
    Int4ZeroPoint,
    /// 4 bits: `scale * code + minimum`.
    Int4Minimum,
    /// 8 bits: `scale * (code - 128)`.
    Int8,
}

impl Blocks {
    /// Bits of a code.
    pub const fn bits(self) -> usize {
        if matches!(self, Self::Int8) { 8 } else { 4 }
    }

    /// The number that is subtracted from every code, where blocks have no offsets.
    pub const fn middle(self) -> i32 {
        if self.has_offsets() { 0 } else { 1 << (self.bits() - 1) }
    }

    /// Whether each block has an offset, too.
    pub const fn has_offsets(self) -> bool {
        matches!(self, Self::Int4ZeroPoint | Self::Int4Minimum)
    }

    /// The number that is added to `scale * (code - middle)`.
    #[inline(always)]
    pub fn addend(self, scale: f32, offset: f32) -> f32 {
        match self {
            Self::Int4 | Self::Int8 => 0.,
            Self::Int4ZeroPoint => -(scale * offset),
            Self::Int4Minimum => offset,
        }
    }
}

/// Scale and offset of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockScale {
    /// The value of one step of a code, before the channel's factor.
    pub scale: f16,
    /// The zero point or the minimum; 0 where the format has none.
    pub offset: f16,
}

/// The factor of a channel by its scales and minimums, which have at most 11 significant bits: of
/// the powers of two by which all, divided, are float16, the nearest to 1. A product is multiplied
/// by it last, so that a smaller one lets sums overflow, and a greater one lose bits, where the
/// product does not.
pub fn factor(numbers: impl IntoIterator<Item = f32>) -> f32 {
    let (mut least, mut greatest) = (0, 0);
    for number in numbers.into_iter().filter(|number| *number != 0.) {
        let exponent = (number.to_bits() >> 23 & 0xff) as i32;
        let significand = number.to_bits() & ((1 << 23) - 1) | u32::from(exponent > 0) << 23;
        // The last bit of a float16 is at least 2^-24, of this number 2^(last - 150).
        let last = exponent.max(1) + significand.trailing_zeros() as i32;
        least = least.min(last - 126);
        greatest = greatest.max(exponent - 127 - 15);
    }
    // Only one bound differs from 0, or no power is within both.
    2f32.powi(if greatest > 0 { greatest } else { least })
}
