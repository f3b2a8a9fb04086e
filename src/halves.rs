//! Elements of two bytes that quantized weights can have.

use candle_core::DType;
use half::{bf16, f16};

use crate::error::Result;
use crate::kernels::{self, Element, Isa, OutOfRange, Packed};
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

/// The facts of a type, and its words.
pub(crate) struct HalfFacts {
    pub dtype: DType,
    pub max: f32,
    /// The activations of a product with such weights.
    pub activations: &'static str,
    /// The maximum and the least normal number.
    pub range: [&'static str; 2],
}

impl HalfType {
    pub(crate) const fn facts(self) -> HalfFacts {
        match self {
            Self::Float16 => HalfFacts {
                dtype: DType::F16,
                max: f16::MAX.to_f32_const(),
                activations: "float",
                range: ["65504", "6.1e-5"],
            },
            Self::BFloat16 => HalfFacts {
                dtype: DType::BF16,
                max: bf16::MAX.to_f32_const(),
                activations: "bfloat16",
                range: ["3.39e38", "1.2e-38"],
            },
        }
    }

    /// Packs rows of `k` floats to be multiplied.
    pub(crate) fn pack(
        self,
        isa: Isa,
        [k, gates]: [usize; 2],
        values: &[f32],
        bias: &[f32],
    ) -> Result<(Packed, OutOfRange)> {
        Ok(match self {
            Self::Float16 => kernels::pack_floats::<f16>(isa, k, gates, values, bias)?,
            Self::BFloat16 => kernels::pack_floats::<bf16>(isa, k, gates, values, bias)?,
        })
    }
}

/// Elements in row order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Halves {
    Float16(Vec<f16>),
    BFloat16(Vec<bf16>),
}

/// Evaluates an expression with the elements, of either type.
macro_rules! with_values {
    ($halves:expr, $values:ident => $value:expr) => {
        match $halves {
            Halves::Float16($values) => $value,
            Halves::BFloat16($values) => $value,
        }
    };
}

impl Halves {
    /// Rounds rows of `k` floats.
    pub fn rounded(half: HalfType, k: usize, values: &[f32]) -> (Self, OutOfRange) {
        match half {
            HalfType::Float16 => {
                let (halves, out_of_range) = kernels::halve_rows(k, values);
                (Self::Float16(halves), out_of_range)
            }
            HalfType::BFloat16 => {
                let (halves, out_of_range) = kernels::halve_rows(k, values);
                (Self::BFloat16(halves), out_of_range)
            }
        }
    }

    /// The elements of a packed weight; `None` of integers.
    pub fn unpacked(packed: &Packed) -> Option<Self> {
        match packed.element() {
            Element::Float16 => Some(Self::Float16(packed.halves())),
            Element::BFloat16 => Some(Self::BFloat16(packed.bfloats())),
            _ => None,
        }
    }

    /// Packs rows of `k` elements to be multiplied.
    pub fn pack(&self, isa: Isa, [k, gates]: [usize; 2], bias: &[f32]) -> Packed {
        with_values!(self, values => kernels::pack_halves(isa, k, gates, values, bias))
    }

    pub fn len(&self) -> usize {
        with_values!(self, values => values.len())
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
        with_values!(self, values => kernels::widen_row(isa, &values[range], sink));
    }

    /// The index and the value of the first element that is NaN or infinite.
    pub fn non_finite(&self) -> Option<(usize, f32)> {
        with_values!(self, values => {
            let at = values.iter().position(|value| !value.is_finite())?;
            Some((at, values[at].to_f32()))
        })
    }

    /// The elements as the bytes of a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        with_values!(self, values => values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }
}
