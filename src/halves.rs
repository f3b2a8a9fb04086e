//! Elements of two bytes that quantized weights can have.

use candle_core::DType;
use half::{bf16, f16};

use crate::kernels::{self, Isa};
use crate::words::words;

/// A floating-point type of two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HalfType {
    /// IEEE half precision: 11 bits, up to 65,504.
    Float16,
    /// bfloat16: the range of f32 in 8 bits of precision.
    BFloat16,
}

words!(HalfType, "half-precision dtype", prefix "torch.", {
    Float16 => "float16",
    BFloat16 => "bfloat16",
});

impl HalfType {
    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::Float16 => DType::F16,
            Self::BFloat16 => DType::BF16,
        }
    }

    pub(crate) fn max(self) -> f32 {
        match self {
            Self::Float16 => f16::MAX.to_f32(),
            Self::BFloat16 => bf16::MAX.to_f32(),
        }
    }

    /// The word for the activations of a product with such weights.
    pub(crate) fn activations(self) -> &'static str {
        match self {
            Self::Float16 => "float",
            Self::BFloat16 => "bfloat16",
        }
    }
}

/// Elements in row order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Halves {
    Float16(Vec<f16>),
    BFloat16(Vec<bf16>),
}

impl Halves {
    pub fn len(&self) -> usize {
        match self {
            Self::Float16(values) => values.len(),
            Self::BFloat16(values) => values.len(),
        }
    }

    pub fn half_type(&self) -> HalfType {
        match self {
            Self::Float16(_) => HalfType::Float16,
            Self::BFloat16(_) => HalfType::BFloat16,
        }
    }

    /// The elements of a row of `k`, as f32, chunk by chunk.
    pub fn read_row(&self, isa: Isa, k: usize, row: usize, sink: impl FnMut(&[f32])) {
        let range = row * k..(row + 1) * k;
        match self {
            Self::Float16(values) => kernels::widen_row(isa, &values[range], sink),
            Self::BFloat16(values) => kernels::widen_row(isa, &values[range], sink),
        }
    }

    /// The index and the value of the first element that is NaN or infinite.
    pub fn non_finite(&self) -> Option<(usize, f32)> {
        let value = |i: usize| match self {
            Self::Float16(values) => values[i].to_f32(),
            Self::BFloat16(values) => values[i].to_f32(),
        };
        let mut values = (0..self.len()).map(|i| (i, value(i)));
        values.find(|(_, value)| !value.is_finite())
    }

    /// The elements as the bytes of a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Float16(values) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::BFloat16(values) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    }
}
