//! The description of a weight that a layer gives.

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

use super::tied::WeightId;
use crate::halves::HalfType;
use crate::qconfig::IntType;
use crate::qparams::QDType;
use crate::weight::Origin;

/// How a weight is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum WeightDType {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// 16-bit float.
    F16,
    /// 16-bit bfloat.
    BF16,
    /// Signed 8-bit codes with scales, PyTorch's `qint8`.
    QInt8,
    /// Unsigned 8-bit codes with scales and zero points, PyTorch's `quint8`.
    QUInt8,
    /// 4-bit integers in groups of inputs with scales.
    Int4,
    /// 8-bit integers in groups of inputs with scales.
    Int8,
    /// Anything else.
    Other,
}

impl WeightDType {
    pub(crate) fn of_groups(dtype: IntType) -> Self {
        if dtype == IntType::Int4 { Self::Int4 } else { Self::Int8 }
    }

    /// The dtype of codes, or else of halves.
    pub(crate) fn of_quantized(codes: Option<QDType>, half: Option<HalfType>) -> Self {
        let of_codes = |dtype| {
            if dtype == QDType::QInt8 { Self::QInt8 } else { Self::QUInt8 }
        };
        let of_half = || half.map(|half| half.facts().dtype.into());
        codes.map(of_codes).or_else(of_half).unwrap_or(Self::Other)
    }

    pub(crate) fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::BF16)
    }

    /// Whether these are codes.
    pub(crate) fn is_quantized(self) -> bool {
        matches!(self, Self::QInt8 | Self::QUInt8 | Self::Int4 | Self::Int8)
    }
}

impl From<candle_core::DType> for WeightDType {
    fn from(dtype: candle_core::DType) -> Self {
        match dtype {
            candle_core::DType::F64 => Self::F64,
            candle_core::DType::F32 => Self::F32,
            candle_core::DType::F16 => Self::F16,
            candle_core::DType::BF16 => Self::BF16,
            _ => Self::Other,
        }
    }
}

/// A weight of a layer, as the layer describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WeightInfo {
    /// Name within the layer, as in a checkpoint: `weight`, `weight_ih_l0`.
    pub name: String,
    /// Shape, outputs first.
    pub shape: Vec<usize>,
    /// How it is stored now.
    pub dtype: WeightDType,
    /// Bytes in memory, including scales and padding, without biases.
    pub bytes: usize,
    /// Whether it cannot be quantized again.
    pub quantized: bool,
    /// Elements that were clamped to the range of its dtype when it was quantized.
    pub(crate) saturated: usize,
    /// Elements that lost precision or became 0 then, because all of their channel is below the
    /// normal range of its dtype.
    pub(crate) underflowed: usize,
    /// The memory of the weight, if the layer gives it: memory that several layers hold is counted
    /// once, and a view counts the whole memory.
    #[serde(skip)]
    #[doc(hidden)]
    pub id: Option<WeightId>,
    /// The place in the checkpoint that the weight was loaded from.
    #[serde(skip)]
    pub(crate) origin: Option<Origin>,
    /// The sizes of a convolution that decide whether it gains.
    #[serde(skip)]
    pub(crate) convolution: Option<ConvolutionCost>,
}

/// The sizes of a convolution that decide whether it is faster with codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConvolutionCost {
    /// Input channels of a group.
    pub channels: usize,
    /// Products for each value that is read or written.
    pub products: usize,
}

impl WeightInfo {
    /// Describes one weight; it counts as quantized if its dtype has codes.
    pub fn new(name: impl Into<String>, shape: &[usize], dtype: WeightDType, bytes: usize) -> Self {
        Self {
            name: name.into(),
            shape: shape.to_vec(),
            dtype,
            bytes,
            quantized: dtype.is_quantized(),
            saturated: 0,
            underflowed: 0,
            id: None,
            origin: None,
            convolution: None,
        }
    }

    pub(crate) fn of_float(name: &str, tensor: &Tensor) -> Self {
        let bytes = tensor.elem_count() * tensor.dtype().size_in_bytes();
        Self::new(name, tensor.dims(), tensor.dtype().into(), bytes)
            .held_as(WeightId::of_tensor(tensor))
    }

    /// This weight in the memory `id`.
    #[must_use]
    pub(crate) fn held_as(self, id: WeightId) -> Self {
        Self { id: Some(id), ..self }
    }

    /// This weight as a quantized one, `saturated` elements of which were out of range.
    #[doc(hidden)]
    #[must_use]
    pub fn quantized(self, saturated: usize) -> Self {
        Self { quantized: true, saturated, ..self }
    }
}
