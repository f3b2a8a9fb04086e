//! Tensors that a walk met outside of layers.

use candle_core::DType;

use crate::module::{QMatrix, TensorField, WeightDType, WeightId, WeightInfo};

/// Whether a tensor of this size, in a memory of that size, keeps other bytes than its own.
pub fn keeps_more(own: usize, memory: usize) -> bool {
    memory > 0 && memory >= 2 * own
}

/// A float matrix that a walk met outside of layers.
pub(crate) struct FoundTensor {
    pub path: String,
    pub held_by: Option<&'static str>,
    pub strict: bool,
    pub info: WeightInfo,
}

impl FoundTensor {
    /// The tensor, if it is a float one that reaches along two or more dimensions, or a view of
    /// more: norms and biases are vectors, and indexes and masks are integers.
    pub fn of(path: &str, field: TensorField<'_>) -> Option<Self> {
        let TensorField {
            tensor,
            held_by,
            strict,
        } = field;
        let dtype = WeightDType::from(tensor.dtype());
        let extended = tensor.dims().iter().filter(|size| **size > 1).count();
        if dtype == WeightDType::Other && tensor.dtype() != DType::F8E4M3 {
            return None;
        }
        let bytes = tensor.elem_count() * tensor.dtype().size_in_bytes();
        let id = WeightId::of_tensor(tensor);
        let is_view = || id.memory_bytes().is_some_and(|all| keeps_more(bytes, all));
        if (extended < 2 || bytes == 0) && !is_view() {
            return None;
        }
        let info = WeightInfo::new("", tensor.dims(), dtype, bytes);
        Some(Self {
            path: path.to_owned(),
            held_by,
            strict,
            info: info.held_as(id),
        })
    }

    /// The quantized tensor of candle's, if it reaches along two or more dimensions.
    pub fn of_quantized(matrix: QMatrix) -> Option<Self> {
        let QMatrix { path, info, strict } = matrix;
        let extended = info.shape.iter().filter(|size| **size > 1).count();
        (extended >= 2).then_some(Self {
            path,
            held_by: None,
            strict,
            info,
        })
    }
}
